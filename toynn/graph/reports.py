"""Reports of a session: the memory of a step before it runs, its time after."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape


class Shown:
    """An object that a notebook shows as it prints, in a fixed-width font."""

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{escape(str(self))}</pre>'


@dataclass(frozen=True)
class Memory(Shown):
    """Bytes that a session's tapes take, by purpose."""

    weights: int
    moments: int
    gradients: int
    activations: int  # inputs, and scratch memory of kernels, included
    mapped: int = 0  # frozen weights that stay in the caller's arrays, such as a mapped file
    prepacked: int = 0  # copies of frozen weights, in the layout of the GEMM kernels

    @property
    def peak(self) -> int:
        """All bytes except mapped ones; no buffer is freed before the session."""
        return self.weights + self.moments + self.gradients + self.activations + self.prepacked

    def __str__(self) -> str:
        parts = ["weights", "moments", "gradients", "activations", "peak", "mapped"]
        if self.prepacked:
            parts.insert(4, "prepacked")
        return "\n".join(f"{part:12} {getattr(self, part) / 1e6:10.1f} MB" for part in parts)


@dataclass(frozen=True)
class Cost:
    """What a training step takes: memory, counted, and time, estimated."""

    memory: Memory
    seconds: float  # on one thread, from flops and bytes: good for comparing steps


@dataclass(frozen=True)
class ProfileRow:
    """All calls of one kernel entry: their number, time, work and traffic."""

    op: str
    calls: int
    ms: float
    flops: int
    nbytes: int
    share: float  # of the time of all ops
    at_most: bool = False  # flops are an upper bound, as rows may come in segments

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations a second."""
        return self.flops / self.ms / 1e6 if self.ms else 0.0

    @property
    def gbytes(self) -> float:
        """Gigabytes moved a second."""
        return self.nbytes / self.ms / 1e6 if self.ms else 0.0


def _most(row: ProfileRow) -> str:
    return "<" if row.at_most else ""


@dataclass(frozen=True)
class Profile(Shown):
    """Time per op over all runs since the tape was compiled, slowest first."""

    rows: tuple[ProfileRow, ...]
    notes: Mapping[str, float] = field(default_factory=dict)  # milliseconds of them, by note

    @classmethod
    def of(
        cls,
        calls: Iterable[tuple[str, int, int, int, int, bool]],
        notes: Mapping[str, int] | None = None,
    ) -> "Profile":
        """Add up (op, calls, nanoseconds, flops, bytes, at_most) per op; work is for one call.

        ``notes`` are the backend's: nanoseconds of these, by description.
        """
        totals: dict[str, list[int]] = {}
        for op, count, spent, flops, nbytes, at_most in calls:
            total = totals.setdefault(op, [0, 0, 0, 0, 0])
            for i, part in enumerate((count, spent, flops * count, nbytes * count, at_most)):
                total[i] += part
        time = sum(total[1] for total in totals.values()) or 1
        rows = [
            ProfileRow(op, count, spent / 1e6, flops, nbytes, spent / time, at_most > 0)
            for op, (count, spent, flops, nbytes, at_most) in totals.items()
        ]
        said = {note: spent / 1e6 for note, spent in (notes or {}).items() if spent}
        return cls(tuple(sorted(rows, key=lambda row: -row.ms)), said)

    @property
    def short_handed_ms(self) -> float:
        """Milliseconds on fewer threads: in trials, and while other processes need cores."""
        return self.notes.get("on fewer threads", 0.0)

    @property
    def ms(self) -> float:
        """Milliseconds of all ops together."""
        return sum(row.ms for row in self.rows)

    def __str__(self) -> str:
        lines = [f"{'op':28} {'calls':>8} {'ms':>11} {'GFLOP/s':>9} {'GB/s':>8} {'share':>7}"]
        lines += [
            f"{row.op:28} {row.calls:8d} {row.ms:11.3f} {_most(row) + f'{row.gflops:.1f}':>9} "
            f"{row.gbytes:8.1f} {row.share:7.1%}"
            for row in self.rows
        ]
        lines.append(f"{'all':28} {sum(row.calls for row in self.rows):8d} {self.ms:11.3f}")
        lines += [f"{note:28} {'':8} {ms:11.3f}" for note, ms in self.notes.items()]
        if any(row.at_most for row in self.rows):
            lines.append("<: upper bounds, as if there were no segments")
        return "\n".join(lines)
