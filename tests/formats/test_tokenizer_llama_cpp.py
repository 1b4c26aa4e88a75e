"""llama.cpp as the judge of tokenizers: the same ids for nasty texts, of every kind it knows."""

import pytest
from shared import DATA
from vocabs import CONTROL, USER_DEFINED, Judge, bpe_file, nasty_texts, spm_file

from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.pre import KINDS

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece, of the text extra, is not installed")
pytestmark = pytest.mark.llama_cpp

SPECIALS = [
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<|endoftext|>", CONTROL),
    ("<|file_sep|>", USER_DEFINED),
    ("<|im_end|>>", USER_DEFINED),
]


def agree(path, count, seed=3):
    """Compare ids and what ends a generation, in all four ways to encode."""
    model, judge = Tokenizer.from_gguf(path), Judge(llama_cpp, path)
    try:
        specials = [text for text, _ in model._vocab.specials][:100]
        for index, text in enumerate(nasty_texts(count, seed, specials)):
            options = bool(index & 1), bool(index & 2)
            assert model.encode(text, *options) == judge.encode(text, *options), (text, options)
        assert model.eog == judge.ends(model.vocab_size)
    finally:
        judge.close()


@pytest.mark.parametrize("pre", KINDS)
def test_every_kind_of_byte_level_bpe(tmp_path, pre):
    agree(bpe_file(tmp_path / "a.gguf", pre, SPECIALS), 60)


def test_bytes_without_a_token(tmp_path):
    agree(bpe_file(tmp_path / "a.gguf", "smollm", missing=("@", "\u010b", "\u00f0")), 200)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"tokenizer.ggml.add_space_prefix": False},
        {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True},
        {"general.name": "Phi-3 mini"},
        {"tokenizer.ggml.eot_token_id": 300, "tokenizer.ggml.eos_token_id": 10**6},
    ],
    ids=lambda keys: "-".join(key.split(".")[-1] for key in keys) or "plain",
)
def test_sentencepiece(tmp_path, keys):
    agree(spm_file(tmp_path / "a.gguf", SPECIALS, keys), 300)


FILES = sorted(DATA.glob("ggml-vocab-*.gguf")) + sorted(DATA.glob("stories260K.gguf"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_vocabularies(path):
    agree(path, 400)
