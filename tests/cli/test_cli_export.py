"""``toynn export --to hf``: a model for transformers, and back; where there is no --init-from."""

import numpy as np
import pytest
import vits
from lora_bases import ARCHS, make, retype, write_base
from some_adapters import draw

from toynn.cli import main
from toynn.engines import SequenceEngine
from toynn.errors import DataError
from toynn.formats import adapters, gguf, hf


def export(*words):
    return main(["export", "--to", *map(str, words)])


@pytest.mark.parametrize("type", ["F32", "F16"])
@pytest.mark.parametrize("arch", ARCHS)
def test_a_model_comes_back(arch, type, tmp_path, capsys):
    base = write_base(tmp_path / "model.gguf", arch)
    if type != "F32":
        retype(base, lambda name: "F16" if "ffn_up" in name else "F32")
    for model, out in ((base, "a"), (tmp_path, "b")):
        assert export("hf", "--model", model, "--out", tmp_path / out) == 0
        assert "parameters as float32, in Hugging Face's format" in capsys.readouterr().out
    with gguf.open(base) as file, hf.open(tmp_path / "a") as model, hf.open(tmp_path / "b") as same:
        assert set(model.tensors) == set(same.tensors) == set(file)
        for name in file:
            np.testing.assert_array_equal(model[name], file[name])
    engine = SequenceEngine.from_hf(tmp_path / "a", 4, build=False)
    expected = SequenceEngine.from_gguf(base, 4, build=False).logits(np.arange(4))
    np.testing.assert_array_equal(engine.logits(np.arange(4)), expected)


@pytest.fixture
def files(tmp_path):
    base = write_base(tmp_path / "base.gguf")
    (tmp_path / "run").mkdir()
    with gguf.open(base) as file:
        adapters.write_gguf(tmp_path / "run" / "adapter.gguf", draw(file))
    (tmp_path / "pictures").mkdir()
    vits.make().save(tmp_path / "pictures" / "model.safetensors")
    return {word: str(tmp_path / word) for word in ("base.gguf", "run", "pictures", "new", "none")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--to hf --out new", "--to hf: name the model (--model)"),
        ("--to gguf --out new", "--to gguf: name the adapter (--adapter)"),
        ("--to hf --model base.gguf --adapter run --out new", "`toynn fuse`"),
        ("--to hf --model base.gguf --out run", "run: already exists; name a new folder"),
        (
            "--to hf --model base.gguf --out run --overwrite",
            "--overwrite does not replace a folder",
        ),
        ("--to hf --model run --out new", "this folder has an adapter; name the adapter's base"),
        ("--to hf --model pictures --out new", "expected a .gguf file, a run folder with model.g"),
        ("--to hf --model none --out new", "cannot read: No such file"),
        ("--to hf --model run/adapter.gguf --out new", "adapter"),
    ],
)
def test_what_cannot_be_exported(words, message, files, capsys):
    assert main(["export", *(files.get(word, word) for word in words.split())]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_adapter_that_one_form_alone_can_hold(files, tmp_path, capsys):
    recipe = make(files["base.gguf"], targets=("embed", "head", "q"))
    recipe.write_run(tmp_path / "run")
    (tmp_path / "run" / "adapter.gguf").unlink()
    assert main(["info", files["run"]]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["61", "x", "24", "model.embed_tokens"] in lines
    assert ["61", "x", "24", "lm_head"] in lines
    words = ["export", "--model", files["base.gguf"], "--adapter", files["run"], "--out"]
    assert main([*words, files["new"], "--to", "gguf"]) == 2
    assert "write a PEFT folder, or merge it" in capsys.readouterr().err
    assert main(["generate", "--model", files["run"], "--prompt", "x"]) == 2
    assert "this folder has an adapter; name the adapter's base" in capsys.readouterr().err


def test_what_is_no_adapter_is_said(files, tmp_path, capsys):
    whole = tmp_path / "whole" / "model.gguf"
    for folder in (whole.parent, tmp_path / "empty"):
        folder.mkdir()
    write_base(whole)
    told = {
        whole.parent: f"got a whole model: use {whole} as it is",
        tmp_path / "pictures": f"use {tmp_path / 'pictures'} as it is, as the model",
        tmp_path / "empty": "expected an adapter: adapter.gguf, or adapter_config.json with",
    }
    for folder, message in told.items():
        for more in (["--model", files["base.gguf"]], []):
            for command in (["fuse"], ["export", "--to", "gguf"], ["export", "--to", "peft"]):
                words = [*command, "--adapter", str(folder), *more, "--out", files["new"]]
                assert main(words) == 2
                assert message in capsys.readouterr().err
    assert main(["fuse", "--adapter", "none", "--out", files["new"]]) == 2
    assert "--adapter none: no such file or folder exists" in capsys.readouterr().err


def test_a_warm_start_says_what_goes_on_instead(files, capsys):
    words = ["train", "warm-start", "--donor", files["base.gguf"], "--init-from", "old.gguf"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`toynn train from-scratch --init-from old.gguf` continues training all weights" in line


def test_convert_says_what_it_takes(files, tmp_path, capsys):
    base, out = files["base.gguf"], tmp_path / "out.gguf"
    assert main(["convert", str(base), "--out", str(out), "--outtype", "Q8_0"]) == 2
    said = capsys.readouterr().err
    assert f"{base}: expected a folder; it is a GGUF file already" in said and not out.exists()


def test_an_error_of_convert_has_a_line_of_its_own(files, capsys, monkeypatch):
    """On a terminal the name of a tensor stands where it is printed."""

    def convert(*given, progress, **more):
        progress(0, 3, "blk.0.attn_q.weight")
        raise DataError("the disk is full")

    monkeypatch.setattr("toynn.engines.converting.convert", convert)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["convert", files["base.gguf"], "--out", files["new"]]) == 2
    *before, error = capsys.readouterr().err.split("\r")
    assert error == "toynn: error: the disk is full\n"
    assert "converting 1/3 blk.0.attn_q.weight" in before[-2] and not before[-1].strip()
