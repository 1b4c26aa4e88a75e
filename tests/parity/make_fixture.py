"""Write tests/fixtures/gpt2_parity.npz from the float64 model: what to expect without PyTorch.

python tests/parity/make_fixture.py
"""

from pathlib import Path

import numpy as np
import torch_gpt2 as reference

PATH = Path(__file__).parents[1] / "fixtures" / "gpt2_parity.npz"
SIZES = {"vocab": 41, "d_model": 12, "n_heads": 3, "d_ff": 20, "n_layers": 2, "context": 9}
BATCH = 2
LR, WEIGHT_DECAY, STEPS = 1e-2, 0.1, 10


def draw_weights(rng):
    """Weights no gradient of which is tiny: biases and gains are random too."""
    sizes = {name: size for name, size in SIZES.items() if name != "n_heads"}
    weights = {}
    for name, shape in reference.shapes(**sizes).items():
        gain = name.endswith("norm.weight")
        weights[name] = (gain + 0.2 * rng.standard_normal(shape)).astype(np.float32)
    return weights


def draw_labels(rng, rows):
    """The three forms of labels, by name."""
    integer = rng.integers(0, SIZES["vocab"], rows).astype(np.int32)
    ignored = np.where(np.arange(rows) % 3 == 1, reference.IGNORED, integer).astype(np.int32)
    dense = rng.random((rows, SIZES["vocab"])).astype(np.float32)
    dense /= dense.sum(axis=1, keepdims=True)
    dense[2] *= 0.5  # a row need not sum to 1
    dense[4] = 0  # nor count
    return {"integer": integer, "ignored": ignored, "dense": dense}


def main():
    rng = np.random.default_rng(2024)
    rows = BATCH * SIZES["context"]
    weights = draw_weights(rng)
    ids = rng.integers(0, SIZES["vocab"], rows).astype(np.int32)
    model = reference.Model(weights, SIZES["n_heads"])
    arrays = {f"sizes/{name}": np.array(size) for name, size in SIZES.items()}
    arrays |= {f"weights/{name}": value for name, value in weights.items()}
    arrays |= {"batch": np.array(BATCH), "ids": ids}
    arrays["logits"] = model.logits(ids, BATCH).detach().numpy()
    for form, labels in draw_labels(rng, rows).items():
        arrays[f"{form}/labels"] = labels
        arrays[f"{form}/loss"] = np.array(model.backward(ids, labels, BATCH))
        for name, gradient in model.gradients().items():
            arrays[f"{form}/gradients/{name}"] = gradient.astype(np.float32)
        for convention in ("lora", "from_scratch"):
            trained = reference.Model(weights, SIZES["n_heads"])
            rows_of_hp = [
                reference.hp_row(convention, step, LR, WEIGHT_DECAY) for step in range(STEPS)
            ]
            losses = [trained.step(ids, labels, hp, BATCH) for hp in rows_of_hp]
            arrays[f"{convention}/hp"] = np.array(rows_of_hp)
            arrays[f"{form}/{convention}/losses"] = np.array(losses)
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {PATH.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
