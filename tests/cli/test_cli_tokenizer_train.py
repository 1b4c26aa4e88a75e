"""``toynn tokenizer train``: ids as the tokenizers library's, and what becomes of the folder."""

import json
from pathlib import Path

import pytest

from toynn.cli import main
from toynn.formats import gguf
from toynn.formats.tokenizer import Tokenizer

library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

CUT = (  # of Qwen2, as its tokenizer.json has it
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = "The cat sat on the mat, and 12 caf\u00e9s \U0001f600 had it's tea.\n\n\tif x == 3:\n" * 3
OTHER = "the caf\u00e9 sat \u4e2d 345\n\n  x's\r\n<|im_end|> \x00\x7f"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    return tmp_path


def train(*words, size=300):
    return main(["tokenizer", "train", "--vocab-size", str(size), "--out", "made", *words])


def test_ids_are_those_of_the_library(here):
    pre, split = library.pre_tokenizers, library.Regex(CUT)
    theirs = library.Tokenizer(library.models.BPE())
    steps = [pre.Split(split, "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    theirs.pre_tokenizer = pre.Sequence(steps)
    trainer = library.trainers.BpeTrainer(
        vocab_size=297,
        min_frequency=2,
        initial_alphabet=pre.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    theirs.train_from_iterator([TEXT], trainer)
    assert train("--data", "text.txt") == 0
    ours = Tokenizer.of("made")
    for text in (TEXT, OTHER):
        assert ours.encode(text) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text)) == text
    assert ours.vocab_size == 300 and ours.tokens[-3] == "<|endoftext|>"
    assert ours.eos == 297 and ours.eog == {297, 299}


def test_transformers_reads_the_folder(here):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    assert train("--data", "text.txt") == 0
    theirs, ours = transformers.AutoTokenizer.from_pretrained("made"), Tokenizer.of("made")
    assert theirs.encode(TEXT) == ours.encode(TEXT)
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    text = theirs.apply_chat_template(messages, tokenize=False)
    assert text == "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\nsat<|im_end|>\n"
    assert text == ours.chat(messages)


def test_a_model_learns_with_it_and_has_it_in_its_file(here):
    assert train("--data", "text.txt") == 0
    Path("long.txt").write_text(TEXT * 4)
    words = "train gpt2 --data long.txt --tokenizer made --out run --steps 1 --seq 8 --batch 1"
    assert main([*words.split(), "--d-model", "8", "--layers", "1", "--heads", "1"]) == 0
    with gguf.open("run/model.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == "qwen2"
        stored = Tokenizer.from_gguf(file)
    assert stored.encode(OTHER) == Tokenizer.of("made").encode(OTHER)
    assert stored.eog == Tokenizer.of("made").eog


def test_the_smallest_is_bytes_and_an_end_and_a_model_learns_with_it(here):
    assert train("--data", "text.txt", size=260) == 0
    tokenizer = Tokenizer.of("made")
    assert tokenizer.encode(OTHER) == list(OTHER.encode())
    words = "train gpt2 --data text.txt --tokenizer made --out run --steps 1 --seq 8 --batch 1"
    assert main([*words.split(), "--d-model", "8", "--layers", "1", "--heads", "1"]) == 0
    assert Tokenizer.of("run/model.gguf").encode(OTHER) == tokenizer.encode(OTHER)


def test_tokens_of_another_tokenizer_are_refused(here, capsys):
    assert train("--data", "text.txt") == 0
    Path("other.txt").write_text(TEXT.upper())
    words = ["tokenizer", "train", "--vocab-size", "300", "--data", "other.txt"]
    assert main([*words, "--out", "shards"]) == 0
    ids = Tokenizer.of("shards").encode_array(TEXT * 4)
    ids.astype("<u2").tofile("shards/train.bin")
    words = "train gpt2 --data shards --out run --steps 1 --seq 8 --batch 1 --d-model 8 --heads 1"
    words = [*words.split(), "--layers", "1", "--report", "none", "--tokenizer"]
    assert main([*words, "made"]) == 2
    assert "shards: its tokens are those of the tokenizer beside" in capsys.readouterr().err
    assert main([*words, "shards"]) == 0


ROWS = {
    "chats.jsonl": {"messages": [{"role": "qqqqqq", "content": "wxwxwxwx"}], "other": "zzzzzz"},
    "pairs.jsonl": {"prompt": "wxwx", "completion": "wxwx", "other": "qqqqzzzz"},
    "old.jsonl": {"conversations": [{"from": "qqqq", "value": "wxwxwxwx"}]},
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_give_what_is_trained(here, name):
    Path(name).write_text(f"{json.dumps(ROWS[name])}\n" * 9)
    assert train("--data", name, size=261) == 0
    assert Tokenizer.of("made").tokens[256:258] == ["wx", "wxwx"]
    Path("folder").mkdir()
    Path(name).rename("folder/train.jsonl")
    Path("folder/valid.jsonl").write_text('{"text": "%s"}' % ("held out" * 99))
    assert (
        main(["tokenizer", "train", "--data", "folder", "--vocab-size", "261", "--out", "b"]) == 0
    )
    assert Tokenizer.of("b").tokens == Tokenizer.of("made").tokens


@pytest.mark.parametrize(
    ("words", "size", "message"),
    [
        ([], 259, "at least 260 tokens, 256 bytes, a merge and <|endoftext|>"),
        (["--data", "text.txt"], 5000, "the texts are too short for 5,000 tokens: their pairs"),
        (["--data", "none.txt"], 300, "none.txt: cannot read"),
        (["--data", "ids.bin"], 300, "ids.bin: it holds tokens already"),
        (["--out", "text.txt"], 300, "--out text.txt: it exists: name a new folder"),
    ],
)
def test_errors(here, capsys, words, size, message):
    Path("ids.bin").write_bytes(b"\0\0" * 9)
    assert train(*words, size=size) == 2
    assert message in capsys.readouterr().err
    assert not Path("made").exists()
