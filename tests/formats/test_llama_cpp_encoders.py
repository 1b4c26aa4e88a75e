"""Encoders that toynn writes, in llama.cpp: the same vectors of texts, the same scores of pairs."""

import json

import numpy as np
import pytest
from small_encoders import WORDS, with_words, written

import toynn
from toynn.engines.encoder import Encoder, Task
from toynn.formats.sentences import Sentences

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytestmark = pytest.mark.llama_cpp

QUIET = llama_cpp.llama_log_callback(lambda *_: None)
WIDE = {"d_model": 64, "d_ff": 96, "context": 64}


def judged(path, texts, width):
    """Return what llama.cpp's pooling gives of each text: a vector, or the scores of a pair."""
    llama_cpp.llama_log_set(QUIET, None)
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_extra_bufts = False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, f"llama.cpp cannot load {path}"
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 64
    options.n_threads = options.n_threads_batch = 1
    options.embeddings, options.flash_attn_type = True, llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.type_k = options.type_v = 0  # float32
    context, found = llama_cpp.llama_init_from_model(model, options), []
    for ids in texts:
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for k, id in enumerate(ids):
            batch.token[k], batch.pos[k], batch.logits[k] = id, k, True
            batch.n_seq_id[k], batch.seq_id[k][0] = 1, 0
        assert llama_cpp.llama_decode(context, batch) == 0
        found.append(np.array(llama_cpp.llama_get_embeddings_seq(context, 0)[:width], np.float64))
        llama_cpp.llama_batch_free(batch)
        if memory := llama_cpp.llama_get_memory(context):  # of a decoder
            llama_cpp.llama_memory_clear(memory, True)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.array(found)


def with_unigrams(path, **shape):
    """Write a folder of XLM-R, whose tokens are Unigram's; return its path."""
    pairs = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581a", -1.0)]
    pairs += [(f"\u2581{k}", -2.0) for k in range(len(WORDS) - len(pairs))]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pairs, unk_id=3))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.add_special_tokens([name for name, _ in pairs[:4]])
    written(path, "xlm-roberta", vocab=len(WORDS), **shape)
    made.save(str(path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    return path


def texts():
    draw = np.random.default_rng(3).integers
    return [[2, *draw(5, len(WORDS), n).tolist(), 3] for n in (1, 4, 11, 30, 60)]


def cosines(a, b):
    return np.sum(a * b, 1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("how", ["mean", "cls"])
@pytest.mark.parametrize("arch", ["bert", "roberta", "xlm-roberta", "distilbert", "modern-bert"])
def test_vectors(arch, how, tmp_path):
    if arch == "xlm-roberta":
        folder = with_unigrams(tmp_path / "m", **WIDE)
    else:
        folder = with_words(tmp_path / "m", arch=arch, **WIDE)
    encoder = Encoder.load(folder)
    encoder.sentences = Sentences(how, normalize=False)
    encoder.export_gguf(tmp_path / "a.gguf")
    expected = judged(tmp_path / "a.gguf", texts(), WIDE["d_model"])
    assert cosines(encoder.encode(texts()), expected).min() > 0.9999


@pytest.mark.parametrize(
    ("arch", "more"),
    [
        ("bert", {}),
        ("roberta", {}),
        *(("modern-bert", {"pooling": how}) for how in ("cls", "mean")),
    ],
)
def test_scores_of_a_reranker(arch, more, tmp_path):
    task = Task("sequence", 1, "binary")
    encoder = Encoder.load(with_words(tmp_path / "m", arch=arch, **WIDE, **more), task)
    encoder.export_gguf(tmp_path / "a.gguf")
    expected = judged(tmp_path / "a.gguf", texts(), 1)
    np.testing.assert_allclose(encoder.outputs(texts()).reshape(-1, 1), expected, atol=1e-4)


def test_a_decoder_s_last_row_and_its_head(tmp_path):
    """llama.cpp gives a Qwen3's probabilities, not its scores."""
    cfg = toynn.LlamaConfig(256, 64, 4, 2, 96, 2, 64, arch="qwen3")
    engine = toynn.LlamaSeqEngine()
    engine.realize_for_random_init(cfg, toynn.RecipeOptions(t_seq=64))
    engine.export_gguf(tmp_path / "base.gguf")
    encoder = Encoder.load(tmp_path / "base.gguf")
    assert encoder.sentences.pooling == "last"
    encoder.export_gguf(tmp_path / "a.gguf")
    expected = judged(tmp_path / "a.gguf", texts(), 64)
    assert cosines(encoder.encode(texts()), expected).min() > 0.9999
    task = Task("sequence", 3, names=("a", "b", "c"))
    encoder = Encoder.load(tmp_path / "base.gguf", task)
    encoder.export_gguf(tmp_path / "b.gguf")
    p = np.exp(encoder.outputs(texts()))
    expected = judged(tmp_path / "b.gguf", texts(), 3)
    np.testing.assert_allclose(p / p.sum(1, keepdims=True), expected, atol=1e-5)
