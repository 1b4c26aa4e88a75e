"""A tokenizer as files of a folder: AutoTokenizer gives the same ids, and so does toynn."""

import json

import numpy as np
import pytest
from lora_bases import write_base
from vocabs import CONTROL, USER_DEFINED, bpe_file, nasty_texts, spm_file

from toynn.cli import main
from toynn.engines import LlamaSeqEngine
from toynn.errors import DataError
from toynn.formats import gguf
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer, byte_letters

pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece, of the text extra, is not installed")

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
SPECIALS = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED)]
KINDS = ("gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-v3", "gpt-4o", "tekken", "default")


def distinct(path):
    """Give each token a score of its own: made-up vocabularies have ties."""
    with gguf.open(path, check=False) as file:
        metadata = gguf.typed_metadata(file.metadata, file.types)
        scores = -np.arange(len(file.metadata["tokenizer.ggml.tokens"]), dtype=np.float32)
    key = "tokenizer.ggml.scores"
    gguf.write(path, metadata | {key: (scores, "[FLOAT32]")}, {}, overwrite=True)


def made(kind, folder):
    path = folder / "vocab.gguf"
    keys = {"tokenizer.chat_template": TEMPLATE}
    if kind == "spm" or kind == "spm-no-prefix":
        keys |= {"tokenizer.ggml.add_space_prefix": False} if kind == "spm-no-prefix" else {}
        spm_file(path, specials=SPECIALS, keys=keys)
        distinct(path)
    elif kind == "bytes":
        return ByteTokenizer()
    else:
        bpe_file(path, kind, specials=SPECIALS, keys=keys)
    return Tokenizer.of(path)


def write(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("kind", [*KINDS, "spm", "spm-no-prefix", "bytes"])
def test_ids_are_the_same(kind, tmp_path):
    tokenizer = made(kind, tmp_path)
    folder = write(tmp_path / "made", tokenizer.hf_files())
    again = Tokenizer.of(folder)
    assert again.tokens == tokenizer.tokens
    texts = nasty_texts(150, seed=7, specials=["<tool>"] if kind != "bytes" else ())
    for text in texts:
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert (again.bos, again.eos, again.add_bos) == (
        tokenizer.bos,
        tokenizer.eos,
        tokenizer.add_bos,
    )
    assert again.eog == tokenizer.eog
    if kind != "bytes":
        said = [{"role": "user", "content": "Who?"}]
        assert again.encode_chat(said) == tokenizer.encode_chat(said)


@pytest.mark.parity
@pytest.mark.parametrize("kind", [*KINDS[:5], "spm", "spm-no-prefix", "bytes"])
def test_transformers_gives_the_same_ids(kind, tmp_path):
    transformers = pytest.importorskip(
        "transformers", reason="transformers, the parity group, is not installed"
    )
    tokenizer = made(kind, tmp_path)
    folder = write(tmp_path / "made", tokenizer.hf_files())
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in nasty_texts(150, seed=8):
        if not any(name in text for name, _ in SPECIALS) and "<" not in text:
            assert theirs(text).input_ids == tokenizer.encode(text)
    assert theirs.eos_token_id == tokenizer.eos
    if kind != "bytes":
        said = [{"role": "user", "content": "Who?"}]
        expected = tokenizer.encode_chat(said, add_generation_prompt=False)
        text = theirs.apply_chat_template(said, tokenize=False)
        assert theirs(text).input_ids == expected  # with BOS, where there is one


def test_what_tokenizer_json_cannot_say_is_refused(tmp_path):
    spm_file(tmp_path / "ties.gguf")
    with pytest.raises(DataError, match="tokens share a score"):
        Tokenizer.of(tmp_path / "ties.gguf").hf_files()
    spm_file(tmp_path / "no_bytes.gguf", byte_tokens=False)
    distinct(tmp_path / "no_bytes.gguf")
    with pytest.raises(DataError, match="not every byte has a token"):
        Tokenizer.of(tmp_path / "no_bytes.gguf").hf_files()


@pytest.mark.parametrize("pre", KINDS)
def test_bytes_without_a_token_are_left_out_in_the_folder_too(pre, tmp_path):
    missing = ("q", "@", *(letter for letter in byte_letters() if letter > "\xf4"))
    tokenizer = Tokenizer.of(bpe_file(tmp_path / "fewer.gguf", pre, SPECIALS, missing=missing))
    again = Tokenizer.of(write(tmp_path / "made", tokenizer.hf_files()))
    assert (
        again.tokens == tokenizer.tokens
        and again.encode("!@q!")[-2:] == [tokenizer.encode("!")[-1]] * 2
    )
    for text in [*nasty_texts(100, seed=7), "@the@re q", "\x04a\x16b\U000fffff c\x1d"]:
        assert again.encode(text) == tokenizer.encode(text)


@pytest.mark.parity
def test_transformers_reads_a_vocabulary_without_some_bytes(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    missing = ("q", "@", *(letter for letter in byte_letters() if letter > "\xf4"))
    tokenizer = Tokenizer.of(bpe_file(tmp_path / "fewer.gguf", missing=missing))
    theirs = transformers.AutoTokenizer.from_pretrained(
        write(tmp_path / "made", tokenizer.hf_files())
    )
    for text in ["!@q!", "@the@re q", *nasty_texts(100, seed=9)]:
        assert "<" in text or theirs(text).input_ids == tokenizer.encode(text)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model's file with a tokenizer, one without, one with a tokenizer that is not carried."""
    monkeypatch.chdir(tmp_path)
    bpe_file("words.gguf", specials=SPECIALS, keys={"tokenizer.chat_template": TEMPLATE})
    spm_file("ties.gguf")
    for name in ("words", "ties"):
        size = Tokenizer.of(f"{name}.gguf").vocab_size
        write_base("bare.gguf", vocab=size, context=48)
        engine = LlamaSeqEngine.from_gguf("bare.gguf", build=False)
        engine.carry_tokenizer(f"{name}.gguf")
        engine.export_gguf(f"with-{name}.gguf")
        (tmp_path / "bare.gguf").rename(f"bare-{name}.gguf")
    return tmp_path


def export(name, *more):
    return main(["export", "--to", "hf", "--model", f"{name}.gguf", "--out", "made", *more])


def test_export_carries_the_tokenizer(model, capsys):
    assert export("with-words") == 0
    assert "has no tokenizer" not in capsys.readouterr().out
    tokenizer, again = Tokenizer.of("words.gguf"), Tokenizer.of("made")
    assert again.encode("the cat") == tokenizer.encode("the cat") and again.eog == tokenizer.eog
    config = json.loads((model / "made" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    typed = ["generate", "--prompt", "the cat", "-n", "8", "--temp", "0", "--model"]
    assert main([*typed, "made"]) == 0
    written = capsys.readouterr().out
    assert main([*typed, "with-words.gguf"]) == 0
    assert capsys.readouterr().out == written


def test_export_takes_one_from_elsewhere(model, capsys):
    assert export("bare-words", "--tokenizer", "words.gguf") == 0
    assert Tokenizer.of("made").encode("the cat") == Tokenizer.of("words.gguf").encode("the cat")
    (model / "made").rename("first")
    assert export("bare-words", "--tokenizer", "first") == 0  # a folder's files, as they are
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (model / "made" / name).read_bytes() == (model / "first" / name).read_bytes()
    (model / "made").rename("second")
    assert export("bare-ties", "--tokenizer", "ties.gguf") == 2  # asked for, and not to be had
    assert "tokens share a score" in capsys.readouterr().err


def test_export_says_why_there_is_none(model, capsys):
    assert export("bare-words") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the folder has no tokenizer: the model has none; --tokenizer names one" in out
    (model / "made").rename("first")
    assert export("with-ties") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the folder has no tokenizer:" in out and "tokens share a score" in out
    assert not (model / "made" / "tokenizer.json").exists()


def test_a_model_on_bytes_has_one(tmp_path):
    write_base(tmp_path / "bytes.gguf", vocab=256, context=48)
    engine = LlamaSeqEngine.from_gguf(tmp_path / "bytes.gguf", build=False)
    assert engine.export_hf(tmp_path / "made") == ""
    again = Tokenizer.of(tmp_path / "made")
    assert again.of_bytes and again.encode("caf\u00e9 \n") == list("caf\u00e9 \n".encode())
    assert main(["convert", str(tmp_path / "made"), "--out", str(tmp_path / "back.gguf")]) == 0
    assert Tokenizer.of(tmp_path / "back.gguf").of_bytes
