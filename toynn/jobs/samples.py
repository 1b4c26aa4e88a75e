"""Samples of prompts with their rewards: what GRPO trains on, and what it is measured by.

Prompts     prompts as ids, with the columns that rewards get
Sampler     draws samples of prompts, and scores them
Rounds      endless batches, whose samples are drawn when a step trains on them
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.data.examples import ShuffledExamples
from toynn.engines import PolicyOptions
from toynn.engines.policy import PolicyBatch, Sample, Scale, advantages, shares
from toynn.engines.teacher import Teacher
from toynn.formats.tokenizer import Tokenizer
from toynn.generation import Rollout, rollouts
from toynn.rewards import Rewards

ROWS = 32  # samples that are written at a time


class Prompt(NamedTuple):
    """A prompt: its tokens, the text or the messages, and the other columns of its row."""

    ids: Sequence[int]
    text: Any
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Asking:
    """Held-out prompts, as a batch of an evaluation."""

    prompts: Sequence[Prompt]

    @property
    def rows(self) -> int:
        """Number of prompts."""
        return len(self.prompts)


@dataclass(frozen=True)
class Prompts:
    """Prompts, of at most ``seq`` tokens."""

    prompts: Sequence[Prompt]

    @property
    def seq(self) -> int:
        """The tokens of the longest prompt."""
        return max((len(each.ids) for each in self.prompts), default=0)

    def __len__(self) -> int:
        return len(self.prompts)

    def pick(self, indices: Iterable[int]) -> "Prompts":
        """Return these prompts, in this order."""
        return Prompts([self.prompts[at] for at in indices])

    def batch(self, indices: Iterable[int], room: int = 0) -> Any:
        """Return these prompts as a batch of ``ShuffledExamples``."""
        return Asking(self.pick(indices).prompts)

    def batches(self, size: int) -> list[Asking]:
        """Return all prompts in batches."""
        starts = range(0, len(self), size)
        return [Asking(self.prompts[at : at + size]) for at in starts]


@dataclass(frozen=True)
class Scored:
    """Samples of prompts, with their texts and rewards (n, functions), and the weighted sums.

    ``taught`` are log p_teacher - log p of the tokens of each sample, if a teacher scored them.
    """

    found: Sequence[Rollout]
    texts: Sequence[str]
    names: Sequence[str]
    rewards: NDArray[np.float64]
    totals: NDArray[np.float64]
    taught: Sequence[NDArray[np.float64]] = ()

    @cached_property
    def figures(self) -> dict[str, tuple[float, float]]:
        """Figures of the samples: (sum, count) of each."""
        n, columns = float(len(self.found)), [self.totals, *self.rewards.T]
        names = ["rewards/mean", *(f"reward/{name}" for name in self.names)]
        present = [(float(np.nansum(r)), float((~np.isnan(r)).sum())) for r in columns]
        kl = -sum(float(each.sum()) for each in self.taught)
        return {
            **{name: each for name, each in zip(names, present, strict=True) if each[1]},
            "rewards/missing": (float(np.isnan(self.rewards).sum()), float(self.rewards.size)),
            "teacher/reverse_kl": (kl, float(sum(map(len, self.taught)))),
            "samples/length": (float(sum(len(each.tokens) for each in self.found)), n),
            "samples/cut": (float(sum(each.ended == "length" for each in self.found)), n),
        }

    def lines(self, prompts: Sequence[Prompt]) -> Iterator[str]:
        """Yield each prompt with its sample and its rewards, one sample a prompt."""
        for prompt, text, rewards, total in zip(
            prompts, self.texts, self.rewards, self.totals, strict=True
        ):
            said = prompt.text if isinstance(prompt.text, str) else prompt.text[-1]["content"]
            parts = (f"{n} {r:.4g}" for n, r in zip(self.names, rewards, strict=True))
            scores = f"reward {total:.4g} ({', '.join(parts)})\n" if self.names else ""
            yield f"{said}\n> {text}\n{scores}"


@dataclass
class Sampler:
    """Draws samples of prompts by a model, and scores them.

    ``options`` are those of the loss; ``drawing`` are top_k and top_p; ``columns`` are the names of
    all prompts' columns. A ``teacher`` scores tokens, too, but of no greedy samples.
    """

    recipe: Any
    tokenizer: Tokenizer
    rewards: Rewards
    options: PolicyOptions
    drawing: Mapping[str, Any]
    columns: Collection[str]
    teacher: Teacher | None = None

    def scored(
        self, prompts: Sequence[Prompt], samples: int = 1, *, greedy: bool = False, seed: int = 0
    ) -> Scored:
        """Return ``samples`` samples of each prompt, or the ``greedy`` one, with their rewards."""
        stop = self.tokenizer.eog
        found = list(
            rollouts(
                self.recipe,
                [each.ids for each in prompts],
                samples=samples,
                max_tokens=self.options.max_completion_length,
                stop=stop,
                rows=ROWS,
                seed=seed,
                temperature=0.0 if greedy else self.options.temperature,
                **self.drawing,
            )
        )
        texts = [self._text(each) for each in found]
        asked = [prompts[each.prompt] for each in found]
        answers = [
            text if isinstance(each.text, str) else [{"role": "assistant", "content": text}]
            for each, text in zip(asked, texts, strict=True)
        ]
        columns = {name: [each.columns.get(name) for each in asked] for name in self.columns}
        rewards = self.rewards.score([each.text for each in asked], answers, columns)
        taught = [] if self.teacher is None or greedy else self._taught(self.teacher, asked, found)
        totals = self.rewards.totals(rewards)
        return Scored(found, texts, self.rewards.names, rewards, totals, taught)

    def _taught(
        self, teacher: Teacher, asked: Sequence[Prompt], found: Sequence[Rollout]
    ) -> list[NDArray[np.float64]]:
        samples = [
            Sample(prompt.ids, each.tokens, 0, 0, each.log_probabilities.tolist())
            for prompt, each in zip(asked, found, strict=True)
        ]
        parts = _parts(samples, self.recipe.t_batch * self.recipe.t_seq)
        said = [teacher.log_p(PolicyBatch.with_samples(part, 1.0)) for part in parts]
        own = np.concatenate([each.log_probabilities for each in found])
        ends = np.cumsum([len(each.tokens) for each in found])
        return np.split(np.concatenate(said) - own, ends[:-1])

    def _text(self, found: Rollout) -> str:
        stream = self.tokenizer.stream()
        tokens = found.tokens[:-1] if found.ended == "token" else found.tokens
        return "".join(map(stream.push, tokens)) + stream.end()


class Round:
    """A batch whose samples are drawn, or taken from before, when ``parts`` is called."""

    segments = bounds = source = None  # as a batch has them

    def __init__(self, rounds: "Rounds", number: int, slot: str, prompts: Sequence[Prompt]) -> None:
        self._rounds, self._number, self._slot, self._prompts = rounds, number, slot, prompts
        self.rows = rounds.batch * rounds.group
        self.figures: dict[str, tuple[float, float]] = {}

    def parts(self) -> list[PolicyBatch]:
        """Return the samples in batches that fit the recipe's tape."""
        rounds, recipe = self._rounds, self._rounds.sampler.recipe
        room = recipe.t_batch * recipe.t_seq
        if self._prompts:
            weight, samples, self.figures = rounds.drawn(self._prompts, self._number)
            parts = list(_parts(samples, room))
            for each in samples:
                each.share *= len(parts)
            if rounds.iterations > 1:  # what the loss notes in a sample is noted there, too
                rounds.kept[self._slot] = {
                    "weight": weight,
                    "samples": list(map(vars, samples)),
                }
        else:
            drawn = rounds.kept[self._slot]
            weight = drawn["weight"]
            parts = list(_parts([Sample(**each) for each in drawn["samples"]], room))
        return [PolicyBatch.with_samples(part, weight / len(parts)) for part in parts]


class Rounds(Iterator[Any]):
    """Endless batches of ``batch`` prompts with ``group`` samples each.

    A round are ``updates`` batches, each trained on ``iterations`` times: in that order, so that
    ``updates`` batches are an update. The samples of a batch depend on the seed, on its number and
    on the weights. A state holds samples only if they are still to be trained on.
    """

    def __init__(
        self,
        prompts: Prompts,
        sampler: Sampler,
        *,
        batch: int,
        group: int,
        updates: int,
        iterations: int,
        seed: int,
        scale: Scale,
        mask_truncated: bool,
    ) -> None:
        self.sampler, self.batch, self.group, self.iterations = sampler, batch, group, iterations
        self._updates, self._seed, self._scale, self._mask = updates, seed, scale, mask_truncated
        self._prompts, self._drawn = ShuffledExamples(prompts, batch, seed), 0
        #: samples of the round's batches, by their place in it
        self.kept: dict[str, dict[str, Any]] = {}
        #: batches in a pass through the prompts
        self.per_epoch, self.examples = self._prompts.per_epoch * iterations, len(prompts)

    def __next__(self) -> Round:
        number, at = self._drawn, self._drawn % (self._updates * self.iterations)
        self._drawn += 1
        asked: Any = next(self._prompts) if at < self._updates else None
        prompts = () if asked is None else asked.prompts
        return Round(self, number, str(at % self._updates), prompts)

    @property
    def state(self) -> dict[str, Any]:
        """The position; ``kept`` is filled as batches are trained on."""
        return {"drawn": self._drawn, "prompts": self._prompts.state, "kept": self.kept}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._drawn, self._prompts.state, self.kept = (
            state[name] for name in ("drawn", "prompts", "kept")
        )

    def drawn(
        self, prompts: Sequence[Prompt], number: int
    ) -> tuple[float, list[Sample], dict[str, tuple[float, float]]]:
        """Return the weight of a batch, its samples that have a gradient, and its figures.

        Without any, it returns one sample whose gradient is 0.
        """
        sampler = self.sampler
        scored = sampler.scored(prompts, self.group, seed=(self._seed << 32) + number)
        found = scored.found
        A, stds = advantages(scored.totals, self.group, self._scale)
        each_a, counted = A.tolist(), ~np.isnan(scored.totals)
        if sampler.teacher is not None:
            weight = sampler.teacher.weight
            said = zip(each_a, scored.taught, strict=True)
            each_a, counted = [(a + weight * d).tolist() for a, d in said], np.ones_like(counted)
        if self._mask:
            counted &= np.array([each.ended == "token" for each in found])
        share, weight = shares([len(each.tokens) for each in found], counted, sampler.options)
        samples = [
            Sample(prompts[each.prompt].ids, each.tokens, a, s, each.log_probabilities.tolist())
            for each, a, s in zip(found, each_a, share.tolist(), strict=True)
        ]
        beta = sampler.options.beta
        live = [each for each in samples if each.share and (beta or np.any(each.advantage))]
        entropy = -sum(float(each.log_probabilities.sum()) for each in found)
        groups = float(len(stds) if scored.names else 0)
        figures = {
            **scored.figures,
            "rewards/std": (float(stds.sum()), groups),
            "rewards/flat_groups": (float((stds == 0).sum()), groups),
            "policy/entropy": (entropy, float(sum(len(each.tokens) for each in found))),
        }
        return weight, live or samples[:1], figures


def _parts(samples: Sequence[Sample], room: int) -> Iterator[list[Sample]]:
    """Yield samples in parts of at most ``room`` tokens; a sample of a token begins a part."""
    part, size = list[Sample](), 0
    for each in samples:
        length = len(each.prompt) + len(each.tokens) - 1
        if part and (size + length > room or length == 1):
            yield part
            part, size = [], 0
        part.append(each)
        size += length
    yield part
