"""A recipe small enough to check by eye: one table of logits, and AdamW, in NumPy.

It stands in for the real ones in tests of what lies above them: the loop, the command line.
"""

from types import SimpleNamespace

import numpy as np
from safetensors.numpy import load_file

from toynn.data.batch import IGNORED
from toynn.engines.snapshot import Snapshot
from toynn.errors import LabelError, NonFiniteError
from toynn.formats import safetensors
from toynn.formats.files import write_atomically
from toynn.optim import AdamW


class FakeSession:
    def __init__(self):
        self.max_grad_norm = None
        self.grad_norm = 0.0

    def memory(self):
        sizes = {"weights": 4, "moments": 8, "gradients": 4, "activations": 16, "peak": 32}
        return SimpleNamespace(**sizes, mapped=0, prepacked=0)


class FakeDecoder:
    def __init__(self, engine):
        self.engine = engine
        self.past = 0

    def read(self, ids):
        self.past += len(ids)
        assert len(ids) > 0 and self.past <= self.engine.context
        return self.engine.table[ids[-1]]


class FakeRecipe:
    """Predicts a token from the one before."""

    def __init__(self, vocab=256, context=8):
        self.engine = self
        self.session = FakeSession()
        self.context = context
        self.batches = 0
        self.table = np.zeros((vocab, vocab), np.float32)
        self.tensors = self.parameters = {"table.weight": self.table}
        self.moments = np.zeros((2, vocab, vocab), np.float32)
        self.gradient = np.zeros((vocab, vocab), np.float32)
        self.rows = 0
        self.steps = self.checks = 0
        self.hps = []
        self.on_step = lambda recipe: None  # a test puts its mischief here

    def weights(self):
        return {"table.weight": self.table.copy()}

    def load_weights(self, weights):
        self.table[:] = weights["table.weight"]

    def decoder(self):
        return FakeDecoder(self)

    def _forward(self, ids, labels):
        kept = labels != IGNORED
        if not kept.any():
            raise LabelError("no label counts")
        ids, labels = ids[kept], labels[kept]
        logits = self.table[ids].astype(np.float64)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return ids, labels, logits

    def evaluate(self, batch):
        _, labels, log_p = self._forward(batch.inputs, batch.labels)
        return float(-log_p[np.arange(len(labels)), labels].mean())

    def accumulate(self, batch):
        loss = self.evaluate(batch)
        ids, labels, log_p = self._forward(batch.inputs, batch.labels)
        gradient = np.exp(log_p)
        gradient[np.arange(len(labels)), labels] -= 1
        np.add.at(self.gradient, ids, gradient)
        self.rows += len(labels)
        return loss

    def save(self, path, overwrite=False):
        path.write_bytes(self.table.tobytes())

    def check_unchanged(self):
        self.checks += 1

    def write_run(self, folder):
        self.save(folder / "model.gguf")
        write_atomically(folder / "model.safetensors", safetensors.encode(self.weights()))

    def read_run(self, folder):
        self.load_weights(load_file(folder / "model.safetensors"))

    def optimizer(self):
        return AdamW.for_lora()

    def snapshot(self):
        m, v = self.moments.copy()
        optimizer = {"table.weight.m": m, "table.weight.v": v}
        if self.rows:
            optimizer["table.weight.sum"] = self.gradient.astype(np.float32)
        kept = self.weights() | optimizer
        counts = {"steps": self.steps, "batches": 0, "waiting": self.rows}
        shapes = {name: values.shape for name, values in optimizer.items()}
        return Snapshot(counts, {"table.weight": self.table.shape}, shapes, kept.get)

    def restore(self, snapshot):
        self.load_weights({"table.weight": snapshot.read("table.weight")})
        self.moments[:] = [snapshot.read(f"table.weight.{which}") for which in "mv"]
        self.steps, self.rows = snapshot.counts["steps"], snapshot.counts["waiting"]
        if self.rows:
            self.gradient[:] = snapshot.read("table.weight.sum")

    def train(self, batch, hp, is_first):
        loss = self.accumulate(batch)
        self.steps += 1
        self.hps.append(hp.copy())
        self.on_step(self)
        gradient, self.gradient = self.gradient / self.rows, np.zeros_like(self.gradient)
        self.rows = 0
        norm = self.session.grad_norm = float(np.sqrt((gradient**2).sum()))
        if not np.isfinite(norm):
            raise NonFiniteError("the gradient of table.weight is not finite")
        limit = self.session.max_grad_norm
        if limit is not None and norm > limit:
            gradient *= limit / norm
        lr, beta1, beta2, eps, decay, c1, c2 = hp
        m, v = self.moments
        if is_first:
            self.moments[:] = 0
        m[:] = beta1 * m + (1 - beta1) * gradient
        v[:] = beta2 * v + (1 - beta2) * gradient**2
        self.table *= 1 - lr * decay
        self.table -= lr * c1 * m / (np.sqrt(c2 * v) + eps)
        return loss
