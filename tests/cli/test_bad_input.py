"""Bad models and bad data, through the command line: one line that says what, and nothing is left.

Through Python: tests/engines/test_engine_gguf.py, tests/formats/test_gguf_hostile.py and
test_adapters_hostile.py, tests/data, tests/train. Headers of GGUF files by way of the command line:
tests/formats/test_gguf_hostile_cli.py.
"""

import json
import re

import numpy as np
import pytest
from bad_models import MODELS, REFUSED, build, content
from lora_bases import write_base
from some_adapters import draw
from vocabs import bpe_file

from toynn.cli import main
from toynn.errors import DataError, LabelError, ToynnError
from toynn.formats import adapters, gguf
from toynn.formats.tokenizer import ByteTokenizer
from toynn.recipes import GPT2

TEXT = "the cat sat on the mat and the rat sat on the cat " * 20
TALK = {"messages": [{"role": "user", "content": "hi"}]}
COMMANDS = {
    "generate": ["generate", "--model", "bad.gguf", "--prompt", "a", "--max-tokens", "1"],
    "lora": ["train", "lora", "--model", "bad.gguf", "--data", "text.txt", "--out", "out"],
    "fine": [
        "train",
        "RECIPE",
        "--init-from",
        "bad.gguf",
        "--seq",
        "8",
        "--data",
        "text.txt",
        "--out",
        "out",
    ],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.txt").write_text(TEXT)
    write_base(folder / "base.gguf", vocab=256, context=16)
    write_base(folder / "gpt2.gguf", "gpt2", vocab=256, context=16)
    write_base(folder / "other.gguf", vocab=256, context=16, d_model=48)
    bpe_file(folder / "words.gguf")
    with gguf.open(folder / "other.gguf") as file:
        adapters.write_gguf(folder / "other-adapter.gguf", draw(file))
    for name in MODELS:
        build(name, vocab=256).export_gguf(folder / f"model-{name}.gguf")
    return folder


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(words, message, capsys, here):
    """The command fails with the message, on one line, and leaves nothing; the process lives on."""
    before = sorted(here.iterdir())
    assert main(words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("toynn: error: ")
    assert re.search(message, line), line
    assert sorted(here.iterdir()) == before


# --- models (4.3) --------------------------------------------------------------------------------


#: What is said where the tokenizer of the file is looked at first, or other sizes are wrong here.
WORDS = {
    "array for a number": "llama.vocab_size at byte .*: expected int",
    "vocabulary": "got no vocabulary and 31 tokens|vocab_size counts 31 tokens",
    "tokens": "tokens counts 1 tokens|tokenizer.ggml.tokens",
    "another architecture": "mamba",
    "NaN": r"blk\.1\.ffn_up\.weight",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", REFUSED)
def test_models_that_make_no_sense(case, command, here, monkeypatch, capsys):
    """What is wrong behind a header that can be read."""
    name, damage, message = REFUSED[case]
    metadata, tensors = content(here / f"model-{name}.gguf")
    damage(metadata, tensors)
    monkeypatch.setattr("toynn.formats.gguf.writer.find_nonfinite", lambda *_: None)
    gguf.write(here / "bad.gguf", metadata, tensors)
    recipe = "gpt2" if name == "gpt2" else "from-scratch"
    words = [recipe if word == "RECIPE" else word for word in COMMANDS[command]]
    refused(words, WORDS.get(case, message), capsys, here)


def model(here, **changes):
    metadata, tensors = content(here / "model-llama.gguf")
    metadata |= changes
    gguf.write(here / "bad.gguf", metadata, tensors)


def test_a_vocabulary_without_merges(here, capsys):
    with gguf.open(here / "words.gguf") as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        del metadata["tokenizer.ggml.merges"]
        metadata["general.architecture"] = file.architecture
    gguf.write(here / "bad.gguf", metadata, {"a": (np.ones(32, np.float32), "f32")})
    words = ["train", "gpt2", "--tokenizer", "bad.gguf", "--data", "text.txt", "--out", "out"]
    refused(words, r"bad\.gguf: .*merges", capsys, here)


def test_a_token_that_is_none(here, capsys):
    tokens = [f"t{n}" for n in range(256)]
    model(here, **{"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.bos_token_id": (999, "UINT32")})
    refused(COMMANDS["generate"], "bos_token_id is 999; there are 256 tokens", capsys, here)


def test_an_adapter_of_another_base(here, capsys):
    message = "other-adapter.gguf.*(base|shape|expected)"
    adapter = ["--model", "base.gguf", "--adapter", "other-adapter.gguf"]
    refused(["generate", *adapter, "--prompt", "a"], message, capsys, here)
    refused(
        ["train", "lora", *adapter, "--data", "text.txt", "--out", "out"], message, capsys, here
    )
    refused(["fuse", *adapter, "--out", "fused.gguf"], message, capsys, here)


def test_a_missing_part_of_several_files(here, capsys):
    model(here, **{"split.count": (2, "UINT16"), "split.no": (0, "UINT16"), "split.tensors.count": (2, "INT32")})  # fmt: skip  # noqa: E501
    (here / "bad.gguf").rename(here / "bad-00001-of-00002.gguf")
    refused(["info", "bad-00001-of-00002.gguf"], r"bad-00002-of-00002\.gguf", capsys, here)


def test_what_follows_the_last_tensor_is_no_harm(here, capsys):
    (here / "long.gguf").write_bytes((here / "model-llama.gguf").read_bytes() + b"more")
    with pytest.warns(UserWarning, match="4 bytes after the last tensor are ignored"):
        assert main(["info", "long.gguf"]) == 0


def test_other_files_are_named(here, capsys):
    for content_, message in (
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"", r"not a GGUF file \(0 bytes\)"),
        (b"PK\x03\x04" + bytes(60), "a zip archive"),
    ):
        (here / "bad.gguf").write_bytes(content_)
        for words in (["info", "bad.gguf"], COMMANDS["generate"], COMMANDS["lora"]):
            refused(words, message, capsys, here)
        (here / "bad.gguf").unlink()


# --- data (4.4) ----------------------------------------------------------------------------------

SHAPE = ["--d-model", "16", "--heads", "2", "--layers", "1", "--seq", "8", "--steps", "2"]
RECIPES = {
    "gpt2": ["train", "gpt2", *SHAPE],
    "from-scratch": ["train", "from-scratch", *SHAPE],
    "lora": ["train", "lora", "--model", "base.gguf", "--seq", "8", "--steps", "2"],
}
ROWS = [{"prompt": "a", "completion": "b"}] * 4
#: Lines of train.jsonl, and what is said of them.
LINES = {
    "empty": ([], r"bad\.jsonl: expected a JSON object per line; got none"),
    "blank": (["", "  "], r"got none"),
    "not JSON": ([*ROWS, '{"prompt": "a",'], r"bad\.jsonl:5: not JSON: .* at column"),
    "a comma": (['{"text": "a"},'], r"bad\.jsonl:1: not JSON: Extra data"),
    "an array": (['[{"text": "a"}]'], r"bad\.jsonl:1: .* got a JSON array: write its objects"),
    "a number": (["3"], r"bad\.jsonl:1: expected an object with text, .*; got a number"),
    "a wrong key": ([{"txt": "a"}], r"bad\.jsonl:1: expected text, .*; got 'txt'"),
    "another form": ([*ROWS, {"text": "a"}], r"bad\.jsonl:5: expected prompt and completion"),
    "both forms": ([ROWS[0] | {"text": "a"}], "which fits more than one format"),
    "no text": ([{"text": 3}], r"bad\.jsonl:1: text: expected a text; got a number"),
    "an empty text": ([{"text": ""}], r"bad\.jsonl:1: text: expected a text; got an empty one"),
    "half a pair": (['{"text": "a\\ud800"}'], "half of a surrogate pair"),
    "not UTF-8": ([b'{"text": "\xff"}'], r"bad\.jsonl:1: not UTF-8 text: byte 0xff"),
    "nested": (["[" * 100_000], r"bad\.jsonl:1: .*(nested too deep|array)"),
    "a long number": (
        ['{"text": ' + "9" * 5000 + "}"],
        r"bad\.jsonl:1: JSON with a number too long",
    ),
    "nothing learned": (
        [{"prompt": "a" * 50, "completion": "b"}] * 3,
        "3 dropped: no token",
    ),
}


def write_lines(path, lines):
    raw = (json.dumps(line) if isinstance(line, dict) else line for line in lines)
    path.write_bytes(b"\n".join(r if isinstance(r, bytes) else r.encode() for r in raw))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("case", LINES)
def test_lines_that_are_refused(case, recipe, here, capsys):
    lines, message = LINES[case]
    write_lines(here / "bad.jsonl", lines)
    words = [*RECIPES[recipe], "--data", "bad.jsonl", "--out", "out"]
    refused(words, message, capsys, here)
    (here / "folder").mkdir()
    (here / "bad.jsonl").rename(here / "folder" / "train.jsonl")
    write_lines(here / "folder" / "valid.jsonl", ROWS)
    words = [*RECIPES[recipe], "--data", "folder", "--out", "out"]
    refused(words, message.replace(r"bad\.jsonl", r"folder/train\.jsonl"), capsys, here)


def test_conversations_without_a_template_or_an_answer(here, capsys):
    write_lines(here / "bad.jsonl", [TALK, TALK])
    for recipe in RECIPES.values():
        words = [*recipe, "--data", "bad.jsonl", "--out", "out"]
        refused(words, r"bad\.jsonl:1: .*(chat_template|template)", capsys, here)


@pytest.mark.parametrize("recipe", RECIPES)
def test_texts_that_are_refused(recipe, here, capsys):
    for content_, message in (
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"abc", "3 tokens are too few: .* use a longer text or a shorter sequence"),
        (b"one\ntwo \xff" + bytes(200), r"bad\.txt:2: not UTF-8 text: byte 0xff at offset 8"),
    ):
        (here / "bad.txt").write_bytes(content_)
        refused([*RECIPES[recipe], "--data", "bad.txt", "--out", "out"], message, capsys, here)
        (here / "bad.txt").unlink()
    for name, message in (("none.txt", "No such file"), ("none.jsonl", "No such file")):
        refused([*RECIPES[recipe], "--data", name, "--out", "out"], message, capsys, here)
    (here / "folder").mkdir()
    refused(
        [*RECIPES[recipe], "--data", "folder", "--out", "out"],
        r"folder: expected train\.jsonl in it; got an empty folder",
        capsys,
        here,
    )


def test_a_tokenizer_of_another_model(here, capsys):
    """Found before any step, and by each step: the kernels never see an id beyond the table."""
    words = ["train", "gpt2", "--init-from", "gpt2.gguf", "--tokenizer", "words.gguf"]
    message = r"words.gguf: the tokenizer has \d+ tokens, gpt2.gguf rows for 256"
    refused([*words, "--data", "text.txt", "--seq", "8", "--out", "out"], message, capsys, here)
    recipe = GPT2()
    recipe.realize_from(here / "gpt2.gguf", t_seq=4)
    hp = recipe.optimizer().hp_for_step(0)
    for ids, labels, where in (
        ([1, 2, 256, 3], [1, 2, 3, 4], r"row 2 is 256"),
        ([1, -1, 2, 3], [1, 2, 3, 4], r"row 1 is -1"),
        ([1, 2, 3, 4], [1, 2, 3, 256], r"row 3 is 256"),
        ([1, 2, 3, 4], [-1, 2, 3, 4], r"row 0 is -1"),
    ):
        with pytest.raises(ToynnError, match=where):
            recipe.step(ids, None, labels, hp, True)
    with pytest.raises(LabelError, match="all 4 rows are ignored"):
        recipe.step([1, 2, 3, 4], None, [-100] * 4, hp, True)


def test_a_sequence_longer_than_the_context(here, capsys):
    """Refused where all weights are trained; of an adapter's data, what is cut is counted."""
    words = ["train", "gpt2", "--init-from", "gpt2.gguf", "--seq", "17", "--data", "text.txt"]
    refused([*words, "--out", "out"], "17 is longer than the context 16", capsys, here)
    write_lines(here / "long.jsonl", [{"text": "a" * 50}] * 4)
    words = ["train", "lora", "--model", "base.gguf", "--data", "long.jsonl", "--steps", "1"]
    assert main([*words, "--seq", "100", "--out", "out"]) == 0
    assert "4 cut to 16 tokens" in capsys.readouterr().out


def test_fewer_rows_than_a_batch(here, capsys):
    write_lines(here / "few.jsonl", [{"text": "abc"}, {"text": "abcdef"}])
    words = [*RECIPES["gpt2"], "--data", "few.jsonl", "--batch", "64", "--out", "out"]
    assert main(words) == 0
    assert "no valid.jsonl, and 2 examples: nothing is held out" in capsys.readouterr().out


def test_rates_that_would_ruin_the_weights(here, capsys):
    words = [*RECIPES["gpt2"], "--data", "text.txt", "--out", "out"]
    refused([*words, "--lr", "1e38"], "argument --lr: must be", capsys, here)
    refused([*words, "--lr=-1"], "argument --lr: must be", capsys, here)
    decay = ["--lr", "1", "--weight-decay", "9"]
    refused([*words, *decay, "--warmup", "0"], "lr .* weight_decay must be at most 1", capsys, here)


def test_a_loss_that_grows_is_noticed_once(here, capsys):
    words = [*RECIPES["gpt2"], "--data", "text.txt", "--out", "out", "--steps", "30"]
    more = ["--lr", "1", "--weight-decay", "0", "--warmup", "0", "--min-lr-ratio", "1"]
    assert main([*words, *more, "--log-every", "5"]) == 0
    said = capsys.readouterr().err
    assert said.count("the run diverges; try a lower learning rate") == 1
    assert re.search(r"toynn: step \d+: the loss, [\d.]+, is far above the 5\.5\d+ before", said)
    assert main([*words[:-4], "--out", "again", "--steps", "30", "--log-every", "5"]) == 0
    assert "diverges" not in capsys.readouterr().err


def test_pipes_and_devices(here, capsys, tmp_path):
    import os

    os.mkfifo(here / "pipe.txt")
    os.mkfifo(here / "pipe.bin")
    for path in ("/dev/zero", "pipe.txt", "pipe.bin"):
        for words in (
            [*RECIPES["gpt2"], "--data", path, "--out", "out"],
            ["generate", "--model", path, "--prompt", "a"],
            ["train", "vit", "--data", path, "--out", "out"],
        ):
            refused(words, "(a device|a pipe|regular file|expected pictures: )", capsys, here)


def test_an_output_that_is_there(here, capsys):
    (here / "out").mkdir()
    words = [*RECIPES["gpt2"], "--data", "text.txt", "--out", "out"]
    refused(words, "out: already exists; name a new folder", capsys, here)
    with gguf.open(here / "base.gguf") as file:
        adapters.write_gguf(here / "adapter.gguf", draw(file))
    (here / "there.gguf").write_bytes(b"mine")
    fuse = ["fuse", "--model", "base.gguf", "--adapter", "adapter.gguf", "--out", "there.gguf"]
    refused(fuse, r"there\.gguf.*exists", capsys, here)
    assert (here / "there.gguf").read_bytes() == b"mine"


def test_a_broken_newest_checkpoint(here, capsys):
    words = [*RECIPES["gpt2"], "--data", "text.txt", "--out", "out", "--steps", "4"]
    assert main([*words, "--save-every", "2", "--eval-every", "2"]) == 0
    (here / "out" / "checkpoint-4" / "complete.json").unlink()
    capsys.readouterr()
    assert main(["train", "--resume", "out"]) == 0
    printed = capsys.readouterr()
    assert "checkpoint-4: not a complete checkpoint" in printed.err
    assert "trying the one before" in printed.err and "resumed from step 2" in printed.out


def test_bytes_that_are_no_text_as_data_of_python(here):
    from toynn.data import jsonl

    for name in ("words.gguf", "base.gguf"):
        with pytest.raises(DataError):
            jsonl.read(here / name, ByteTokenizer(), 8, vocab_size=256)
