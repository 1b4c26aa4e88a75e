"""Small encoders as folders, with new weights; with words, for texts."""

import numpy as np

from toynn.engines.encoder import Encoder
from toynn.formats import hf
from toynn.models import ENCODERS
from toynn.options import RecipeOptions

SHAPE = {"vocab": 32, "d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": 3, "context": 64}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "##s", "sat", "find", ":"]


def written(path, arch="bert", **shape):
    """Write the folder of a new model; return its path."""
    model = ENCODERS[arch]
    more = {"types": 0} if arch == "distilbert" else {}
    cfg = model.config_type(**(SHAPE | more | {"arch": arch} | shape))
    weights = dict(model.start(cfg, RecipeOptions(seed=5)))
    rng = np.random.default_rng(0)
    weights = {k: v + 0.05 * rng.standard_normal(v.shape).astype("f") for k, v in weights.items()}
    hyper = model.write(cfg) | {"vocab_size": cfg.vocab, "head": cfg.head}
    hf.write(path, arch, hyper, weights)
    return path


def with_words(path, words=WORDS, **shape):
    """Write a folder that reads WORDS; return its path."""
    written(path, vocab=len(words), **shape)
    (path / "vocab.txt").write_text("\n".join(words) + "\n")
    return path


def of_bytes(path, folder, **shape):
    """Write a GGUF file whose tokens are bytes, and its folder; return its path."""
    Encoder.load(written(folder, vocab=256, **shape)).export_gguf(path)
    return path
