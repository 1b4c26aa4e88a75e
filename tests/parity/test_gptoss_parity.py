"""gpt-oss folders whose experts are blocks and scales of MXFP4, as OpenAI's are."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")

import torch
from safetensors.numpy import load_file, save_file
from test_hf_parity import GPT_OSS, IDS, assert_logits_agree, their_logits
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from toynn.engines import LlamaSeqEngine, frozen
from toynn.errors import DataError
from toynn.formats import hf

pytestmark = pytest.mark.parity

WIDE = GPT_OSS | {"hidden_size": 64, "intermediate_size": 32}


@pytest.fixture
def packed(tmp_path):
    """A model of transformers, and a folder in which its experts are packed."""
    torch.manual_seed(0)
    model = GptOssForCausalLM(GptOssConfig(**json.loads(json.dumps(WIDE)))).float().eval()
    model.save_pretrained(tmp_path / "model")
    path, rng = tmp_path / "model" / "model.safetensors", np.random.default_rng(0)
    arrays = load_file(path)
    for name in [name for name in arrays if name.endswith("_proj") and "experts" in name]:
        experts, columns, rows = arrays.pop(name).shape
        blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = rng.integers(120, 126, (experts, rows, columns // 32), np.uint8)
        arrays |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values = convert_moe_packed_tensors(
            torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32
        )
        model.get_parameter(name).data = values.contiguous()
    save_file(arrays, path, {"format": "pt"})
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    path.write_text(json.dumps(config))
    return model, tmp_path / "model"


def test_packed_experts_are_read_and_mapped(packed):
    model, folder = packed
    expected = their_logits(model)
    assert_logits_agree(LlamaSeqEngine.from_hf(folder, t_seq=13).logits(IDS), expected)
    with hf.open(folder) as base:
        assert base.tensors["blk.0.ffn_up_exps.weight"].type == "MXFP4"
        assert_logits_agree(frozen(base).logits(IDS), expected)


def test_blocks_need_their_scales(packed):
    _, folder = packed
    arrays = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    arrays[name] = arrays[name][:, :-1]
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"expected blocks \(.., G, 16\) and scales \(.., G\); got"):
        hf.open(folder)
    del arrays[name]
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"experts.down_proj: expected blocks .* and None"):
        hf.open(folder)
