"""Puzzles: write a part of a training program; a check says what is wrong with it.

A puzzle is one file in the folder of its road (a series of puzzles). The file defines ``PUZZLE``:
the program, its blank and its check. The place in ROADS gives the puzzle its number. `folder` keeps
the learner's files and runs the checks.
"""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module

from toynn.errors import ConfigError
from toynn_puzzles.puzzle import Puzzle

__all__ = ["ABOUT", "PUZZLES", "ROADS", "Puzzle", "find"]

#: The puzzles of each road, in the order in which they are best solved.
ROADS: dict[str, Sequence[str]] = {
    "gradients": (
        *("linear", "softmax", "cross_entropy", "rmsnorm", "layernorm"),
        *("swiglu", "rope", "attention", "tied_head", "lora"),
    ),
    "engine": (
        *("tape", "accumulation", "clipping", "adamw", "arena"),
        *("checkpoint", "packing", "kv_cache", "q4_k"),
    ),
    "speed": ("loop_order", "sixteen_sums", "register_tile", "packed_panels", "simd_dot"),
    "bugs": ("by_tape", "by_gradcheck", "by_curve"),
    "kernels": (
        *("scatter", "dropout", "prefix", "online_softmax", "attention_blocks", "cache_blocks"),
    ),
}
#: What a road teaches, and what it needs.
ABOUT = {
    "gradients": "backward passes by hand, checked against finite differences",
    "engine": "what a training program does between the kernels",
    "speed": "from a triple loop to packed panels; needs a C compiler",
    "bugs": "a training step has one bug: find it",
    "kernels": "what makes them fast and exact: scatter, hashes, borders, blocks",
}


def _table() -> dict[str, Puzzle]:
    names = [(road, name) for road, row in ROADS.items() for name in row]
    return {
        name: replace(
            import_module(f"{__name__}.{road}.{name}").PUZZLE, number=number, name=name, road=road
        )
        for number, (road, name) in enumerate(names, 1)
    }


PUZZLES: dict[str, Puzzle] = _table()


def find(word: str) -> Puzzle:
    """Return the puzzle of a number, a name or a file's name. Raises ConfigError for others."""
    for puzzle in PUZZLES.values():
        if word in (puzzle.name, puzzle.file) or word.lstrip("0") == str(puzzle.number):
            return puzzle
    near = get_close_matches(word, PUZZLES, 1)
    raise ConfigError(
        f"no puzzle {word!r}{f' (did you mean {near[0]}?)' if near else ''}; expected a number "
        f"from 1 to {len(PUZZLES)}, or a name from `toynn puzzles`"
    )
