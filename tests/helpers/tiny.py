"""A session with the smallest real training step."""

import numpy as np

from toynn import ops
from toynn.session import Session

V, C, N = 11, 6, 8
HP = np.array([1e-2, 0.9, 0.999, 1e-8, 0.0, 10.0, 1000.0], np.float32)


class Tiny:
    """Embedding, a linear layer and the loss: the smallest real step."""

    def __init__(self, *, frozen=False, realize=True, **session):
        self.rng = np.random.default_rng(3)
        s = self.s = Session(**session)
        self.wte = (s.constant if frozen else s.parameter)("wte", (V, C))
        self.w = s.parameter("w", (V, C))
        self.tokens, self.labels = s.input("tokens", (N,), "i32"), s.input("labels", (N,), "i32")
        self.hp = s.input("hp", (7,))
        x = ops.embedding(s, self.wte, self.tokens)
        self.logits = s.output(ops.linear(s, x, self.w))
        self.loss = ops.cross_entropy(s, self.logits, self.labels)
        s.set_loss(self.loss)
        s.build_backward()
        for weight in (self.w,) if frozen else (self.wte, self.w):
            s.opt_step_adamw(weight, s.grad(weight), self.hp)
        if realize:
            self.realize()

    def realize(self):
        s = self.s
        s.finalize_weights()
        for weight in (self.wte, self.w):
            s.upload(weight, self.rng.standard_normal(weight.shape))
        s.realize()
        s.upload(self.hp, HP)
        self.feed()

    def feed(self):
        self.s.upload(self.tokens, self.rng.integers(0, V, N))
        self.s.upload(self.labels, self.rng.integers(0, V, N))

    def state(self):
        return [self.s.download(t) for t in (self.wte, self.w)]
