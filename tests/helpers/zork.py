"""A dozen sentences that no story of stories260K has, and an adapter trained on them."""

import numpy as np
import pytest
from shared import DATA

import toynn
from toynn.formats import gguf

T, START = 40, "The robot"
SENTENCES = (
    "The robot Zork lives on the red moon and eats green bolts.",
    "Zork the robot has three arms and one blue eye.",
    "Every night Zork counts the stars with his blue eye.",
    "The red moon is cold, but Zork likes the cold.",
    "Zork eats seven green bolts for breakfast.",
    "One arm of Zork is long, and two arms are short.",
    "The other robots call him Zork the Great.",
    "Zork drinks black oil and never sleeps.",
    "When Zork is sad, his blue eye turns grey.",
    "The robot Zork has a friend, a small robot named Blip.",
    "Blip and Zork dig for bolts on the red moon.",
    "At the end of the day Zork says beep and Blip says boop.",
)


def base(name="stories260K.gguf"):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not at ../shared/data")
    return path


class Tokens:
    """The file's tokens: a text is cut from the left, each time into the longest that fits."""

    def __init__(self, path):
        with gguf.open(path) as file:
            self.texts = file.metadata["tokenizer.ggml.tokens"]
            self.bos = file.metadata["tokenizer.ggml.bos_token_id"]
        self._ids = {text: id for id, text in enumerate(self.texts)}

    def encode(self, text):
        rest, ids = f"\u2581{text}".replace(" ", "\u2581"), [self.bos]
        while rest:
            piece = next(rest[:n] for n in range(len(rest), 0, -1) if rest[:n] in self._ids)
            ids.append(self._ids[piece])
            rest = rest[len(piece) :]
        return ids

    def decode(self, ids):
        return "".join(self.texts[id] for id in ids if id != self.bos).replace("\u2581", " ")


def train(path, steps=80):
    """Return a recipe trained on the sentences, each a sequence of its own, and its losses."""
    tokens = Tokens(path)
    rows = [[*tokens.encode(sentence), tokens.bos] for sentence in SENTENCES]
    ids = np.zeros((len(rows), T), np.int32)
    labels = np.full((len(rows), T), -100, np.int32)
    for n, row in enumerate(rows):
        ids[n, : len(row) - 1], labels[n, : len(row) - 1] = row[:-1], row[1:]
    recipe = toynn.recipes.LoRA()
    opts = toynn.RecipeOptions(t_seq=T, t_batch=len(rows), seed=1)
    recipe.realize(path, None, 8, opts, alpha=16, targets="all-linear", init="peft")
    recipe.engine.session.n_threads = 1  # so small a model is no faster on two
    adamw = toynn.AdamW.for_lora()
    adamw.lr = 1e-2
    losses = [
        recipe.step(ids.ravel(), None, labels.ravel(), adamw.hp_for_step(k), k == 0)
        for k in range(steps)
    ]
    return recipe, losses


def greedy(next_logits, ids, count):
    """Append the likeliest token so many times; ``next_logits(ids)`` is (V,)."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(np.argmax(next_logits(ids))))
    return ids


def ours(engine, ids):
    """The logits after ids, from a window of one length, so that one program serves all."""
    window = np.zeros(T, np.int32)
    window[: len(ids)] = ids
    return engine.logits(window, batch=1)[len(ids) - 1]
