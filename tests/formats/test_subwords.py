"""WordPiece and Unigram: the ids of the tokenizers library, from folders and from GGUF files."""

import base64
import io
import json

import numpy as np
import pytest
from vocabs import MODEL, SNIPPETS, nasty_texts

from toynn.errors import DataError
from toynn.formats import gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.folder import FolderKeys
from toynn.formats.tokenizer.spm import NORMALIZER, _fields

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "quick", "un", "want", "##ed", "##ing", "##able", "don", "hello", "caf\u00e9"]
WORDS += ["cafe"]
TEXTS = [
    "",
    " ",
    "Hello, the QUICK caf\u00e9!",
    "unwantedable \u4e2d\u6587\u5b57 x",
    "[CLS] is no token here [SEP]",
    "  spaces   and\ttabs\nand lines ",
    *SNIPPETS,
    *nasty_texts(200, seed=3),
]


def bert_json(**normalizer):
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789.,!?$'"
    letters = sorted({c for text in [*WORDS, alphabet] for c in text})
    tokens = [*SPECIALS, *WORDS, *letters, *(f"##{c}" for c in letters), "\u4e2d", "\u6587"]
    ids = {text: id for id, text in enumerate(dict.fromkeys(tokens))}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(**normalizer)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(SPECIALS)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def xlmr_json(prefix="always", words=True):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS), *("the quick cafe", ascii(SNIPPETS)) * 9]),
        model_writer=model,
        vocab_size=150,
        model_type="unigram",
        minloglevel=5,
        hard_vocab_limit=False,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    table = _fields(_fields(model.getvalue())[NORMALIZER][0])[2][0]
    pairs = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pairs += [
        (processor.IdToPiece(i), processor.GetScore(i)) for i in range(3, processor.GetPieceSize())
    ]
    pairs += [("<mask>", 0.0)]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pairs, unk_id=3, byte_fallback=False))
    made.normalizer = tokenizers.normalizers.Precompiled(table)
    space = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=prefix)
    split = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, space] if words else [space])
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return made


KINDS = {
    "bert": (bert_json, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}),
    "t5": (xlmr_json, {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}),
}


def folder_of(path, kind, made=None):
    make, config = KINDS[kind]
    path.mkdir()
    made = made or make()
    (path / "tokenizer.json").write_text(made.to_str())
    pad = "[PAD]" if kind == "bert" else "<pad>"
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": pad}))
    return path, made


def plain(texts, kind):
    """Texts without special tokens, which the library finds in any text."""
    names = SPECIALS if kind == "bert" else ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    return [text for text in texts if not any(name in text for name in names)]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_librarys(kind, tmp_path):
    folder, made = folder_of(tmp_path / "model", kind)
    gguf.write(tmp_path / "m.gguf", MODEL | FolderKeys(folder).typed(), {})
    filed = Tokenizer.of(tmp_path / "m.gguf")
    again = tmp_path / "again"
    again.mkdir()
    for name, content in filed.hf_files().items():
        (again / name).write_bytes(content)
    rewritten = tokenizers.Tokenizer.from_file(str(again / "tokenizer.json"))
    for own in (Tokenizer.of(folder), filed, Tokenizer.of(again)):
        for text in plain(TEXTS, kind):
            assert own.encode(text) == made.encode(text).ids
        found = own.encode_many([(text, False) for text in plain(TEXTS, kind)])
        expected = [made.encode(text, add_special_tokens=False).ids for text in plain(TEXTS, kind)]
        assert found == expected
        for text, second in zip(plain(TEXTS, kind), plain(TEXTS, kind)[::-1], strict=True):
            pair = made.encode(text, second)
            assert own.encode_pair(text, second) == (pair.ids, pair.type_ids)
            assert rewritten.encode(text, second).ids == pair.ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_token_in_a_users_text_is_text(kind, tmp_path):
    own = Tokenizer.of(folder_of(tmp_path / "model", kind)[0])
    ids = own.encode("a [SEP] </s> <mask> b", add_special=False)
    assert not {
        own.bos,
        own.eos,
        own.tokens.index(SPECIALS[4] if kind == "bert" else "<mask>"),
    } & set(ids)
    assert own.eos in own.encode("a [SEP] </s> b", add_special=False, parse_special=True)


@pytest.mark.parametrize(("prefix", "words"), [("never", True), ("always", False)])
def test_unigrams_spaces(prefix, words, tmp_path):
    folder, made = folder_of(tmp_path / "model", "t5", xlmr_json(prefix, words))
    gguf.write(tmp_path / "m.gguf", MODEL | FolderKeys(folder).typed(), {})
    for own in (Tokenizer.of(folder), Tokenizer.of(tmp_path / "m.gguf")):
        for text in plain(TEXTS, "t5"):
            assert own.encode(text) == made.encode(text).ids


def test_what_llama_cpp_has_no_words_for_stays_in_its_folder(tmp_path):
    folder, made = folder_of(tmp_path / "model", "bert", bert_json(lowercase=False))
    own = Tokenizer.of(folder)
    assert own.encode("The HELLO") == made.encode("The HELLO").ids
    with pytest.raises(DataError, match="makes all letters small"):
        FolderKeys(folder).typed()


def test_a_vocab_txt_alone(tmp_path):
    made = bert_json()
    ids = made.get_vocab()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.get)) + "\n")
    own = Tokenizer.of(tmp_path)
    for text in plain(TEXTS, "bert"):
        assert own.encode(text) == made.encode(text).ids
    pair = made.encode("the quick", "hello")
    assert own.encode_pair("the quick", "hello") == (pair.ids, pair.type_ids)
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\nthe\nthe\n")
    with pytest.raises(DataError, match="each token once"):
        Tokenizer.of(tmp_path)
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\nthe\n")
    with pytest.raises(DataError, match=r"expected sep_token, '\[SEP\]'; it is missing"):
        Tokenizer.of(tmp_path)


@pytest.mark.parametrize("processor", ["RobertaProcessing", "BertProcessing"])
def test_older_post_processors(processor, tmp_path):
    folder, made = folder_of(tmp_path / "model", "bert")
    kind = getattr(tokenizers.processors, processor)
    made.post_processor = kind(("[SEP]", 3), ("[CLS]", 2))
    (folder / "tokenizer.json").write_text(made.to_str())
    own, pair = Tokenizer.of(folder), made.encode("the", "quick")
    assert own.encode("hello") == made.encode("hello").ids
    assert own.encode_pair("the", "quick") == (pair.ids, pair.type_ids)


def test_words_are_decoded_with_their_spaces(tmp_path):
    own = Tokenizer.of(folder_of(tmp_path / "model", "bert")[0])
    assert own.decode(own.encode("unwanted the hello")) == "unwanted the hello"
    own = Tokenizer.of(folder_of(tmp_path / "other", "t5")[0])
    assert own.decode(own.encode("the quick cafe")) == "the quick cafe"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "WordLevel"}, "expected BPE, WordPiece or Unigram; got 'WordLevel'"),
        ({"vocab": [["a"]]}, "expected texts and scores"),
        ({"vocab": [["a", 0.0], ["a", 1.0]]}, "each text once"),
    ],
)
def test_broken_folders(change, message, tmp_path):
    folder, made = folder_of(tmp_path / "model", "t5")
    data = json.loads(made.to_str())
    data["model"] |= change
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=message):
        Tokenizer.of(folder)


def test_a_table_that_is_none(tmp_path):
    folder, made = folder_of(tmp_path / "model", "t5")
    data = json.loads(made.to_str())
    data["normalizer"]["precompiled_charsmap"] = "?"
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="precompiled_charsmap"):
        Tokenizer.of(folder)
    whole = base64.b64decode(json.loads(made.to_str())["normalizer"]["precompiled_charsmap"])
    assert np.frombuffer(whole, np.uint8).size > 100


@pytest.mark.parity
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_gives_the_same_ids(kind, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder, _ = folder_of(tmp_path / "model", kind)
    gguf.write(tmp_path / "m.gguf", MODEL | FolderKeys(folder).typed(), {})
    own, again = Tokenizer.of(tmp_path / "m.gguf"), tmp_path / "again"
    again.mkdir()
    for name, content in own.hf_files().items():
        (again / name).write_bytes(content)
    for path in (folder, again):
        theirs = transformers.AutoTokenizer.from_pretrained(path)
        for text in plain(TEXTS, kind):
            assert theirs(text).input_ids == own.encode(text)
            assert theirs(text, "the quick").input_ids == own.encode_pair(text, "the quick")[0]
        assert theirs.pad_token_id == own._vocab.pad
