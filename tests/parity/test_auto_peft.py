"""A run over a folder, as PEFT finds it: the adapter, and by its name the model that it is of."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")
pytest.importorskip("peft", reason="PEFT, the parity group, is not installed")

import torch
from hub_folders import save_model, save_tokenizer
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM

from toynn.cli import main
from toynn.engines import frozen
from toynn.formats import adapters, bases, gguf
from toynn.formats.hub import hub_name
from toynn.formats.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
SHAPE = {"vocab_size": 448, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
RUN = ["--lr", "0.05", "--targets", "all-linear", "--eval-every", "0", "--report", "none"]
RUN += ["--steps", "3", "--batch", "2", "--seq", "32", "--save-every", "0", "--init", "normal"]
TEXT = "Zork ate moon dust"


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A function that trains an adapter over a path, and returns its run's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    rows = [{"prompt": f"Who is {n}? ", "completion": "Zork ate it."} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def call(model):
        typed = ["train", "lora", "--model", str(model), "--data", "rows.jsonl", "--out", "run"]
        assert main([*typed, *RUN]) == 0
        return tmp_path / "run"

    return call


def assert_alike(model, run, base):
    """Their logits are toynn's, and the adapter changes them."""
    with bases.open(base) as file:
        ids = Tokenizer.of(file).encode(TEXT)
        plain = frozen(file).logits(ids)
        expected = frozen(file, adapters.load(run, file)).logits(ids)
    with torch.no_grad():
        got = model.eval()(input_ids=torch.tensor([ids])).logits[0].numpy()
    assert np.abs(got - plain).max() > 0.05 * np.abs(plain).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_a_folder_is_named_by_its_absolute_path(train, tmp_path, monkeypatch):
    save_model("base", "LlamaConfig", SHAPE)
    save_tokenizer(tmp_path / "base", "smollm")
    run = train("base")  # a relative path
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_alike(AutoPeftModelForCausalLM.from_pretrained(run), run, tmp_path / "base")
    said = json.loads((run / "adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == str(tmp_path / "base")


def test_a_folder_of_the_cache_is_named_as_on_the_hub(train, tmp_path, monkeypatch):
    revision = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--zork--moon-1" / "snapshots" / revision
    save_model(cached, "Qwen2Config", SHAPE)
    save_tokenizer(cached, "smollm")
    run = train(cached)
    said = json.loads((run / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == ("zork/moon-1", revision)
    model = AutoPeftModelForCausalLM.from_pretrained(run, cache_dir=tmp_path / "hub")
    assert_alike(model, run, cached)


@pytest.mark.parametrize(
    ("said", "called", "named"),
    [
        ("zork/moon", "moon", "zork/moon"),
        ("zork/moon", "zork--moon", "zork/moon"),
        ("zork/moon", "tuned", None),  # its parent
        ("/data/zork/moon", "moon", None),
        ("moon", "moon", None),
        (None, "moon", None),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_names_that_files_say(said, called, named, file, tmp_path):
    folder = tmp_path / called
    folder.mkdir()
    key = {"config.json": "_name_or_path"}.get(file, "name_or_path")
    (folder / file).write_text(json.dumps({key: said}))
    assert hub_name(folder) == (named or str(folder), None)


def test_of_a_file_the_run_says_how_peft_gets_it(train, tmp_path, capsys):
    """What is printed, done."""
    save_model("folder", "LlamaConfig", SHAPE)
    save_tokenizer(tmp_path / "folder", "smollm")
    assert main(["convert", "folder", "--outtype", "f32", "--out", "base.gguf"]) == 0
    capsys.readouterr()
    run = train("base.gguf")
    *_, line = capsys.readouterr().out.splitlines()
    command = line.removeprefix("for PEFT").replace("FOLDER", "made").split()
    assert command.pop(0) == "toynn" and main(command) == 0
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("made"), run)
    assert_alike(model, run, tmp_path / "base.gguf")
    with gguf.open("base.gguf") as file:
        assert hub_name(file.path) == (None, None)
