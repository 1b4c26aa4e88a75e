"""A self-test: kernels, steps of each recipe, a run that is killed and resumed; speeds."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from toynn import _kernels, backends, ops
from toynn.engines import GPT2Config, LlamaConfig, ViTConfig
from toynn.errors import BackendError, BackendUnavailable
from toynn.optim import AdamW
from toynn.options import RecipeOptions
from toynn.recipes import GPT2, FromScratch, LoRA, VitTiny, WarmStart
from toynn.session import Session
from toynn.testing import lora_step
from toynn.testing.calls import check, invoke
from toynn.testing.cases import CASES
from toynn.testing.launches import OPS, run

STEPS = 3
CLOSE = 1e-5  # relative tolerance of losses
T = 16
SIZES: dict[str, Any] = {
    "vocab": 61,
    "d_model": 32,
    "n_heads": 4,
    "d_ff": 48,
    "n_layers": 2,
    "context": T,
}


class Found(NamedTuple):
    """The result of one check: its name, whether it is right, and a message."""

    name: str
    right: bool
    said: str


def beside(name: str) -> str:
    """Return the backend that a backend is compared with."""
    return "reference" if name == "cpu" else "cpu"


def kernels(name: str) -> Iterator[Found]:
    """Run each call of the op-case table on a backend; yield a result for each op.

    On the CPU this covers each ISA level that is built and that the CPU supports.
    """
    if name == "cpu":
        yield from _kernels_of_levels()
        return
    backend = backends.get(name)
    for op in OPS:
        calls, passed_over, wrong = 0, 0, ""
        for shape in CASES[op].shapes:
            for call in CASES[op].calls(np.random.default_rng(3), **shape):
                try:
                    check(op, call, run(backend, op, call))
                    calls += 1
                except BackendUnavailable:  # a quantized type that it does not read
                    passed_over += 1
                except (AssertionError, BackendError) as error:
                    wrong = wrong or f"{shape}: {error}"
        skipped = f", {passed_over} skipped: types that it does not read" if passed_over else ""
        said = f"{calls} calls{skipped}"
        yield Found(op, not wrong, wrong or said)


def _kernels_of_levels() -> Iterator[Found]:
    levels = [each for each in _kernels.built_levels() if each in _kernels.supported_levels()]
    for op, case in CASES.items():
        calls, wrong = dict.fromkeys(levels, 0), ""
        modules = {level: _kernels.load(op, level) for level in levels}
        for shape in case.shapes:
            for call in case.calls(np.random.default_rng(3), **shape):
                for level, module in modules.items():
                    try:
                        check(op, call, invoke(op, call, module=module))
                        calls[level] += 1
                    except AssertionError as error:
                        wrong = wrong or f"{level}, {shape}: {error}"
        said = f"{max(calls.values())} calls at {', '.join(levels)}"
        yield Found(op, not wrong, wrong or said)


def recipes(name: str) -> Iterator[Found]:
    """Train each recipe a few steps on this backend and on ``beside(name)``; yield the results."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps mapped files
        for recipe, train in _RECIPES.items():
            try:
                losses = train(name, Path(folder))
            except BackendError as error:
                yield Found(recipe, False, str(error))
                continue
            expected = train(beside(name), Path(folder))
            off = float(np.max(np.abs(np.divide(losses, expected) - 1)))
            said = f"loss {losses[0]:.6f} to {losses[-1]:.6f}, off by {off:.1e}"
            yield Found(recipe, off <= CLOSE, said)


def _text(recipe: Any, first: int = 0) -> list[float]:
    rng = np.random.default_rng(2)
    adamw = AdamW.for_lora() if first else AdamW.for_from_scratch()
    adamw.lr = 1e-6 if first else adamw.lr  # small for adapters: rounding grows with each step
    losses = []
    for k in range(first, first + STEPS):
        ids, labels = rng.integers(0, SIZES["vocab"], (2, T), np.int32)
        losses.append(float(recipe.step(ids, None, labels, adamw.hp_for_step(k), k == first)))
    return losses


def _gpt2(backend: str, folder: Path) -> list[float]:
    recipe = GPT2(backend)
    recipe.realize(GPT2Config(**SIZES), RecipeOptions(checkpointing=True))
    return _text(recipe)


def _from_scratch(backend: str, folder: Path) -> list[float]:
    recipe = FromScratch(backend)
    recipe.realize(LlamaConfig(**SIZES, n_kv_heads=2), RecipeOptions())
    return _text(recipe)


def _warm_start(backend: str, folder: Path) -> list[float]:
    recipe = WarmStart(backend)
    config = LlamaConfig(**SIZES, n_kv_heads=4, donor_d_in=12)
    recipe.realize_scratch(config, RecipeOptions(untied=True))
    recipe.upload_donor(np.random.default_rng(1).standard_normal((SIZES["vocab"], 12)))
    recipe.build()
    return _text(recipe)


def _lora(backend: str, folder: Path) -> list[float]:
    path = folder / f"{backend}.gguf"
    shape = lora_step.Shape(256, 1, 4, 2, 256, SIZES["vocab"], False, T)
    lora_step.write_file(path, shape, "Q4_K")
    recipe = LoRA(backend)
    recipe.realize(path, None, 4, RecipeOptions(t_seq=T), targets="all-linear", dropout=0.2)
    return _text(recipe, first=1)


def _vit(backend: str, folder: Path) -> list[float]:
    recipe = VitTiny(backend)
    config = ViTConfig(
        image=16, patch=4, channels=3, d_model=32, n_heads=4, d_ff=48, n_layers=2, classes=5
    )
    recipe.realize(config, RecipeOptions(t_batch=2))
    rng, adamw = np.random.default_rng(5), AdamW.for_from_scratch()
    images = rng.random((2, 16, 16, 3), np.float32)
    labels = np.array([1, 3])
    hps = [adamw.hp_for_step(k) for k in range(STEPS)]
    return [float(recipe.step(images, [0], labels, hp, k == 0)) for k, hp in enumerate(hps)]


_RECIPES: dict[str, Callable[[str, Path], list[float]]] = {
    "GPT2": _gpt2,
    "FromScratch": _from_scratch,
    "WarmStart": _warm_start,
    "LoRA over Q4_K": _lora,
    "VitTiny": _vit,
}


# -- Saved, killed, resumed ------------------------------------------------------------------------

RUN_STEPS, SAVED = 240, 40  # steps of a run, and between checkpoints
PATIENCE = 600.0  # seconds for a run: most take one or two

#: A small GPT-2 on bytes.
_RUN = [
    *("gpt2", "--d-model", "32", "--layers", "2", "--heads", "2", "--seq", "16", "--batch", "2"),
    *("--eval-every", "0", "--report", "none"),
]


def resumed(name: str) -> Iterator[Found]:
    """Train in another process, kill it after a checkpoint, and resume; yield the result.

    The weights must equal those of a run that was never killed, bit for bit.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        (folder / "text.txt").write_text("".join(f"{k} times {k} is {k * k}. " for k in range(999)))
        whole, cut = folder / "whole", folder / "cut"
        flags = [*_RUN, "--data", str(folder / "text.txt"), "--backend", name]
        flags += ["--steps", str(RUN_STEPS), "--save-every", str(SAVED)]
        try:
            _trained(*flags, "--out", str(whole))
            at = _killed(cut, *flags, "--out", str(cut))
            _trained("--resume", str(cut))
        except subprocess.TimeoutExpired as error:
            yield Found("killed, resumed", False, f"no end after {error.timeout:.0f} s")
            return
        except subprocess.CalledProcessError as error:
            yield Found("killed, resumed", False, error.stdout.strip().rpartition("\n")[2])
            return
        files = [path / "model.safetensors" for path in (whole, cut)]
        same = files[0].read_bytes() == files[1].read_bytes()
        told = f"after {RUN_STEPS} steps the weights {'equal' if same else 'differ from'}"
        yield Found("killed, resumed", same, f"{at}; {told} those of a run that was not killed")


def _command(*flags: str) -> dict[str, Any]:
    """Return the arguments of Popen for `toynn train`, with all output in one pipe."""
    return {
        "args": [sys.executable, "-m", "toynn", "train", *flags],
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "env": os.environ | {"PYTHONUTF8": "1"},
        "encoding": "utf-8",
        "errors": "replace",
    }


def _trained(*flags: str) -> None:
    """Train to the end. Raises TimeoutExpired, and CalledProcessError with the output."""
    subprocess.run(**_command(*flags), timeout=PATIENCE, check=True)


def _killed(out: Path, *flags: str) -> str:
    """Kill a run once it has a complete checkpoint; return where. A run may also end before."""
    end = time.monotonic() + PATIENCE
    with subprocess.Popen(**_command(*flags)) as process:
        try:
            while process.poll() is None and time.monotonic() < end:
                if saved := sorted(out.glob("checkpoint-*/complete.json")):
                    return f"killed after {saved[0].parent.name}"
                time.sleep(0.002)
            if process.poll() is None:
                return f"killed after {PATIENCE:.0f} s without a complete checkpoint"
            return "ended before it could be killed"
        finally:
            process.kill()


# -- How fast --------------------------------------------------------------------------------------


def speeds(name: str, side: int = 1024, d_model: int = 256) -> Iterator[str]:
    """Yield lines about a matrix product, an elementwise op, and a training step; medians of 5."""
    for precision in ("highest", "medium"):
        s = Session(name, matmul_precision=precision)
        x, w = s.input("x", (side, side)), s.parameter("w", (side, side))
        y = s.output(ops.linear(s, x, w))
        rate = 2 * side**3 / _seconds(s, [x, w], y) / 1e9
        yield f"product of {side} x {side}, {precision}: {rate:.1f} GFLOP/s"
    s = Session(name)
    x = s.input("x", (side * side,))
    y = s.output(ops.scale(s, ops.add(s, x, x), 0.5))
    seconds = _seconds(s, [x], y)
    yield f"elementwise over {side * side} numbers: {20 * side**2 / seconds / 1e9:.1f} GB/s"
    recipe = GPT2(name)
    config = GPT2Config(256, d_model, 4, 4 * d_model, 4, 128)
    recipe.realize(config, RecipeOptions(t_batch=4))
    ids = np.arange(512, dtype=np.int32) % 256
    hp = AdamW.for_from_scratch().hp_for_step(0)
    spent = []
    for k in range(6):
        start = time.perf_counter()
        recipe.step(ids, None, ids, hp, k == 0)
        spent.append(time.perf_counter() - start)
    rate = 512 / median(spent[1:])
    yield f"GPT-2, {d_model} channels, 4 layers, 512 tokens a step: {rate:.0f} tokens/s"


def _seconds(s: Session, inputs: list[Any], output: Any) -> float:
    """Return the median time of a session's run, including the download of its output."""
    s.finalize_weights()
    s.realize()
    for tensor in inputs:
        s.upload(tensor, np.ones(tensor.shape, np.float32))
    spent = []
    for _ in range(6):
        start = time.perf_counter()
        s.run()
        s.download(output)
        spent.append(time.perf_counter() - start)
    return median(spent[1:])
