"""llama.cpp with --lora, the judge of adapters: the logits of the fused model in toynn."""

import numpy as np
import pytest
from some_adapters import RANKS, draw, matrices
from test_llama_cpp import DATA, MODELS, judge, judged_logits, judged_text, nmse

from toynn.engines import SequenceEngine, frozen
from toynn.errors import AdapterError
from toynn.evaluation import divergence
from toynn.formats import adapters, gguf
from toynn.formats.adapters import LORA_A, LORA_B, Adapter
from toynn.formats.fuse import fuse
from toynn.generation.drawing import sample

pytestmark = [pytest.mark.llama_cpp, pytest.mark.usefixtures("as_llama_cpp_divides")]

ADAPTERS = {
    "all": {},
    "rslora": {"use_rslora": True},
    "ranks": {"ranks": RANKS},
    "rslora-ranks": {"ranks": RANKS, "use_rslora": True},
    "no-alpha": {"ranks": RANKS, "alpha": 0.0},
}
LIMITS = {
    "gpt2": 1e-6,
    "gemma2": 1e-6,
    "gemma3": 1e-6,
    "gemma3n": 1e-6,
    "gemma4": 1e-6,
    "starcoder2": 1e-6,
}  # llama.cpp looks GELU up in a table of float16
LIMIT = 1e-10


BASES = ["stories", "gpt2", "qwen2", "qwen3", "llama-untied", "smollm3", "granite"]
BASES += ["qwen3moe", "olmoe", "granitemoe", "gpt-oss", "granitehybrid", "granitehybrid-experts"]
BASES += ["granitehybrid-attention", "granitehybrid-attention-experts"]
BASES += ["nemotron_h", "nemotron_h_moe"]
BASES += ["ministral3", "seed_oss", "ernie4_5", "olmo3", "hunyuan-dense", "exaone4", "cohere2"]
BASES += ["starcoder2", "glm4", "granite-biases"]
BASES += [
    "deepseek2",
    "deepseek2-v2",
    "deepseek2-glm",
    "lfm2moe",
    "glm4moe",
    "ernie4_5-moe",
    "qwen35moe",
    "qwen3next",
]
BASES += ["olmo2", "phi3", "phi3-short", "lfm2", "qwen35", "gemma2", "gemma3"]
BASES += ["gemma4-three", "gemma4-moe", "gemma4-apart", "gemma3n"]


def adapted(base):
    """The matrices that llama.cpp adapts: of a deepseek2's attention one, as forms.py says.

    Of Gemma 4's experts it adapts one of two as PEFT does.
    """
    names = matrices(base)
    latent = base.architecture == "deepseek2"
    names = [n for n in names if f"{n.removesuffix('weight')}scale" not in base.tensors]
    return [n for n in names if not latent or "attn_" not in n or "output" in n]


def test_an_adapter_that_llama_cpp_would_not_apply_is_refused(tmp_path):
    MODELS["deepseek2"]().export_gguf(tmp_path / "base.gguf")
    with gguf.open(tmp_path / "base.gguf") as base:
        refused = set(matrices(base)) - set(adapted(base))
        assert {name.split(".")[2] for name in refused} == {
            *("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b")
        }
        for name in refused:
            with pytest.raises(AdapterError, match=rf"{name}, and does not apply it: .*targets o,"):
                adapters.write_gguf(tmp_path / "a.gguf", draw(base, [name]))


@pytest.fixture(scope="module", params=BASES)
def base(request, tmp_path_factory):
    path = DATA / "stories260K.gguf"
    if request.param != "stories":
        path = tmp_path_factory.mktemp("base") / "base.gguf"
        MODELS[request.param]().export_gguf(path)
    elif not path.exists():
        pytest.skip("stories260K.gguf is not at ../shared/data")
    with gguf.open(path) as file:
        yield file


def test_the_divergence_of_its_logits_is_ours(tmp_path):
    """llama-perplexity --kl-divergence: an adapter beside its base, over llama.cpp's own logits."""
    path, length = DATA / "stories260K.gguf", 64
    if not path.exists():
        pytest.skip("stories260K.gguf is not at ../shared/data")
    with gguf.open(path) as file:
        adapter = draw(file)
        adapters.write_gguf(tmp_path / "adapter.gguf", adapter)
        base, engine = frozen(file), frozen(file, adapter)
    ids = np.random.default_rng(3).integers(3, engine.vocab, 2 * length).astype(np.int32)
    ours = divergence(engine, base, ids, length)
    logs = []
    for lora in (tmp_path / "adapter.gguf", None):
        parts = [judged_logits(path, window, lora) for window in ids.reshape(2, length)]
        rows = np.concatenate([part[length // 2 : -1] for part in parts])
        logs.append(rows - np.log(np.exp(rows).sum(1, keepdims=True)))
    log_q, log_p = logs
    kl = (np.exp(log_p) * (log_p - log_q)).sum(1)
    assert ours.mean == pytest.approx(kl.mean(), rel=1e-4) and ours.mean > 0.01
    assert ours.largest == pytest.approx(kl.max(), rel=1e-4)
    assert ours.same_top == (log_q.argmax(1) == log_p.argmax(1)).mean()


def test_an_adapter_that_llama_cpp_would_add_behind_a_factor(tmp_path):
    """Of Gemma 4's experts, whose results are multiplied; and of a matrix without adapters."""
    for kind, part, why in (
        ("gemma4-moe", "blk.0.ffn_down_exps", r"by blk\.0\.ffn_down_exps\.scale"),
        (
            "gemma4-three",
            "per_layer_model_proj",
            "adapter of per_layer_model_proj.weight, and does not",
        ),
    ):
        MODELS[kind]().export_gguf(tmp_path / f"{kind}.gguf")
        with gguf.open(tmp_path / f"{kind}.gguf") as base:
            adapter = draw(base, [f"{part}.weight"])
            with pytest.raises(AdapterError, match=why):
                adapters.write_gguf(tmp_path / "adapter.gguf", adapter, base)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_fused_model_is_the_model_with_the_adapter(base, kind, tmp_path):
    adapter = draw(base, adapted(base), **ADAPTERS[kind])
    adapters.write_gguf(tmp_path / "adapter.gguf", adapter)
    fuse(base, adapter, tmp_path / "fused.gguf")
    engine = SequenceEngine.from_gguf(tmp_path / "fused.gguf", t_seq=32)
    ids = np.random.default_rng(1).integers(0, engine.vocab, 32)
    expected = judged_logits(base.path, ids, tmp_path / "adapter.gguf")
    assert nmse(judged_logits(base.path, ids), expected) > 0.01  # the adapter changes much
    assert nmse(engine.logits(ids), expected) < LIMITS.get(base.architecture, LIMIT)


def test_the_likeliest_text_is_the_same(base, tmp_path):
    adapter = draw(base, adapted(base), **ADAPTERS["rslora-ranks"])
    adapters.write_gguf(tmp_path / "adapter.gguf", adapter)
    prompt = [1, 5, 9, 2, 7]
    expected = judged_text(judge(base.path, tmp_path / "adapter.gguf"), prompt, 30)
    assert sample(frozen(base, adapter), prompt, 25, temperature=0) == expected[5:]


def test_adapters_of_the_table_and_the_head(tmp_path):
    MODELS["llama-untied"]().export_gguf(tmp_path / "base.gguf")
    with gguf.open(tmp_path / "base.gguf") as base:
        adapter = draw(base, [*matrices(base), "token_embd.weight", "output.weight"])
        adapters.write_gguf(tmp_path / "adapter.gguf", adapter)
        fuse(base, adapter, tmp_path / "fused.gguf")
    engine = SequenceEngine.from_gguf(tmp_path / "fused.gguf", t_seq=32)
    ids = np.random.default_rng(1).integers(0, engine.vocab, 32)
    expected = judged_logits(tmp_path / "base.gguf", ids, tmp_path / "adapter.gguf")
    assert nmse(engine.logits(ids), expected) < LIMIT
    with gguf.open(tmp_path / "base.gguf") as base:
        assert nmse(frozen(base, adapter).logits(ids), expected) < LIMIT


def test_a_table_and_a_head_that_are_one_are_two_when_they_are_fused(tmp_path):
    MODELS["llama"]().export_gguf(tmp_path / "base.gguf")
    with gguf.open(tmp_path / "base.gguf") as base:
        assert "output.weight" not in base
        parts = {}
        for seed, part in enumerate(("token_embd.weight", "output.weight")):
            a, b = np.random.default_rng(seed).normal(0, 0.1, (2, 4, 1024)).astype(np.float32)
            rows, columns = base.tensors["token_embd.weight"].shape
            sides = (a[:, :columns], b[:, :rows].T)
            if part == "token_embd.weight":
                sides = (a[:, :rows].T, b[:, :columns].T)
            parts |= {
                f"{part}{suffix}": np.ascontiguousarray(side)
                for suffix, side in zip((LORA_A, LORA_B), sides, strict=True)
            }
        adapter = Adapter("llama", 8.0, parts)
        fuse(base, adapter, tmp_path / "fused.gguf")
        engine = frozen(base, adapter)
        ids = np.random.default_rng(1).integers(0, engine.vocab, 32)
        assert nmse(engine.logits(ids), judged_logits(tmp_path / "fused.gguf", ids)) < LIMIT
        assert nmse(engine.logits(ids), frozen(base).logits(ids)) > 0.01


def test_quantized_bases(tmp_path):
    """llama.cpp quantizes the activations too: the limit is that of q8_0."""
    base = DATA / "stories260K-q8_0.gguf"
    if not base.exists():
        pytest.skip("stories260K-q8_0.gguf is not at ../shared/data")
    with gguf.open(base) as file:
        adapter = draw(file)
        adapters.write_gguf(tmp_path / "adapter.gguf", adapter)
        fuse(file, adapter, tmp_path / "fused.gguf")
        fuse(file, adapter, tmp_path / "fused-f32.gguf", outtype="f32")
    ids = np.random.default_rng(1).integers(0, 512, 32)
    expected = judged_logits(base, ids, tmp_path / "adapter.gguf")
    for name in ("fused.gguf", "fused-f32.gguf"):
        assert nmse(judged_logits(tmp_path / name, ids), expected) < 1e-2
