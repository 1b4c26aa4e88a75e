"""checkpoint-<step>/: everything that a run needs to resume with the same bits.

    model.safetensors       the trained weights; for adapters, adapter.safetensors
    optimizer.safetensors   both moments of each weight, and gradients of waiting micro-batches
    trainer_state.json      the state of loop and data, counters, configuration, hashes
    best/                   the run's best model so far, as hard links
    complete.json           the length of each file, its checksum outside best/; written last

A checkpoint is written under a temporary name, synced to disk, and then renamed. So it is complete
or absent. A checkpoint that contradicts complete.json is broken, and not used.
"""

import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from toynn.engines.snapshot import Snapshot
from toynn.errors import CheckpointError
from toynn.formats import disk, safetensors
from toynn.formats.files import finish, open_new, unwritable
from toynn.formats.folders import new_folder
from toynn.system.reading import open_file, read_bytes, readable

MARKER, STATE, BEST = "complete.json", "trainer_state.json", "best"
OPTIMIZER = "optimizer.safetensors"
WEIGHTS = ("model.safetensors", "adapter.safetensors")
FORMAT = 2
#: Keys that trainer_state.json must have, besides those that the loop reads.
EXPECTED: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "identity": (dict,),
    "plan": (dict,),
    "metrics_bytes": (int,),
    "samples_bytes": (int,),
    "loop": (dict,),
    "feed": (dict,),
    "recipe": (dict,),
}
COUNTS = ("steps", "batches", "waiting")
_NAME = re.compile(r"checkpoint-(\d+)")
_CHUNK = 2**24  # bytes


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    state: dict[str, Any]
    snapshot: Snapshot


def save(
    folder: Path,
    step: int,
    snapshot: Snapshot,
    state: dict[str, Any],
    best: Sequence[Path] = (),
) -> Path:
    """Write checkpoint-<step> in a run's folder; return its path. Raises CheckpointError."""
    path, weights = folder / f"checkpoint-{step}", f"{snapshot.kind}.safetensors"
    text = json.dumps(
        {"format": FORMAT, "step": step, **state, "recipe": snapshot.counts}, indent=1
    )
    with new_folder(path, CheckpointError, replace=True) as new:
        files = {}
        for name, shapes in ((weights, snapshot.weights), (OPTIMIZER, snapshot.optimizer)):
            parts = safetensors.streamed(shapes, snapshot.read)
            files[name] = _write(new.path / name, parts, path / name)
        files[STATE] = _write(new.path / STATE, [text.encode()], path / STATE)
        if best:
            (new.path / BEST).mkdir()
        for each in best:
            _link(each, new.path / BEST / each.name)
            files[f"{BEST}/{each.name}"] = {"bytes": each.stat().st_size}
        if best:
            disk.sync_folder(new.path / BEST)
        _write(new.path / MARKER, [json.dumps({"files": files}, indent=1).encode()], path / MARKER)
    return path


def _write(path: Path, parts: Iterable[bytes | memoryview], final: Path) -> dict[str, int]:
    """Write a file to the disk; return its length and checksum."""
    length = checksum = 0
    try:
        with open_new(path) as file:
            for part in parts:
                file.write(part)
                length += memoryview(part).nbytes
                checksum = zlib.crc32(part, checksum)
            finish(file)
    except OSError as failure:
        what = f"more than {length:,} bytes"
        raise unwritable(final, what, path.parent, failure, CheckpointError) from failure
    return {"bytes": length, "crc32": checksum}


def _link(source: Path, target: Path) -> None:
    """Link a file under another name; copy it if the file system has no links."""
    try:
        os.link(source, target)
    except (OSError, NotImplementedError):  # on a full disk the copy fails too
        shutil.copyfile(source, target)


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return steps and paths of all folders named as checkpoints, newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def newest(folder: Path, tell: Callable[[str], object]) -> Checkpoint | None:
    """Return the newest complete checkpoint; ``tell`` is called for broken ones."""
    for _, path in checkpoints(folder):
        try:
            return read(path)
        except CheckpointError as error:
            tell(f"{error}; trying the one before")
    return None


def read(path: Path) -> Checkpoint:
    """Open a checkpoint. Raises CheckpointError unless it is complete."""
    files = _files(path)
    for name, entry in files.items():
        _check(path / name, entry)
    weights = next(name for name in WEIGHTS if name in files)
    state = _object(path / STATE)
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path / STATE}: expected format {FORMAT}; got {state.get('format')!r}: "
            "another version of toynn wrote it"
        )
    weight_shapes, state_shapes = (_shapes(path / name) for name in (weights, OPTIMIZER))

    def tensor(name: str) -> Any:
        with safe_open(path / (weights if name in weight_shapes else OPTIMIZER), "numpy") as file:
            return file.get_tensor(name)

    for key, kinds in EXPECTED.items():
        if not isinstance(state.get(key), kinds) or isinstance(state.get(key), bool):
            got = type(state.get(key)).__name__ if key in state else "nothing"
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise CheckpointError(f"{path / STATE}: {key}: expected {expected}; got {got}")
    for name in COUNTS:
        count = state["recipe"].get(name)
        if not isinstance(count, int | float) or not math.isfinite(count):
            raise CheckpointError(f"{path / STATE}: recipe.{name}: expected a number")
    snapshot = Snapshot(state["recipe"], weight_shapes, state_shapes, tensor, Path(weights).stem)
    return Checkpoint(path, state["step"], state, snapshot)


def _files(path: Path) -> dict[str, dict[str, int]]:
    """Return the files that the marker names, checked to be files of a checkpoint."""
    files = _object(path / MARKER).get("files")
    if not isinstance(files, dict) or not {STATE, OPTIMIZER} <= files.keys():
        raise CheckpointError(f"{path / MARKER}: expected a table of files; got another object")
    if not any(name in files for name in WEIGHTS):
        raise CheckpointError(f"{path / MARKER}: expected one of {', '.join(WEIGHTS)}; got none")
    for name, entry in files.items():
        best = name.startswith(f"{BEST}/")
        if not (best or name in (STATE, OPTIMIZER, *WEIGHTS)) or Path(name).name in ("", ".."):
            raise CheckpointError(f"{path / MARKER}: {name!r}: not a file of a checkpoint")
        if best and name.count("/") > 1:
            raise CheckpointError(f"{path / MARKER}: {name!r}: not a file of a checkpoint")
        sums = ("bytes",) if best else ("bytes", "crc32")
        if not isinstance(entry, dict) or any(type(entry.get(each)) is not int for each in sums):
            raise CheckpointError(f"{path / MARKER}: {name}: expected {' and '.join(sums)}")
    return files


def _check(path: Path, entry: dict[str, int]) -> None:
    """Raise CheckpointError unless a file has the marker's length and checksum."""
    checksum = 0
    with readable(path, CheckpointError), open_file(path, CheckpointError) as file:
        length = os.fstat(file.fileno()).st_size
        if length == entry["bytes"] and "crc32" in entry:
            while part := file.read(_CHUNK):
                checksum = zlib.crc32(part, checksum)
    if length != entry["bytes"]:
        raise CheckpointError(f"{path}: expected {entry['bytes']} bytes; got {length}")
    if checksum != entry.get("crc32", 0):
        raise CheckpointError(f"{path}: damaged: its checksum differs from {MARKER}")


def _object(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    if not path.exists():
        raise CheckpointError(f"{path.parent}: not a complete checkpoint: no {path.name}")
    try:
        record = json.loads(read_bytes(path, CheckpointError))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot read: {error}") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path}: expected an object; got {type(record).__name__}")
    return record


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, "numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot read: {error}") from error


def restore_best(checkpoint: Checkpoint, folder: Path) -> None:
    """Restore the best model of a checkpoint in its run's folder."""
    best = checkpoint.path / BEST
    for path in sorted(best.iterdir()) if best.is_dir() else []:
        target = folder / path.name
        if target.exists() and os.path.samefile(path, target):
            continue
        temporary = disk.temporary_name(target)
        try:
            _link(path, temporary)
            disk.rename(temporary, target)
        except OSError as failure:
            what = "the best model"
            raise unwritable(target, what, folder, failure, CheckpointError) from failure
        finally:
            temporary.unlink(missing_ok=True)


def prune(folder: Path, step: int, limit: int) -> None:
    """Keep the newest ``limit`` checkpoints up to a step; remove all others.

    Later checkpoints belong to another run. The marker is removed first, so that a kill leaves no
    half checkpoint.
    """
    kept = 0
    for at, path in checkpoints(folder):
        kept += at <= step
        if at > step or (limit and kept > limit):
            (path / MARKER).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove leftovers of a kill: temporary files, and checkpoints without the marker."""
    disk.sweep(folder)
    for _, path in checkpoints(folder):
        if not (path / MARKER).exists():
            shutil.rmtree(path, ignore_errors=True)


def is_named(path: Path) -> bool:
    """Return whether a path has the name of a checkpoint."""
    return _NAME.fullmatch(path.name) is not None
