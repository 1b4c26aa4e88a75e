"""Find special tokens of the data that a model does not know: their rows look untrained.

A base model has rows for tokens that its training never saw: reserved tokens, and often the tokens
of the chat template. A row looks untrained if one of these holds; the first one is reported:

    zero     its norm is below a tenth of the median norm of normal tokens' rows
    alike    its distance to the rows of two unused tokens, or to the mean of normal rows, is below
             a quarter of the median distance between two normal rows
    drawn    it looks like a random vector: the normal rows' K main directions hold no more of its
             energy than chance puts there, K / C, and its numbers are Gaussian

Training changes the rows of tokens that occur in no text, too, but all of them alike. Libraries
that add tokens draw rows at random or set them to the mean. "alike" needs two rows, since one could
be a copy of a trained row. Half of a sample of normal rows gives the main directions; the other
half shows whether these directions recognize trained rows at all.
Source: Land & Bartolo 2024, arXiv:2405.05417, for the comparison with rows of unused tokens.

A row's looks are a suspicion, and the model's probabilities decide. The model reads a row of the
data up to the token. Where the token stands, the model gives a token that it knows at least KNOWN
times the median probability of unused tokens, and KNOWN times what it gives the token elsewhere.
A token that only begins rows is predicted nowhere, so nothing is said of it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.engines import frozen
from toynn.evaluation.scores import log_probabilities, read
from toynn.formats import quants
from toynn.formats.adapters.adapter import HEAD, TABLE, is_tied
from toynn.formats.bases import Base
from toynn.formats.tokenizer import Tokenizer, TokenType

SAMPLE = 512  # most normal tokens, and unused ones, to compare with
ZERO, ALIKE = 0.1, 0.25
DIRECTIONS = 32  # most main directions; never more than an eighth of the columns
SIGMAS = 4.0
KNOWN = 100  # times as likely as an unused token
LEAST = 64  # least number of columns and of normal rows that main directions need

Floats = NDArray[np.float64]


class Row(NamedTuple):
    """A token's row of a matrix that looks untrained, and the --targets that train it.

    ``p`` is the highest probability that the model gives the token where it stands. ``targets`` is
    empty if the head is tied: llama.cpp cannot load an adapter of a tied head.
    """

    id: int
    token: str
    weight: str
    why: str
    p: float
    targets: tuple[str, ...]


def untrained_rows(
    file: Base, tokenizer: Tokenizer, used: Mapping[int, NDArray[np.int32]]
) -> list[Row]:
    """Return the rows of special tokens that the model does not know, of the table and the head.

    ``used`` are the special tokens of the data, and for each the tokens of a row up to it. Only the
    rows that are compared are dequantized. If a row looks untrained, the model is run.

    Raises ToynnError if the model cannot be run.
    """
    if not (ids := sorted(used)):
        return []
    spoken = {id for id in (tokenizer.bos, tokenizer.eos, tokenizer.unknown) if id is not None}
    spare = tokenizer.special - tokenizer.eog - spoken - set(used)
    unused = _spaced(np.array(sorted(spare | set(tokenizer.of_type(TokenType.UNUSED).tolist()))))
    normal = _spaced(tokenizer.of_type(TokenType.NORMAL))
    untrained = []
    for weight in (TABLE, HEAD):
        info = file.tensors.get(weight)
        if info is not None and len(info.shape) == 2 and len(normal) > 1:
            stored = file.stored(weight)

            def rows(which: NDArray[Any], stored: Any = stored, info: Any = info) -> Floats:
                values = quants.rows(stored, info.type, info.shape, which)
                return values.astype(np.float64)

            looks = _Looks(rows(normal), unused, rows(unused.astype(np.int64)))
            targets = () if is_tied(file) else ("embed",) if weight == TABLE else ("head",)
            for id, row in zip(ids, rows(np.array(ids)), strict=True):
                if why := looks.why(id, row):
                    untrained.append(Row(id, tokenizer.tokens[id], weight, why, 0.0, targets))
    if not untrained:
        return []
    engine = frozen(file)
    unknown = {id: _unknown(engine, used[id], id, unused) for id in {row.id for row in untrained}}
    return [row._replace(p=p) for row in untrained if (p := unknown[row.id]) is not None]


def _unknown(
    engine: Any, ids: NDArray[np.int32], token: int, unused: NDArray[np.int64]
) -> float | None:
    """Return a token's highest probability in ids that it ends; None if the model knows it."""
    ids = ids[-engine.context :]
    at = ids[1:] == token
    if not at.any():
        return None
    parts = [
        np.c_[log_p[:, token], np.median(log_p[:, unused], axis=1) if len(unused) else log_p.min(1)]
        for _, log_p in log_probabilities(read(engine, ids[:-1]))
    ]
    token_log_p, others = np.concatenate(parts).T
    elsewhere = np.median(token_log_p[~at]) if not at.all() else -np.inf
    ratios = token_log_p[at] - np.maximum(others[at], elsewhere)
    return None if ratios.max() > np.log(KNOWN) else float(np.exp(token_log_p[at].max()))


def _spaced(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return at most SAMPLE of the ids, evenly spaced."""
    step = max(1, -(-len(ids) // SAMPLE))
    return ids[::step]


class _Looks:
    """The properties of rows of normal tokens (N, C) and of unused tokens (M, C)."""

    def __init__(self, normal: Floats, unused_ids: NDArray[np.int64], unused: Floats) -> None:
        self._norm = float(np.median(np.linalg.norm(normal, axis=1)))
        far = np.linalg.norm(normal - np.roll(normal, len(normal) // 2, axis=0), axis=1)
        self._far = float(np.median(far))
        self._mean = normal.mean(axis=0)
        some = np.linalg.norm(unused, axis=1) >= ZERO * self._norm
        self._ids, self._unused = unused_ids[some], unused[some]
        self._main: Floats | None = None
        count, columns = normal.shape
        if min(count, columns) >= LEAST:
            size = min(DIRECTIONS, columns // 8)
            main = np.linalg.svd(normal[::2], full_matrices=False)[2][:size]
            self._chance = (size + SIGMAS * np.sqrt(2 * size)) / columns
            if np.quantile(_shares(normal[1::2], main), 0.01) > self._chance:
                self._main = main

    def why(self, id: int, row: Floats) -> str:
        """Return why a row looks untrained, or an empty string."""
        if np.linalg.norm(row) < ZERO * self._norm:
            return "nearly 0"
        others = self._unused[self._ids != id]
        if (np.linalg.norm(others - row, axis=1) < ALIKE * self._far).sum() > 1:
            return "like rows of unused tokens"
        if np.linalg.norm(row - self._mean) < ALIKE * self._far:
            return "the mean of all rows"
        return "as drawn at random" if self._is_drawn(row) else ""

    def _is_drawn(self, row: Floats) -> bool:
        if self._main is None or _shares(row[None], self._main)[0] > self._chance:
            return False
        scaled = (row - row.mean()) / row.std()
        bound = SIGMAS / np.sqrt(len(row))
        is_centred = abs(row.mean() / row.std()) < bound
        return bool(is_centred and abs((scaled**4).mean() - 3) < bound * np.sqrt(24))


def _shares(rows: Floats, main: Floats) -> Floats:
    """Return the share (N,) of the energy of rows (N, C) that lies in directions (K, C)."""
    shares: Floats = ((rows @ main.T) ** 2).sum(axis=1) / np.maximum((rows**2).sum(axis=1), 1e-300)
    return shares
