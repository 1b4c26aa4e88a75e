"""Encoders on sentences of natural lengths, toynn against transformers, by texts a second.

Three tasks: a head of two classes on batches of BATCH texts, InfoNCE on as many pairs, vectors
alone. toynn packs a batch. The others pad it to its longest text: batches in random order, as
Trainer's and sentence-transformers' loops have them, and batches of texts sorted by length. All
start from one folder of random weights, and update them by AdamW with clipped gradients.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from real import Epoch
from smallest import smallest

BATCH = smallest(32, 4)
SIZES = {"minilm": (384, 6, 256), "bert-base": (768, 12, 64)}  # channels, blocks, texts
SIZES = smallest(SIZES, {"minilm": (64, 2, 8)})
TASKS = ("classes", "pairs", "vectors")
VOCAB = 30522
#: Tokens of a text, as of the sentences of Rotten Tomatoes.
SHORTEST, LONGEST, MEDIAN, SPREAD = 3, 78, 26, 0.46
LR, SCALE = 2e-5, 20.0


def texts(count: int) -> list[list[int]]:
    """Return random tokens of log-normal lengths."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(np.log(MEDIAN), SPREAD, count)).clip(SHORTEST, LONGEST)
    return [rng.integers(1000, VOCAB, round(n)).tolist() for n in lengths]


def batches(count: int, task: str, *, is_sorted: bool) -> Iterator[list[list[int]]]:
    """Yield lists of texts; of pairs, first texts and then as many second ones."""
    found, columns = texts(count), 2 if task == "pairs" else 1
    rows = [found[k : k + columns] for k in range(0, count, columns)]
    if is_sorted:
        rows.sort(key=lambda row: sum(map(len, row)))
    for k in range(0, len(rows), BATCH):
        yield [row[n] for n in range(columns) for row in rows[k : k + BATCH]]


def write_folder(path: Path, size: str) -> None:
    """Write a new BERT with a head."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    channels, blocks, _ = SIZES[size]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=channels,
        num_hidden_layers=blocks,
        num_attention_heads=channels // (64 if channels > 384 else 32),
        intermediate_size=4 * channels,
    )
    BertForSequenceClassification(config).save_pretrained(path)


# -- Contestants: each takes the folder, the task, the number of texts and of threads --------------


def of_toynn(precision: str) -> Callable[..., Epoch]:
    """Return a function that makes toynn's epoch at a precision."""

    def make(path: Path, task: str, count: int, n_threads: int) -> Epoch:
        import toynn
        from toynn.data.texts import Texts
        from toynn.engines.encoder import Encoder, Task
        from toynn.formats.sentences import Sentences

        kind = Task("sequence", 2) if task == "classes" else Task("vectors", factor=SCALE)
        packed = [
            Texts.pack(some, np.arange(len(some)) % 2 if task == "classes" else None)
            for some in batches(count, task, is_sorted=False)
        ]
        longest = max(map(len, texts(count)))
        room = max(batch.tokens for batch in packed)
        size = {"t_seq": longest, "t_batch": -(-room // longest), "precision": precision}
        options = toynn.RecipeOptions(**size, n_threads=n_threads)
        encoder = Encoder.load(path, kind, options, build=False)
        encoder.texts, encoder.sentences = max(b.examples for b in packed), Sentences("mean", True)
        if task == "vectors":
            return Epoch([lambda b=b: encoder.outputs_of(b) for b in packed], 1.0)
        encoder.build_training_step()
        adamw, done = toynn.AdamW.for_lora(lr=LR), [0]

        def step(batch: Texts) -> float:
            done[0] += 1
            return encoder.train(batch, adamw.hp(done[0]), done[0] == 1)

        return Epoch([lambda b=b: step(b) for b in packed], 1.0)

    return make


def of_transformers(dtype: str, *, is_sorted: bool) -> Callable[..., Epoch]:
    """Return a function that makes the epoch of transformers' model."""

    def make(path: Path, task: str, count: int, n_threads: int) -> Epoch:
        import torch
        from transformers import BertForSequenceClassification

        torch.set_num_threads(n_threads)
        model = BertForSequenceClassification.from_pretrained(path)
        model.train(task != "vectors")
        adamw = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
        given, filled = list(batches(count, task, is_sorted=is_sorted or task == "vectors")), []

        def padded(some: list[list[int]]) -> dict[str, Any]:
            ids, mask = torch.zeros((2, len(some), max(map(len, some))), dtype=torch.long)
            for row, text in enumerate(some):
                ids[row, : len(text)], mask[row, : len(text)] = torch.tensor(text), 1
            filled.append(float(mask.float().mean()))
            return {"input_ids": ids, "attention_mask": mask}

        def vectors(inputs: dict[str, Any]) -> Any:
            rows, mask = model.bert(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
            means = (rows * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(means, dim=1)

        def loss(parts: list[dict[str, Any]]) -> Any:
            if task == "classes":
                labels = torch.arange(len(parts[0]["input_ids"])) % 2
                return model(**parts[0], labels=labels).loss
            a, b = map(vectors, parts)
            return torch.nn.functional.cross_entropy(SCALE * a @ b.T, torch.arange(len(a)))

        def cast() -> AbstractContextManager[Any]:
            return torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")

        def step(parts: list[dict[str, Any]]) -> Any:
            if task == "vectors":
                with torch.no_grad(), cast():
                    return vectors(parts[0])
            adamw.zero_grad()
            with cast():
                value = loss(parts)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return adamw.step()

        columns = 1 + (task == "pairs")
        parts = [[padded(each) for each in _split(some, columns)] for some in given]
        return Epoch([lambda p=p: step(p) for p in parts], float(np.mean(filled)))

    return make


def _split(some: list[Any], columns: int) -> list[list[Any]]:
    size = len(some) // columns
    return [some[k * size : (k + 1) * size] for k in range(columns)]


def of_onnxruntime(*, int8: bool) -> Callable[..., Epoch]:
    """Return a function that makes onnxruntime's epoch of vectors, of batches sorted by length."""

    def make(path: Path, task: str, count: int, n_threads: int) -> Epoch:
        import onnxruntime
        import torch
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from transformers import BertModel

        class Rows(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bert = BertModel.from_pretrained(path, attn_implementation="eager").eval()

            def forward(self, ids: Any, mask: Any) -> Any:
                return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

        file = path / "model.onnx"
        ids = torch.ones(2, 8, dtype=torch.long)
        axes = {name: {0: "texts", 1: "tokens"} for name in ("ids", "mask", "rows")}
        torch.onnx.export(
            Rows(),
            (ids, ids),
            str(file),
            input_names=["ids", "mask"],
            output_names=["rows"],
            dynamic_axes=axes,
            dynamo=False,
        )
        if int8:
            quantize_dynamic(file, file := path / "int8.onnx", weight_type=QuantType.QInt8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = n_threads, 1
        session = onnxruntime.InferenceSession(str(file), options)
        steps, filled = list[Callable[[], object]](), []
        for some in batches(count, task, is_sorted=True):
            ids, mask = np.zeros((2, len(some), max(map(len, some))), np.int64)
            for row, text in enumerate(some):
                ids[row, : len(text)], mask[row, : len(text)] = text, 1
            filled.append(mask.mean())

            def step(ids: Any = ids, mask: Any = mask) -> Any:
                rows = session.run(["rows"], {"ids": ids, "mask": mask})[0]
                means = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
                return means / np.linalg.norm(means, axis=1, keepdims=True)

            steps.append(step)
        return Epoch(steps, float(np.mean(filled)))

    return make


CONTESTANTS: dict[str, Callable[..., Epoch]] = {
    "toynn highest": of_toynn("highest"),
    "toynn medium": of_toynn("medium"),
}
CONTESTANTS |= {
    f"{dtype}{', sorted' * order}": of_transformers(dtype, is_sorted=order)
    for order in (False, True)
    for dtype in ("float32", "bfloat16")
}
ONNX = {"onnxruntime": of_onnxruntime(int8=False), "onnxruntime int8": of_onnxruntime(int8=True)}


def epochs(path: Path, task: str, count: int, n_threads: int) -> dict[str, Epoch]:
    """Return the contestants of a task; those of vectors sort always. AVX2 has no bfloat16."""
    chosen = CONTESTANTS
    if os.environ.get("TOYNN_ISA") == "avx2":
        chosen = {who: make for who, make in chosen.items() if "bfloat16" not in who}
    if task == "vectors":
        chosen = {who: make for who, make in chosen.items() if "sorted" not in who}
        chosen |= ONNX if find_spec("onnxruntime") and find_spec("onnx") else {}
    return {who: make(path, task, count, n_threads) for who, make in chosen.items()}
