"""Tokenizers: llama.cpp's vectors, naive references, round trips, special tokens, streams."""

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import vocabs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shared import DATA
from vocabs import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED, bpe_file, nasty_texts, spm_file

from toynn.errors import ConfigError, DataError, GGUFError
from toynn.formats import gguf, tokenizer
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer, byte_letters, pieces
from toynn.formats.tokenizer.pre import KINDS

pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece, of the text extra, is not installed")

STORIES = DATA / "stories260K.gguf"
SPECIALS = [("<|sep|>", CONTROL), ("<|sep|>>", CONTROL), ("<you>", USER_DEFINED)]
TEXTS = nasty_texts(150, seed=5, specials=[text for text, _ in SPECIALS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vocabs")


@pytest.fixture(scope="module")
def bpe(folder):
    return Tokenizer.from_gguf(bpe_file(folder / "bpe.gguf", "llama-bpe", SPECIALS))


@pytest.fixture(scope="module")
def spm(folder):
    return Tokenizer.from_gguf(spm_file(folder / "spm.gguf", SPECIALS))


@pytest.fixture(params=["bpe", "spm"])
def either(request):
    return request.getfixturevalue(request.param)


def texts_of(tokenizer, ids):
    return [tokenizer.tokens[id] for id in ids]


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])
def test_llama_cpp_vectors(name):
    path = DATA / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip("the tokenizer vectors are not here")
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().splitlines()
    assert len(lines) > 40
    model = Tokenizer.from_gguf(path)
    for text, line in zip(texts, lines, strict=False):
        assert model.encode(text, add_special=False) == [int(id) for id in line.split()], text
        assert model.decode(model.encode(text)) == text


def test_a_real_small_model():
    if not STORIES.exists():
        pytest.skip("stories260K.gguf is not here")
    model = Tokenizer.from_gguf(STORIES)
    ids = model.encode("Once upon a time")
    assert (model.vocab_size, model.bos, model.eos, model.eog) == (512, 1, 2, {2})
    assert ids[0] == model.bos and max(ids) < 512
    assert "".join(texts_of(model, ids[1:])) == "\u2581Once\u2581upon\u2581a\u2581time"


#: By kind, how a text is cut, by hand from the expressions.
LINE = "I'VE 12345 \u00e9\u4e2d!!\n\n  y"
CUTS = {
    "gpt-2": "I|'|VE| 12345| \u00e9\u4e2d|!!|\n\n | y",
    "starcoder": "I|'|VE| |1|2|3|4|5| \u00e9\u4e2d|!!|\n\n | y",
    "llama-bpe": "I|'VE| |123|45| \u00e9\u4e2d|!!\n\n| | y",
    "qwen2": "I|'VE| |1|2|3|4|5| \u00e9\u4e2d|!!\n\n| | y",
    "default": "I|'|VE| |123|45| \u00e9\u4e2d|!!|\n\n | y",
    "falcon": "I|'|VE| |123|45| \u00e9\u4e2d|!!|\n\n | y",
    "deepseek-coder": "I|'|VE| |1|2|3|4|5| \u00e9|\u4e2d|!!|\n|\n| | y",
    "deepseek-llm": "I|'|VE| |12345| \u00e9|\u4e2d|!!|\n|\n| | y",
    "deepseek-v3": "I|'VE| |123|45| \u00e9|\u4e2d|!!\n\n| | y",
    "tekken": "I|'VE| |1|2|3|4|5| \u00e9\u4e2d|!!\n\n| | y",
    "bloom": "I'VE| 12345| \u00e9\u4e2d|!!\n\n | y",
}


@pytest.mark.parametrize("pre", CUTS)
def test_each_kind_cuts_in_its_way(tmp_path, pre):
    model = Tokenizer.from_gguf(bpe_file(tmp_path / "a.gguf", pre))
    bytes_ = {letter: byte for byte, letter in enumerate(byte_letters())}
    pieces = model._model._tokenizer.pre_tokenizer.pre_tokenize_str(LINE)
    assert [bytes(map(bytes_.get, piece)).decode() for piece, _ in pieces] == CUTS[pre].split("|")


def test_a_mark_stays_with_its_letter_where_the_kind_says_so(tmp_path):
    cut = {}
    for pre in ("qwen2", "qwen35"):
        model = Tokenizer.from_gguf(bpe_file(tmp_path / f"{pre}.gguf", pre))
        pieces = model._model._tokenizer.pre_tokenizer.pre_tokenize_str("e\u0301a")
        cut[pre] = len(pieces)
    assert cut == {"qwen2": 2, "qwen35": 1}


def naive_spm(model, text):
    """The two neighbours that make the token of the highest score, the leftmost such, merge."""
    scores = dict(zip(model.tokens, model._vocab.scores.tolist(), strict=True))
    usable = {t for t, type in zip(model.tokens, model._vocab.types, strict=True) if type == NORMAL}
    parts = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [
            (scores[a + b], -at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in usable
        ]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    out = []
    for part in parts:
        out += [part] if part in usable else [f"<0x{byte:02X}>" for byte in part.encode()]
    return out


def test_spm_is_the_naive_algorithm(spm):
    for text in nasty_texts(60, seed=9):
        ids = spm.encode(text, add_special=False, continues=True)
        assert texts_of(spm, ids) == naive_spm(spm, text), text


def naive_bpe(word):
    """The pair whose merge is first in the list, the leftmost such, merges."""
    ranks = {pair: rank for rank, pair in enumerate(vocabs.merges())}
    parts = list(word)
    while True:
        pairs = [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not pairs:
            return parts
        at = min(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]


def test_bpe_is_the_naive_algorithm(folder):
    model = Tokenizer.from_gguf(bpe_file(folder / "plain.gguf"))
    cut = model._model._tokenizer.pre_tokenizer.pre_tokenize_str
    for text in nasty_texts(60, seed=9):
        expected = [token for word, _ in cut(text) for token in naive_bpe(word)]
        assert texts_of(model, model.encode(text, add_special=False)) == expected, text


def test_a_byte_without_a_token_is_left_out_and_nothing_merges_over_it(tmp_path):
    model = Tokenizer.from_gguf(bpe_file(tmp_path / "a.gguf", missing=("@",)))
    assert model.encode("!@!") == model.encode("!") * 2
    assert model.encode("!!") == [model.tokens.index("!!")]


def test_whole_words_need_no_merges_where_the_kind_says_so(tmp_path):
    specials = [("\u0120unmergeable", NORMAL)]
    ids = []
    for pre in ("llama-bpe", "qwen2"):
        model = Tokenizer.from_gguf(bpe_file(tmp_path / "a.gguf", pre, specials))
        ids.append(model.encode(" unmergeable", add_special=False))
    assert ids[0] == [model.tokens.index("\u0120unmergeable")] and len(ids[1]) > 1


def test_long_texts_are_encoded_in_pieces_with_the_same_ids(folder, spm, monkeypatch):
    text = "\n".join(TEXTS * 2)
    paths = {kind.regexes: bpe_file(folder / f"{pre}.gguf", pre) for pre, kind in KINDS.items()}
    for model in (spm, *map(Tokenizer.from_gguf, paths.values())):
        monkeypatch.setattr(pieces, "PIECE", 1 << 18)
        whole = model.encode(text, add_special=False)
        monkeypatch.setattr(pieces, "PIECE", 30)
        monkeypatch.setattr(tokenizer, "CHUNK", 100)
        assert len(list(model._cutter._chunks(text))) > len(text) / 500
        assert model.encode(text, add_special=False) == whole
        array = model.encode_array(text)
        assert array.dtype == np.int32
        assert array.tolist() == whole
        for size in (7, 50):
            blocks = [text[at : at + size] for at in range(0, len(text), size)]
            ids = list(model.encode_blocks(blocks))
            assert np.concatenate(ids).tolist() == whole
            assert len(ids) > len(text) / 500
        assert model.encode_many([(text, False), ("", False), ("x", True)]) == [
            whole,
            [],
            model.encode("x", add_special=False, continues=True),
        ]


def test_blocks_are_cut_beside_special_tokens_too(tmp_path):
    """A line break that is a token of the user's own, and one that swallows what follows."""
    specials = [("\n", USER_DEFINED), ("<you>", USER_DEFINED)]
    model = Tokenizer.from_gguf(spm_file(tmp_path / "a.gguf", specials))
    for text in ("ab\ncd<you>\nef\n\ngh", "<you>", "ab\n", "\nab\ncd\nef<you>gh"):
        whole = model.encode(text, add_special=False)
        for size in (1, 2, 3, 5):
            blocks = [text[at : at + size] for at in range(0, len(text), size)]
            assert np.concatenate(list(model.encode_blocks(blocks))).tolist() == whole


def test_a_fingerprint_is_that_of_all_that_ids_depend_on(tmp_path, bpe, spm):
    def of(**changes):
        vocab = dataclasses.replace(spm._vocab, **changes)
        return Tokenizer(vocab, spm._model, spm._source).fingerprint

    scores = spm._vocab.scores.copy()
    scores[-1] += 1
    changed = [{"add_space_prefix": False}, {"scores": scores}, {"strips_right": frozenset({3})}]
    changed += [{"tokens": [*spm._vocab.tokens[:-1], "other"]}, {"eos": 0}, {"add_bos": False}]
    fingerprints = [
        of(),
        bpe.fingerprint,
        ByteTokenizer().fingerprint,
        *(of(**each) for each in changed),
    ]
    assert of() == spm.fingerprint == Tokenizer(spm._vocab, spm._model, None).fingerprint
    assert len(set(fingerprints)) == len(fingerprints)
    assert Tokenizer(spm._vocab, spm._model, "a template").fingerprint != spm.fingerprint


def test_a_vocabulary_with_line_breaks_in_its_tokens_is_not_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE", 2)
    model = Tokenizer.from_gguf(spm_file(tmp_path / "a.gguf", [(",\n", NORMAL), ("\nx", NORMAL)]))
    assert model.tokens[-1] in texts_of(model, model.encode("abc\nxyz"))
    ids = list(model.encode_blocks(["abc", "\n", "xyz\nx", "y"]))
    whole = model.encode("abc\nxyz\nxy", add_special=False)
    assert np.concatenate(ids).tolist() == whole


# --- and back ------------------------------------------------------------------------------------


@settings(max_examples=60, derandomize=True)
@given(st.text() | st.lists(st.sampled_from(TEXTS)).map("".join))
@example(" ")
@example("  a")
@example("")
@example("\x00")
def test_what_is_decoded_is_what_was_encoded(bpe, spm, text):
    for model in (bpe, spm, ByteTokenizer()):
        # SentencePiece spells a space as this letter, so it cannot tell them apart.
        said = text.replace("\u2581", " ") if model is spm else text
        assert model.decode(model.encode(said)) == said
        ids = model.encode(said, add_special=False, parse_special=True)
        assert model.decode(ids, special=True) == said


def test_special_tokens_are_hidden_unless_asked_for(either):
    ids = either.encode("a<|sep|>b<you>c", parse_special=True)
    assert either.decode(ids) == "ab<you>c"
    assert either.decode(ids, special=True) == f"{either.tokens[either.bos]}a<|sep|>b<you>c"


@pytest.mark.parametrize("id", [-1, 100_000])
def test_an_id_that_is_no_token(either, id):
    with pytest.raises(DataError, match=rf"expected ids of 0..{either.vocab_size - 1}; got {id}"):
        either.decode([id])


def test_a_stream_gives_whole_characters(either):
    for text in ["caf\u00e9 \U0001f469\u200d\U0001f467!", *TEXTS[:40]]:
        stream = either.stream()
        ids = either.encode(text, add_special=False, continues=True)
        pushed = [stream.push(id) for id in ids]
        assert all("\ufffd" not in piece for piece in pushed)
        assert stream.end() == ""
        assert "".join(pushed) == (
            text.replace("\u2581", " ") if either.tokens[0] == "<unk>" else text
        )


def test_a_stream_keeps_half_a_character_until_it_knows(bpe):
    first, second = (bpe.tokens.index(byte_letters()[byte]) for byte in "\u00e9".encode())
    stream = bpe.stream()
    assert [stream.push(first), stream.push(second), stream.end()] == ["", "\u00e9", ""]
    assert [stream.push(first), stream.end()] == ["", "\ufffd"]
    assert [stream.push(first), stream.push(bpe.tokens.index("a"))] == ["", "\ufffda"]


def test_a_stream_continues_a_text_and_so_keeps_its_first_space(spm):
    ids = spm.encode(" there", add_special=False, continues=True)
    stream = spm.stream()
    assert "".join(map(stream.push, ids)) == " there"
    assert spm.decode(ids) == "there"


# --- special tokens ------------------------------------------------------------------------------


def test_control_tokens_are_found_only_on_request(either):
    control, user = either.tokens.index("<|sep|>"), either.tokens.index("<you>")
    text = "a<|sep|><you>b"
    plain, parsed = (either.encode(text, False, parse) for parse in (False, True))
    assert control not in plain and user in plain
    assert [id for id in parsed if id in (control, user)] == [control, user]


def test_the_longest_special_token_wins(either):
    longer = either.tokens.index("<|sep|>>")
    assert longer in either.encode("a<|sep|>>", parse_special=True)


def test_sentencepiece_never_merges_into_a_control_token(tmp_path):
    # In llama.cpp it would: "</" and "s>" are tokens here.
    model = Tokenizer.from_gguf(spm_file(tmp_path / "a.gguf", tags=True))
    for text in ("</s>", "x</s>", "<s>", "x<s>", "<unk>"):
        assert {0, 1, 2}.isdisjoint(model.encode(text, add_special=False))


@pytest.mark.parametrize(
    ("keys", "begin", "end"),
    [({}, [1], []), ({"add_bos_token": False, "add_eos_token": True}, [], [2])],
)
def test_bos_and_eos_of_sentencepiece(tmp_path, keys, begin, end):
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    model = Tokenizer.from_gguf(spm_file(tmp_path / "a.gguf", keys=keys))
    assert model.encode("a") == begin + model.encode("a", add_special=False) + end
    assert model.encode("") == begin + end


@pytest.mark.parametrize(("pre", "begin"), [("llama-bpe", [0]), ("gpt-2", [])])
def test_bos_of_bpe_depends_on_the_kind(tmp_path, pre, begin):
    model = Tokenizer.from_gguf(bpe_file(tmp_path / "a.gguf", pre))
    assert model.encode("") == begin
    keys = {"tokenizer.ggml.add_bos_token": not begin}
    assert Tokenizer.from_gguf(bpe_file(tmp_path / "a.gguf", pre, keys=keys)).encode("") != begin


def test_the_space_in_front(tmp_path, spm):
    def said(model, text, **options):
        return "".join(texts_of(model, model.encode(text, False, True, **options)))

    assert said(spm, "a") == "\u2581a"
    assert said(spm, "a", continues=True) == "a"
    assert said(spm, "a<|sep|>b") == "\u2581a<|sep|>\u2581b"
    keys = {"tokenizer.ggml.add_space_prefix": False}
    assert said(Tokenizer.from_gguf(spm_file(tmp_path / "a.gguf", keys=keys)), "a") == "a"


def test_phi_3_drops_spaces_after_special_tokens(tmp_path):
    specials = [("<|user|>", CONTROL), ("<|endoftext|>", CONTROL)]
    path = spm_file(tmp_path / "a.gguf", specials, {"general.name": "Phi-3-mini"})
    model = Tokenizer.from_gguf(path)
    assert model.encode("<|user|>\n a", parse_special=True) == model.encode(
        "<|user|>a", parse_special=True
    )
    wide, tight = (model.encode(f"<s>{s}a", parse_special=True) for s in ("\n ", ""))
    assert wide != tight


def test_what_ends_a_generation_goes_by_text_too(tmp_path):
    specials = [("<|im_end|>", NORMAL), ("<|fim_pad|>", NORMAL), ("<|fim_middle|>", NORMAL)]
    keys = {"tokenizer.ggml.eot_token_id": 40}
    model = Tokenizer.from_gguf(bpe_file(tmp_path / "a.gguf", specials=specials, keys=keys))
    ends = ("<eos>", "</s>", "<|im_end|>", "<|fim_pad|>")
    assert model.eog == {40, *(model.tokens.index(text) for text in ends)}
    for text, _ in specials:
        assert model.tokens.index(text) in model.encode(text, parse_special=True)
        assert model.tokens.index(text) not in model.encode(text)
        assert model.decode([model.tokens.index(text)]) == text  # the file says it is text


# --- bytes ---------------------------------------------------------------------------------------


def test_a_model_on_bytes(tmp_path):
    keys = {"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": 256}
    model = Tokenizer.from_gguf(vocabs.write(tmp_path / "a.gguf", vocabs.MODEL | keys))
    assert isinstance(model, ByteTokenizer)
    assert model.encode("h\u00e9<|im_end|>", parse_special=True) == list(
        "h\u00e9<|im_end|>".encode()
    )
    assert (model.vocab_size, model.bos, model.eos, model.eog) == (256, None, None, frozenset())
    assert model.decode([104, 195]) == "h\ufffd"
    with pytest.raises(GGUFError, match=r"a\.gguf: tokenizer\.chat_template: missing"):
        model.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(("size", "got"), [(512, "512 tokens"), (None, "an unknown number of tok")])
def test_no_vocabulary_and_not_bytes(tmp_path, size, got):
    keys = {"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": size}
    path = vocabs.write(tmp_path / "a.gguf", vocabs.MODEL, keys)
    with pytest.raises(GGUFError, match=rf"no_vocab|llama\.vocab_size = 256; got no .* {got}"):
        Tokenizer.from_gguf(path)


# --- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pre": "cuneiform"}, r"pre: expected one of .*llama-bpe.*qwen2.*; got 'cuneiform'"),
        ({"pre": 3}, "pre at byte .*: expected str, got UINT32"),
        ({"model": np.ones(3, np.int32)}, r"model at byte .*: expected str, got \[INT32\]"),
        ({"model": "rwkv"}, r"model: expected one of gpt2 .*, llama .*; got 'rwkv'"),
        ({"tokens": ["a", "b", "a"]}, r"expected each text once; 'a' is token 0 and token 2"),
        ({"tokens": None}, r"tokens: expected \[STRING\].*; got nothing"),
        ({"tokens": np.arange(3, dtype=np.int32)}, r"tokens: expected \[STRING\].*got \[INT32\]"),
        ({"merges": None}, r"merges: expected \[STRING\].*; got nothing"),
        ({"merges": ["ab"]}, "merges: entry 0: expected two texts with a space between; got 'ab'"),
        ({"merges": ["zz zz"]}, r"tokens and \.merges do not make a tokenizer: .*zz"),
        (
            {"token_type": np.ones(3, np.int32)},
            r"expected a number for each of \d+ tokens; .* of 3",
        ),
        ({"token_type": ["a"]}, r"token_type: expected a number for each"),
        ({"add_bos_token": 1}, "add_bos_token at byte .*: expected bool, got UINT32"),
        ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id: missing or out of range"),
    ],
)
def test_broken_vocabularies_are_refused(tmp_path, keys, message):
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    path = bpe_file(tmp_path / "broken.gguf", keys=keys)
    with pytest.raises(GGUFError, match=rf"broken\.gguf: tokenizer\.ggml\..*{message}"):
        Tokenizer.from_gguf(path)


def test_ids_outside_the_vocabulary_count_as_missing(tmp_path):
    keys = {"tokenizer.ggml.bos_token_id": 10**6, "tokenizer.ggml.eos_token_id": 10**6}
    model = Tokenizer.from_gguf(bpe_file(tmp_path / "a.gguf", keys=keys))
    assert (model.bos, model.eos) == (None, None)


@pytest.mark.parametrize("text", ["<0x-1>", "<0xZZ>", "<0x100>"])
def test_a_byte_token_that_spells_no_byte(tmp_path, text):
    model = Tokenizer.from_gguf(spm_file(tmp_path / "a.gguf", [(text, BYTE), ("x\u2581y", UNUSED)]))
    assert model.decode([model.tokens.index(text)]) == text


def test_tokens_that_are_not_utf_8(tmp_path):
    path = spm_file(tmp_path / "a.gguf", [("MARK", NORMAL)])
    path.write_bytes(path.read_bytes().replace(b"MARK", b"\xff\xfe\xfd!"))
    model = Tokenizer.from_gguf(path)
    assert model.decode([model.vocab_size - 1]) == "\ufffd\ufffd\ufffd!"
    assert model.decode(model.encode("abc")) == "abc"


def test_empty_tokens_get_the_names_that_llama_cpp_gives_them(tmp_path):
    model = Tokenizer.from_gguf(spm_file(tmp_path / "a.gguf", [("", NORMAL)]))
    assert model.tokens[-1] == f"[EMPTY_{model.vocab_size - 1}]"


def test_a_missing_kind_is_the_default_with_a_warning(tmp_path):
    path = bpe_file(tmp_path / "old.gguf", keys={"tokenizer.ggml.pre": None})
    with pytest.warns(UserWarning, match=r"old\.gguf: tokenizer\.ggml\.pre is missing"):
        old = Tokenizer.from_gguf(path)
    default = Tokenizer.from_gguf(bpe_file(tmp_path / "b.gguf", "default"))
    assert all(old.encode(text) == default.encode(text) for text in TEXTS[:20])


def test_half_a_surrogate_pair_is_not_text(either):
    with pytest.raises(DataError, match=r"half of a surrogate pair, '\\ud800', at character 2"):
        either.encode("ab\ud800")


@pytest.mark.parametrize(
    ("library", "write"), [("tokenizers", bpe_file), ("sentencepiece", spm_file)]
)
def test_a_missing_library_says_what_to_install(tmp_path, monkeypatch, library, write):
    path = write(tmp_path / "a.gguf")
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(ConfigError, match=rf"{library} library.*pip install .*{library}"):
        Tokenizer.from_gguf(path)


def test_an_open_file_will_do(tmp_path):
    with gguf.open(bpe_file(tmp_path / "a.gguf")) as file:
        model = Tokenizer.from_gguf(file)
    assert model.decode(model.encode("still there")) == "still there"
