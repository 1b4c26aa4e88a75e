"""Kin of Llama in files of their own: what files and folders say that they do not compute."""

import json

import numpy as np
import pytest
from llamas import SCALES, config, make

from toynn.engines import LlamaSeqEngine
from toynn.errors import ConfigError, DataError, GGUFError
from toynn.formats import gguf, hf

FOLDERS = {
    "interval": ("smollm3", dict(no_rope_layers=None, no_rope_layer_interval=3), "interval must"),
    "layers": ("smollm3", dict(no_rope_layers=[1, 1, 0, 1, 1]), "0 in every fourth layer"),
    "few layers": ("smollm3", dict(no_rope_layers=[1, 1, 1, 0]), "0 in every fourth layer"),
    "no list": ("smollm3", dict(no_rope_layers=3), "0 in every fourth layer; got 3"),
    "windows": ("smollm3", dict(layer_types=["sliding_attention"] * 5), "layer_types must be"),
    "window": ("smollm3", dict(use_sliding_window=True), "use_sliding_window must be False"),
    "base": ("smollm3", dict(rope_theta=None, rope_parameters=None), "rope_theta is missing"),
    "activation": ("granite", dict(hidden_act="gelu"), "hidden_act must be 'silu'; got 'gelu'"),
    "scale": ("granite", dict(residual_multiplier=0), "residual_multiplier must be a number > 0"),
    "text": ("granite", dict(logits_scaling="2"), "logits_scaling must be a number > 0"),
    "soft cap": ("granite", dict(logit_softcapping=30.0), "logit_softcapping = 30.0 is not known"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_refused_by_name(name, tmp_path):
    kind, changes, message = FOLDERS[name]
    make(kind).engine.export_hf(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DataError, match=message):
        hf.open(tmp_path / "model")


FILES = {
    "scale": ("granite", "granite.attention.scale", 0.0, r"attention\.scale must be a number > 0"),
    "kind": ("granite", "granite.logit_scale", 2, r"logit_scale must be a number > 0; got 2"),
    "unknown": ("smollm3", "smollm3.residual_scale", 0.5, r"smollm3\.residual_scale = 0\.5 is not"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_refused_by_name(name, tmp_path):
    kind, key, value, message = FILES[name]
    make(kind).engine.export_gguf(tmp_path / "model.gguf")
    with gguf.open(tmp_path / "model.gguf") as file:
        metadata = {k: (v, file.types[k]) for k, v in file.metadata.items()}
        tensors = {k: (np.array(file[k]), "f32") for k in file}
    metadata[key] = (value, "FLOAT32" if isinstance(value, float) else "UINT32")
    gguf.write(tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises(GGUFError, match=message):
        LlamaSeqEngine.from_gguf(tmp_path / "bad.gguf")


def test_scales_of_a_granite():
    assert config("granite").attention_scale == pytest.approx(0.5)  # heads of 4
    assert config("granite", **SCALES).attention_scale == 0.3
    with pytest.raises(ConfigError, match="GraniteConfig: logit_scale must be a number above 0"):
        config("granite", logit_scale=0.0)
