"""llama.cpp as the judge: it loads what toynn writes, and computes the same logits."""

import numpy as np
import pytest
from shared import DATA

import toynn
from toynn.data.text import Corpus
from toynn.engines import GPT2Config, GPT2SeqEngine, LlamaConfig, LlamaSeqEngine, frozen
from toynn.engines.converting import convert, unlike
from toynn.evaluation import perplexity
from toynn.formats import gguf
from toynn.formats.tokenizer import Tokenizer
from toynn.generation.drawing import sample
from toynn.models.cohere2 import Cohere2Config
from toynn.models.deepseek2 import DeepSeek2Config
from toynn.models.ernie4_5moe import Ernie45MoEConfig
from toynn.models.exaone4 import Exaone4Config
from toynn.models.gemma import GemmaConfig
from toynn.models.gemma3n import Gemma3nConfig
from toynn.models.gemma4 import Gemma4Config
from toynn.models.glm4 import Glm4Config
from toynn.models.glm4moe import Glm4MoEConfig
from toynn.models.gptoss import GptOssConfig
from toynn.models.granite import GraniteConfig
from toynn.models.granitehybrid import GraniteHybridConfig
from toynn.models.granitemoe import GraniteMoEConfig
from toynn.models.lfm2 import LFM2Config
from toynn.models.lfm2moe import LFM2MoEConfig
from toynn.models.ministral3 import Ministral3Config
from toynn.models.nemotronh import NemotronHConfig
from toynn.models.olmo2 import Olmo2Config
from toynn.models.olmoe import OLMoEConfig
from toynn.models.phi3 import Phi3Config
from toynn.models.qwen3moe import Qwen3MoEConfig
from toynn.models.qwen3next import Qwen3NextConfig
from toynn.models.qwen35 import Qwen35Config
from toynn.models.qwen35moe import Qwen35MoEConfig
from toynn.models.starcoder2 import Starcoder2Config
from toynn.options import RecipeOptions

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytestmark = [pytest.mark.llama_cpp, pytest.mark.usefixtures("as_llama_cpp_divides")]

F32 = 0  # ggml's number of the type in which the cache of k and v is kept
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
)
SMALL = dict(vocab=96, d_model=64, n_heads=4, d_ff=160, n_layers=2, context=32)
SCALES = dict(embedding_scale=3.0, residual_scale=0.4, attention_scale=0.3, logit_scale=2.5)
EXPERTS = dict(n_experts=6, n_experts_used=2)
GQA = SMALL | dict(n_kv_heads=2)
SPARSE = GQA | EXPERTS | dict(n_layers=4, expert_d_ff=96)
SCALED = dict(dense_blocks=2, shared_d_ff=192, weights_scale=1.7)
SCALED |= dict(expert_groups=3, expert_groups_used=2)
LATENT = dict(n_kv_heads=4, kv_rank=32, nope_dim=24, rope_dim=8, value_dim=16)
GEMMA = GQA | dict(head_dim=32, window=9)
MAMBA = dict(attention_blocks=(1,), mamba_heads=8, mamba_groups=2, state_dim=16, conv_taps=4)
GEMMA4 = GQA | dict(head_dim=16, full_head_dim=32, rope_channels=8, window=9, local_base=20.0)
GEMMA4 |= dict(n_layers=4, windowed=(True, False, True, False), block_scales=(0.8, 1.3, 0.7, 0.9))
GEMMA4_EXPERTS = EXPERTS | dict(expert_d_ff=96, k_as_v=True, full_kv_heads=4)
GEMMA3N = GQA | dict(head_dim=16, window=9, local_base=20.0, rms_eps=0.1)
GEMMA3N |= dict(n_layers=2, windowed=(True, False))
TWO = dict(n_layers=2, windowed=(True, False), block_scales=(0.8, 1.3))
THREE = dict(n_layers=3, windowed=(True, False, False), block_scales=(0.8, 1.3, 0.7), shared_kv=1)
SHARED = dict(shared_kv=2, wide_shared=True, per_layer=32, logit_cap=2.0)
NEMOTRON = {name: size for name, size in MAMBA.items() if name != "attention_blocks"}
DELTA = dict(delta_heads=2, delta_value_heads=4, delta_dim=16, delta_value_dim=16)
CAPS = dict(score_cap=1.5, logit_cap=2.0)
YARN = dict(rope_scaling="yarn", rope_factor=4.0, original_context=512, rope_base=50.0)
YARN |= dict(yarn_magnitude=1.3)
YARN_LATENT = YARN | dict(yarn_magnitude=1 / (1 + 0.1 * np.log(YARN["rope_factor"])))
BIASES = dict(output_bias=True, mlp_bias=True)
LONGROPE = dict(
    rope_magnitude=1.2,
    short_factors=(1, 1, 1, 1, 1.5, 1.5, 2, 2),
    long_factors=(1, 1, 2, 2, 4, 8, 8, 16),
)


def judge(path, adapter=None, **how):
    default = llama_cpp.llama_model_default_params

    def as_stored():  # on AMX, the repacked products of 0.3.36 crash at shapes as small as these
        parameters = default()
        parameters.use_extra_bufts = False
        return parameters

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cpp.llama_cpp, "llama_model_default_params", as_stored)
        return llama_cpp.Llama(
            str(path),
            lora_path=adapter and str(adapter),
            n_ctx=512,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            type_k=F32,
            type_v=F32,
            flash_attn=False,
            **how,
            verbose=False,
        )


def judged_logits(path, ids, adapter=None, **how):
    model = judge(path, adapter, **how)
    model.eval([int(i) for i in ids])
    logits = np.array(model.scores[: len(ids)], np.float64)
    model.close()
    return logits


def judged_text(model, prompt, length):
    """Token ids: a prompt and the likeliest continuation, ``length`` tokens together."""
    ids = list(prompt)
    model.eval(ids)
    while len(ids) < length:
        ids.append(int(np.argmax(model.scores[len(ids) - 1])))
        model.eval(ids[-1:])
    return ids


def nmse(got, expected):
    return ((got - expected) ** 2).sum() / (expected**2).sum()


def trained(engine, config, **options):
    """An engine after five steps on random tokens, with biases and gains away from 0 and 1."""
    engine.realize_for_random_init(config, RecipeOptions(**options))
    engine.build_training_step()
    rng = np.random.default_rng(0)
    weights = engine.weights()
    for values in weights.values():
        values += rng.normal(0, 0.05, values.shape).astype(np.float32)
    engine.load_weights(weights)
    adam = toynn.AdamW.for_lora()
    for k in range(5):
        ids = rng.integers(0, config.vocab, config.context)
        engine.step(ids, None, np.roll(ids, -1), adam.hp_for_step(k), is_first=k == 0)
    return engine


MODELS = {
    "gpt2": lambda: trained(GPT2SeqEngine(), GPT2Config(**SMALL)),
    "llama": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA)),
    "llama-untied": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA), untied=True),
    "llama-wide-heads": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, head_dim=32)),
    "llama3": lambda: trained(
        LlamaSeqEngine(),
        LlamaConfig(**GQA, rope_scaling="llama3", rope_factors=(1, 1, 1, 2, 4, 8, 8, 8)),
    ),
    "llama-linear": lambda: trained(
        LlamaSeqEngine(), LlamaConfig(**GQA, rope_scaling="linear", rope_factor=2.5)
    ),
    "llama-yarn": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, **YARN)),
    "qwen3-yarn": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, **YARN, arch="qwen3")),
    "llama-lens": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, donor_d_in=24), untied=True),
    "qwen2": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, arch="qwen2"), qkv_bias=True),
    "qwen2-unbiased": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, arch="qwen2")),
    "qwen3": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, arch="qwen3", head_dim=32)),
    "smollm3": lambda: trained(
        LlamaSeqEngine(), LlamaConfig(**GQA | {"n_layers": 5}, arch="smollm3", head_dim=32)
    ),
    "granite": lambda: trained(LlamaSeqEngine(), GraniteConfig(**GQA, **SCALES)),
    "qwen3moe": lambda: trained(
        LlamaSeqEngine(), Qwen3MoEConfig(**GQA, **EXPERTS, head_dim=32), untied=True
    ),
    "olmoe": lambda: trained(
        LlamaSeqEngine(), OLMoEConfig(**GQA | {"n_kv_heads": 4}, **EXPERTS), untied=True
    ),
    "granitemoe": lambda: trained(LlamaSeqEngine(), GraniteMoEConfig(**GQA, **EXPERTS, **SCALES)),
    "granitehybrid": lambda: trained(
        LlamaSeqEngine(), GraniteHybridConfig(**GQA | {"n_layers": 3}, **MAMBA, **SCALES)
    ),
    "granitehybrid-experts": lambda: trained(
        LlamaSeqEngine(),
        GraniteHybridConfig(
            **GQA | {"n_layers": 3}, **MAMBA, **EXPERTS, **SCALES, shared_d_ff=64, rotated=True
        ),
        untied=True,
    ),
    "granitehybrid-attention": lambda: trained(
        LlamaSeqEngine(), GraniteHybridConfig(**GQA, **MAMBA | {"attention_blocks": (0, 1)})
    ),
    "granitehybrid-attention-experts": lambda: trained(
        LlamaSeqEngine(),
        GraniteHybridConfig(
            **GQA,
            **MAMBA | EXPERTS | SCALES | {"attention_blocks": (0, 1)},
            shared_d_ff=64,
            rotated=True,
        ),
    ),
    "nemotron_h": lambda: trained(
        LlamaSeqEngine(), NemotronHConfig(**GQA | {"n_layers": 4}, **NEMOTRON, kinds="M-*-")
    ),
    "nemotron_h_moe": lambda: trained(
        LlamaSeqEngine(),
        NemotronHConfig(
            **GQA | {"n_layers": 5},
            **NEMOTRON,
            kinds="ME*ME",
            arch="nemotron_h_moe",
            n_experts=8,
            n_experts_used=2,
            expert_d_ff=64,
            shared_d_ff=96,
            latent=32,
            weights_scale=1.7,
        ),
        untied=True,
    ),
    "granitemoe-shared": lambda: trained(
        LlamaSeqEngine(), GraniteMoEConfig(**GQA, **EXPERTS, **SCALES, shared_d_ff=32)
    ),
    "gpt-oss": lambda: trained(
        LlamaSeqEngine(),
        GptOssConfig(**GQA | {"n_layers": 3, "d_ff": 64}, **EXPERTS, **YARN, head_dim=32, window=9),
        untied=True,
    ),
    "olmo2": lambda: trained(LlamaSeqEngine(), Olmo2Config(**GQA), untied=True),
    "phi3": lambda: trained(LlamaSeqEngine(), Phi3Config(**GQA), untied=True),
    "phi3-part": lambda: trained(LlamaSeqEngine(), Phi3Config(**GQA, rope_channels=12)),
    "phi3-long": lambda: trained(  # llama.cpp has a context of 512 here, and so long factors
        LlamaSeqEngine(), Phi3Config(**GQA, **LONGROPE, original_context=31)
    ),
    "phi3-short": lambda: trained(
        LlamaSeqEngine(), Phi3Config(**GQA, **LONGROPE, original_context=1000)
    ),
    "lfm2": lambda: trained(
        LlamaSeqEngine(), LFM2Config(**GQA | {"n_layers": 4}, attention_blocks=(1, 3))
    ),
    "lfm2-taps": lambda: trained(
        LlamaSeqEngine(), LFM2Config(**GQA, attention_blocks=(1,), conv_taps=4)
    ),
    "lfm2moe": lambda: trained(
        LlamaSeqEngine(), LFM2MoEConfig(**SPARSE, attention_blocks=(1, 3), dense_blocks=2)
    ),
    "glm4moe": lambda: trained(
        LlamaSeqEngine(),
        Glm4MoEConfig(**SPARSE, **SCALED, head_dim=32, rope_channels=16, head_norms=True),
        untied=True,
    ),
    "glm4moe-plain": lambda: trained(
        LlamaSeqEngine(), Glm4MoEConfig(**GQA, **EXPERTS, normalized=False), qkv_bias=True
    ),
    "deepseek2": lambda: trained(
        LlamaSeqEngine(), DeepSeek2Config(**SPARSE | LATENT, **SCALED, q_rank=40), untied=True
    ),
    "deepseek2-glm": lambda: trained(
        LlamaSeqEngine(),
        DeepSeek2Config(
            **SPARSE | LATENT | {"n_layers": 3, "rms_eps": 1e-5, "latent_eps": 1e-5},
            **{"dense_blocks": 1, "shared_d_ff": 96, "weights_scale": 1.8, "q_rank": 40},
        ),
        untied=True,
    ),
    "deepseek2-yarn": lambda: trained(
        LlamaSeqEngine(),
        DeepSeek2Config(**SPARSE | LATENT, **SCALED, q_rank=40, **YARN_LATENT, yarn_scores=1.0),
    ),
    "deepseek2-v2": lambda: trained(
        LlamaSeqEngine(),
        DeepSeek2Config(
            **SPARSE | LATENT | YARN_LATENT,
            **{"dense_blocks": 1, "shared_d_ff": 192, "weights_scale": 1.7, "normalized": False},
            q_rank=40,
            yarn_scores=1.0,
            softmax=True,
        ),
    ),
    "ernie4_5-moe": lambda: trained(
        LlamaSeqEngine(), Ernie45MoEConfig(**SPARSE, dense_blocks=2, shared_d_ff=192)
    ),
    "ernie4_5-moe-none": lambda: trained(
        LlamaSeqEngine(), Ernie45MoEConfig(**GQA, **EXPERTS, shared_d_ff=0), untied=True
    ),
    "qwen35": lambda: trained(
        LlamaSeqEngine(),
        Qwen35Config(**GQA | {"n_layers": 4}, **DELTA, attention_every=2, rope_channels=8),
        untied=True,
    ),
    "qwen35-usual": lambda: trained(LlamaSeqEngine(), Qwen35Config(**GQA, attention_every=2)),
    "qwen35moe": lambda: trained(
        LlamaSeqEngine(),
        Qwen35MoEConfig(
            **SPARSE | {"n_layers": 2}, **DELTA, attention_every=2, rope_channels=8, shared_d_ff=64
        ),
        untied=True,
    ),
    "qwen3next": lambda: trained(
        LlamaSeqEngine(),
        Qwen3NextConfig(
            **SPARSE | {"n_layers": 2}, **DELTA, attention_every=2, rope_channels=8, shared_d_ff=64
        ),
        untied=True,
    ),
    "gemma2": lambda: trained(LlamaSeqEngine(), GemmaConfig(**GEMMA, **CAPS, arch="gemma2")),
    "gemma3": lambda: trained(
        LlamaSeqEngine(),
        GemmaConfig(**GEMMA | {"n_layers": 7}, rope_base=500.0, local_base=50.0, rope_divisor=8.0),
    ),
    "gemma3-untied": lambda: trained(LlamaSeqEngine(), GemmaConfig(**GEMMA), untied=True),
    "gemma3n": lambda: trained(LlamaSeqEngine(), Gemma3nConfig(**GEMMA3N)),
    "gemma4": lambda: trained(LlamaSeqEngine(), Gemma4Config(**GEMMA4, **SHARED)),
    "gemma4-three": lambda: trained(
        LlamaSeqEngine(), Gemma4Config(**GEMMA4 | SHARED | THREE), untied=True
    ),
    "gemma4-moe": lambda: trained(
        LlamaSeqEngine(),
        Gemma4Config(**GEMMA4 | TWO, **GEMMA4_EXPERTS),
    ),
    "gemma4-apart": lambda: trained(
        LlamaSeqEngine(),
        Gemma4Config(**GEMMA4 | TWO, **GEMMA4_EXPERTS, experts_apart=True),
    ),
    "granite-biases": lambda: trained(
        LlamaSeqEngine(), GraniteConfig(**GQA, **BIASES), qkv_bias=True
    ),
    "ministral3": lambda: trained(
        LlamaSeqEngine(),
        Ministral3Config(**GQA, **YARN | {"original_context": 7}, query_growth=0.3),
    ),
    "seed_oss": lambda: trained(
        LlamaSeqEngine(),
        LlamaConfig(**GQA, arch="seed_oss", head_dim=32),
        qkv_bias=True,
        untied=True,
    ),
    "ernie4_5": lambda: trained(LlamaSeqEngine(), LlamaConfig(**GQA, arch="ernie4_5", head_dim=32)),
    "olmo3": lambda: trained(
        LlamaSeqEngine(),
        Olmo2Config(**GQA | {"n_layers": 5}, **YARN, window=9),
        untied=True,
    ),
    "hunyuan-dense": lambda: trained(
        LlamaSeqEngine(), LlamaConfig(**GQA, arch="hunyuan-dense", head_dim=32)
    ),
    "exaone4": lambda: trained(
        LlamaSeqEngine(),
        Exaone4Config(**GQA, rope_scaling="llama3", rope_factors=(1, 1, 1, 2, 4, 8, 8, 8)),
    ),
    "starcoder2": lambda: trained(
        LlamaSeqEngine(), Starcoder2Config(**GQA, **BIASES, window=32), qkv_bias=True
    ),
    "cohere2": lambda: trained(
        LlamaSeqEngine(), Cohere2Config(**GQA | {"n_layers": 5}, window=9, logit_scale=0.4)
    ),
    "glm4": lambda: trained(
        LlamaSeqEngine(), Glm4Config(**GQA, head_dim=32, rope_channels=16), qkv_bias=True
    ),
    "granite-plain": lambda: trained(LlamaSeqEngine(), GraniteConfig(**GQA), untied=True),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


def test_float32_files_give_the_same_logits(model, tmp_path):
    path = tmp_path / "model.gguf"
    model.export_gguf(path)
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    # llama.cpp looks GELU up in a table of float16; Gemma is measured with up to seven blocks.
    gelu = isinstance(model, GPT2SeqEngine) or isinstance(model.config, Starcoder2Config)
    limit = 1e-7 if gelu else 1e-8
    limit = 1e-6 if isinstance(model.config, GemmaConfig | Gemma3nConfig | Gemma4Config) else limit
    assert nmse(model.logits(ids), judged_logits(path, ids)) < limit


def test_windows_of_an_exaone_by_its_64_blocks(tmp_path):
    sizes = GQA | {"n_layers": 64, "d_ff": 32}
    model = trained(LlamaSeqEngine(), Exaone4Config(**sizes, window=9))
    model.export_gguf(tmp_path / "model.gguf")
    assert unlike(tmp_path / "model.gguf") == []
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    assert nmse(model.logits(ids), judged_logits(tmp_path / "model.gguf", ids)) < 1e-8


def test_a_gemma3n_that_shares_keys_and_values_behind_its_20th_block(tmp_path):
    """Cutoffs magnify GELU's table, block by block; those of another block give 0.1 and more."""
    sizes = GEMMA3N | {"n_layers": 22, "shared_kv": 2, "windowed": ()}
    sizes |= {"d_model": 32, "n_heads": 2, "n_kv_heads": 1, "d_ff": 32}
    model = trained(LlamaSeqEngine(), Gemma3nConfig(**sizes))
    model.export_gguf(tmp_path / "model.gguf")
    assert "n - 1, not n, in the standard deviation" in unlike(tmp_path / "model.gguf")[0]
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    assert nmse(model.logits(ids), judged_logits(tmp_path / "model.gguf", ids)) < 1e-5


@pytest.mark.parametrize("version", [{}, {"softmax": True, "normalized": False}])
def test_a_deepseek_without_latents_of_queries_by_its_27_blocks(tmp_path, version):
    sizes = SMALL | EXPERTS | LATENT | {"n_layers": 27, "d_ff": 32, "d_model": 32}
    model = trained(LlamaSeqEngine(), DeepSeek2Config(**sizes, **version))
    model.export_gguf(tmp_path / "model.gguf")
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    assert nmse(model.logits(ids), judged_logits(tmp_path / "model.gguf", ids)) < 1e-8


def test_the_tokenizer_of_a_gemma4(tmp_path):
    """BPE that merges across spaces, and spells bytes without a token; also as a folder."""
    letters = [chr(c) for c in range(97, 123)] + ["\u2581", "\n", "\n\n", "!", "\u00e9"]
    pairs = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("e", "r"), ("\u2581the", "\u2581")]
    pairs += [("\n", "\n"), ("\u2581the\u2581", "c")]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)] + letters
    tokens += [a + b for a, b in pairs if a + b not in tokens]
    types = np.array([3, 3, 3, 2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 262), np.int32)
    carried = {
        "model": ("gemma4", "STRING"),
        "tokens": (tokens, "[STRING]"),
        "token_type": (types, "[INT32]"),
        "scores": (np.zeros(len(tokens), np.float32), "[FLOAT32]"),
        "merges": ([" ".join(pair) for pair in pairs], "[STRING]"),
    }
    named = enumerate(("padding", "eos", "bos", "unknown"))
    carried |= {f"{name}_token_id": (id, "UINT32") for id, name in named}
    engine = LlamaSeqEngine()
    cfg = Gemma4Config(**GEMMA4 | TWO | {"vocab": len(tokens)})
    engine.realize_for_random_init(cfg, RecipeOptions())
    engine._carried = {f"tokenizer.ggml.{key}": value for key, value in carried.items()}
    engine.export_gguf(tmp_path / "model.gguf")
    ours = Tokenizer.from_gguf(tmp_path / "model.gguf")
    engine.export_hf(tmp_path / "folder")
    folder = Tokenizer.of(tmp_path / "folder")
    theirs = llama_cpp.Llama(str(tmp_path / "model.gguf"), vocab_only=True, verbose=False)
    for text in (
        "the cat",
        " the  catthe c",
        "a\n\n\nthe\n",
        "\u00e9 \u4e2d!",
        "other\n the c",
        "<turn|>",
    ):
        expected = theirs.tokenize(text.encode(), add_bos=True, special=False)
        assert ours.encode(text) == folder.encode(text) == expected, text
        assert ours.decode(expected) == text
    assert ours.encode("<|turn>the<turn|>", parse_special=True)[1::2] == [4, 5]
    assert {1, 5} <= ours.eog


@pytest.mark.parametrize("config", [Olmo2Config, OLMoEConfig, GptOssConfig])
def test_a_tied_head_that_llama_cpp_wants_for_itself(config, tmp_path):
    """Exported, and converted from a folder."""
    sizes = GQA | {"n_kv_heads": 4, "d_ff": 64}
    model = trained(LlamaSeqEngine(), config(**sizes))
    model.export_gguf(tmp_path / "a.gguf")
    model.export_hf(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "b.gguf", "f32")
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    for name in ("a.gguf", "b.gguf"):
        assert nmse(model.logits(ids), judged_logits(tmp_path / name, ids)) < 1e-8


@pytest.mark.parametrize(("config", "reads"), [(LlamaConfig, False), (Ministral3Config, True)])
def test_betas_of_yarn(config, reads, tmp_path):
    """Those of a llama's file llama.cpp does not read: they are given to it, as convert says."""
    betas = {"beta_fast": 1.5, "beta_slow": 0.5}
    model = trained(LlamaSeqEngine(), config(**GQA, **YARN | {"original_context": 40}, **betas))
    model.export_gguf(tmp_path / "model.gguf")
    assert [each[:35] for each in unlike(tmp_path / "model.gguf")] == [
        "llama.cpp does not read YaRN's beta"
    ] * (not reads)
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    flags = {f"yarn_{name}": -1.0 if reads else beta for name, beta in betas.items()}
    expected = judged_logits(tmp_path / "model.gguf", ids, **flags)
    assert nmse(LlamaSeqEngine.from_gguf(tmp_path / "model.gguf").logits(ids), expected) < 1e-8


def rewritten(path, out, changes):
    """Write a file again with other hyper-parameters; None takes one away."""
    with gguf.open(path) as file:
        kinds = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {name: (np.array(file[name]), "f32") for name in file}
    kinds |= {key: (value, "FLOAT32") for key, value in changes.items()}
    gguf.write(out, {key: kind for key, kind in kinds.items() if kind[0] is not None}, tensors)
    return out


@pytest.mark.parametrize("log", [1.0, 0.7])
def test_yarn_as_llama_cpp_writes_it_for_a_ministral(log, tmp_path):
    """RoPE's magnitude by yarn_log_multiplier, config.json's mscale_all_dim: 1 as released."""
    MODELS["ministral3"]().export_gguf(tmp_path / "a.gguf")
    keys = {"attn_factor": None, "yarn_log_multiplier": log}
    changes = {f"mistral3.rope.scaling.{key}": value for key, value in keys.items()}
    path = rewritten(tmp_path / "a.gguf", tmp_path / "b.gguf", changes)
    model = LlamaSeqEngine.from_gguf(path)
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    assert nmse(model.logits(ids), judged_logits(path, ids)) < 1e-8
    assert nmse(model.logits(ids), judged_logits(tmp_path / "a.gguf", ids)) > 1e-3


def test_yarn_as_llama_cpp_writes_it_for_an_olmo3(tmp_path):
    """config.json's attention_factor, which it does not read where YaRN has its usual one."""
    MODELS["olmo3"]().export_gguf(tmp_path / "a.gguf")
    usual = 1 + 0.1 * np.log(YARN["rope_factor"])
    keys = {"attn_factor": None, "yarn_attn_factor": float(usual)}
    changes = {f"olmo2.rope.scaling.{key}": value for key, value in keys.items()}
    path = rewritten(tmp_path / "a.gguf", tmp_path / "b.gguf", changes)
    model = LlamaSeqEngine.from_gguf(path)
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    assert nmse(model.logits(ids), judged_logits(path, ids)) < 1e-8


def test_the_gate_of_a_shared_expert_may_be_a_vector(tmp_path):
    """As llama.cpp's converter writes it."""
    MODELS["qwen35moe"]().export_gguf(tmp_path / "a.gguf")
    with gguf.open(tmp_path / "a.gguf") as file:
        kinds = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {name: (np.array(file[name]).squeeze(), "f32") for name in file}
    del kinds["qwen35moe.feed_forward_length"]  # which it does not write
    assert tensors["blk.0.ffn_gate_inp_shexp.weight"][0].ndim == 1
    gguf.write(tmp_path / "b.gguf", kinds, tensors)
    ids = np.random.default_rng(1).integers(0, 96, 32)
    with gguf.open(tmp_path / "b.gguf") as file:
        logits = frozen(file).logits(ids)
    assert nmse(logits, judged_logits(tmp_path / "b.gguf", ids)) < 1e-8


@pytest.mark.parametrize(("outtype", "limit"), [("f16", 1e-5), ("bf16", 1e-3), ("q8_0", 5e-3)])
def test_rounded_files_load(model, outtype, limit, tmp_path):
    """llama.cpp rounds or quantizes the activations too, so the limits are those of the types."""
    path = tmp_path / "model.gguf"
    model.export_gguf(path, outtype)
    ids = np.random.default_rng(1).integers(0, model.vocab, model.context)
    expected = judged_logits(path, ids)
    got = [model.logits(ids), type(model).from_gguf(path).logits(ids)]
    # Where rounding chooses another expert all differs, and where a state gives next to nothing,
    # which is normalised.
    if hasattr(model.config, "n_experts") or isinstance(model.config, Qwen35Config):
        errors = np.max([np.linalg.norm(logits - expected, axis=1) for logits in got], axis=0)
        rows = errors <= np.median(errors)
        got, expected = [logits[rows] for logits in got], expected[rows]
    assert nmse(got[0], expected) < limit
    assert nmse(got[1], expected) < limit


@pytest.fixture(scope="module")
def stories():
    path = DATA / "stories260K.gguf"
    if not path.exists():
        pytest.skip("stories260K.gguf is not at ../shared/data")
    return path


def test_a_pretrained_model_continues_word_for_word(stories):
    model = judge(stories)
    prompt = model.tokenize(b"Once upon a time", add_bos=True)
    story = judged_text(model, prompt, 500)
    assert model.detokenize(story).decode().strip().startswith(STORY)
    with gguf.open(stories) as file:
        engine = frozen(file)
    assert nmse(engine.logits(story), judged_logits(stories, story)) < 1e-8
    assert sample(engine, prompt, 500 - len(prompt), temperature=0) == story[len(prompt) :]


@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_a_tokenizer_is_carried_over(stories, outtype, tmp_path):
    path = tmp_path / "again.gguf"
    LlamaSeqEngine.from_gguf(stories, t_seq=8).export_gguf(path, outtype)
    ours, theirs = judge(path), judge(stories)
    ids = theirs.tokenize(STORY.encode())
    assert ours.tokenize(STORY.encode()) == ids
    assert ours.detokenize(ids) == theirs.detokenize(ids)
    assert ours.token_bos() == theirs.token_bos()
    limit = 1e-8 if outtype == "f32" else 1e-2
    assert nmse(judged_logits(path, ids), judged_logits(stories, ids)) < limit


def test_perplexity_of_its_logits_is_ours():
    """llama-perplexity's sum, over llama.cpp's own logits: second halves of windows, after BOS."""
    path, length = DATA / "stories260K.gguf", 128
    if not path.exists():
        pytest.skip("stories260K.gguf is not at ../shared/data")
    with gguf.open(path) as file:
        engine, tokenizer = frozen(file), toynn.formats.tokenizer.Tokenizer.from_gguf(file)
    text = Corpus.embedded().text.decode()[:1600]
    ids = np.concatenate([[tokenizer.bos], tokenizer.encode_array(text)]).astype(np.int32)
    nll = []
    for begin in range(0, len(ids) - length + 1, length):
        window = ids[begin : begin + length].copy()
        answers = window[1:].copy()
        window[0] = tokenizer.bos
        logits = judged_logits(path, window)[length // 2 : -1]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        nll += list(-np.log(p[np.arange(len(p)), answers[length // 2 :]]))
    assert len(nll) > 300
    ours = perplexity(engine, ids, length, tokenizer.bos).second_halves
    assert ours.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-4)
