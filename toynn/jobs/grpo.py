"""``toynn train grpo``: train an adapter by rewards of what the model writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toynn import distributed
from toynn.data import jsonl
from toynn.data.bounds import Bounds
from toynn.data.digest import digest
from toynn.data.examples import check_not_asked, split_off
from toynn.data.taught import is_taught
from toynn.engines import PolicyOptions, SequenceEngine
from toynn.engines.teacher import Teacher
from toynn.errors import CheckpointError, ConfigError, DataError
from toynn.formats.tokenizer import Tokenizer
from toynn.generation.completion import prompt_ids
from toynn.jobs.grpo_options import GRPOOptions
from toynn.jobs.job import late
from toynn.jobs.lora import AdapterJob
from toynn.jobs.samples import ROWS, Prompt, Prompts, Rounds, Sampler
from toynn.jobs.teacher import check_alone, opened
from toynn.jobs.text_options import columns_of
from toynn.options import RecipeOptions
from toynn.recipes import GRPO
from toynn.rewards import Rewards, identity
from toynn.runs.series import series
from toynn.system.printing import counted, fact, harmless, print_line
from toynn.train.folder import RunFolder, Value
from toynn.train.state import Figures, Result

SHOWN = 3  # prompts of a sample


class GRPOJob(AdapterJob):
    """``toynn train grpo``."""

    name = "grpo"
    kind = GRPOOptions
    options: GRPOOptions
    unit = items = "samples"
    train: Prompts
    held_out: Prompts
    rewards: Rewards
    teacher: Teacher | None = None

    def __init__(self, typed: Mapping[str, Any], command: str | None = None) -> None:
        """Take the options. Raises ConfigError for contradictory ones."""
        super().__init__(typed, command)
        options = self.options
        check_alone(options)
        if options.reward is None and options.teacher is None:
            raise ConfigError(
                "--reward: expected reward functions, a --teacher, or both; got neither"
            )
        if options.reward is not None and options.num_generations == 1:
            raise ConfigError(
                "--num-generations 1: a reward counts by its difference from others of the same "
                "prompt: draw at least 2, or use --teacher without --reward"
            )
        if options.reward is None and "metric" not in typed:
            options.metric = "reverse-kl"
        for name, value, instead in (
            ("backend", "metal", "cpu"),
            ("activations", "bfloat16", "float32"),
        ):
            if getattr(self.options, name) == value:
                raise ConfigError(
                    f"--{name} {value}: grpo computes its loss with NumPy, in float32 on the CPU: "
                    f"use --{name} {instead}"
                )

    def resolve(self) -> None:
        """Raise ConfigError for several processes, and a folder without a model of text."""
        if (size := distributed.current().size) > 1:
            raise ConfigError(
                f"train grpo: expected one process; got {size}: run it without mpiexec"
            )
        super().resolve()

    # -- Data and rewards ----------------------------------------------------------------------

    def read(self) -> None:
        """Open the model, read the prompts, and start the rewards.

        Raises DataError without a prompt that fits, CheckpointError if a resumed run had other
        rewards, ConfigError for early stopping without prompts held out.
        """
        file, options = self.open_model(), self.options
        self.tokenizer = Tokenizer.for_model(file, options.tokenizer)
        self.context = file.require(f"{file.architecture}.context_length", int)
        self.declared_with(RecipeOptions(t_seq=1))  # raises for adapters that do not fit
        path = Path(options.data)
        files = jsonl.parts_of(path)
        held = files.get("valid") if options.valid is None else Path(options.valid)
        self.train = self._prompts(files["train"])
        if held is None:
            seed = self.recipe_options().seed
            self.train, self.held_out, said = split_off(
                path, self.train, seed, jsonl.VALID, options.holdout
            )
            for each in said:
                self.say("data", each)
        else:
            check_not_asked(held, options.holdout)
            self.held_out = self._prompts(held)
        if options.early_stopping and not len(self.held_out):
            raise ConfigError(
                "--early-stopping: no prompts are held out: name a file by --valid, or hold some "
                "out by --holdout"
            )
        if options.teacher is not None:
            if is_taught(options.teacher):
                raise ConfigError(
                    f"--teacher {options.teacher}: a file of `toynn teach` cannot score samples: "
                    "name the model"
                )
            how = self.all_options(), 1, options.temperature, options.teacher_weight
            self.teacher = opened(options.teacher, self.tokenizer, *how)
        if not self.tokenizer.eog:
            length = f"a sample always has {options.max_completion_length:,} tokens"
            self.say("model", f"the tokenizer has no stop token: {length}")
        self._start_rewards()

    def _prompts(self, path: Path) -> Prompts:
        """Return the prompts of a file that leave room in the context; say how many do not.

        Raises DataError if none do.
        """
        options, found, skipped = self.options, list[Prompt](), 0
        bounds = Bounds(options.max_line, options.max_unpacked)
        for where, text, columns in jsonl.prompts(path, columns_of(options.columns), bounds):
            try:
                ids = prompt_ids(self.tokenizer, text)
            except ConfigError as error:
                raise DataError(f"{where}: {error}") from error
            if len(ids) < self.context:
                found.append(Prompt(ids, text, columns))
            skipped += len(ids) >= self.context
        said = f"{path}: {counted(len(found), 'prompt')}"
        if skipped:
            said += f"; {skipped:,} skipped, which leave no room in {self.context:,} tokens"
        if not found:
            raise DataError(f"{said}; expected at least one")
        self.say("data", said)
        return Prompts(found)

    def _start_rewards(self) -> None:
        """Start the reward functions, after a line about each file that will run.

        Raises CheckpointError if a resumed run had others.
        """
        options = self.options
        specs = (options.reward,) if isinstance(options.reward, str) else options.reward or ()
        self._functions = _table(identity(specs))
        before = self.before.get("rewards", self._functions)
        same = {name: tuple(each) for name, each in before.items()} == self._functions
        if not same and not options.force_resume:
            raise CheckpointError(
                f"cannot resume: --reward: expected {_listed(before)}; got "
                f"{_listed(self._functions)}: another file, or a changed one; --force-resume "
                "takes it"
            )
        for path, sha256 in zip(*self._functions.values(), strict=True):
            if sha256:
                again = ", as before" if self.before else ""
                print(fact("reward", f"runs {path} (sha256 {sha256[:12]}{again})"), flush=True)
        weights = options.reward_weights
        self.rewards = self.ends.enter_context(
            Rewards(
                specs,
                None if weights is None else [float(each) for each in weights.split(",")],
                options.reward_timeout,
                options.reward_in_process,
                tell=lambda text: print_line(f"toynn: {harmless(text, '')}"),
            )
        )

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return config.toml's tables of the data and of the rewards."""
        path = self.options.data
        counts = {"train": len(self.train), "valid": len(self.held_out)}
        named = {"name": self.directory.word(path), "sha256": digest(path), **counts}
        return {"data": named, "rewards": self._functions}

    # -- The model -----------------------------------------------------------------------------

    def enable(self, engine: SequenceEngine[Any]) -> None:
        """Enable the policy loss of an engine."""
        engine.enable_policy(self.take(PolicyOptions))

    def new_recipe(self) -> GRPO:
        """Return the recipe, not realized."""
        return GRPO(self.take(PolicyOptions), self.options.backend)

    def all_options(self) -> RecipeOptions:
        """Return the recipe's options, with rows for the longest prompt and sample."""
        options = self.options
        longest = min(self.context, self.train.seq + options.max_completion_length - 1)
        rows = options.batch * options.num_generations
        rows = min(options.mini_batch or rows, rows)
        return replace(self.recipe_options(), t_seq=longest, t_batch=rows, packed=True)

    def realize(self) -> Any:
        """Return the recipe, ready to step."""
        recipe, options = self.realize_with(self.all_options()), self.options
        drawing = {"top_k": options.top_k, "top_p": options.top_p}
        asked = (*self.train.prompts, *self.held_out.prompts)
        columns = dict.fromkeys(name for each in asked for name in each.columns)
        self.sampler = Sampler(
            recipe,
            self.tokenizer,
            self.rewards,
            self.take(PolicyOptions),
            drawing,
            columns,
            self.teacher,
        )
        return recipe

    def announce(self) -> None:
        """Print the model, and the teacher if there is one."""
        super().announce()
        if self.teacher is not None:
            said = f"{self.teacher.path}; {self.teacher.weight:g} (log p_teacher - log p) is"
            print(fact("teacher", f"{harmless(said, '')} part of a token's advantage"))

    # -- The loop ------------------------------------------------------------------------------

    def batches(self) -> Rounds:
        """Return batches whose samples are drawn when a step trains on them."""
        options = self.options
        return Rounds(
            self.train,
            self.sampler,
            batch=options.batch,
            group=options.num_generations,
            updates=options.grad_accum,
            iterations=options.num_iterations,
            seed=options.seed,
            scale=options.scale_rewards,
            mask_truncated=options.mask_truncated_completions,
        )

    def per_epoch(self) -> float:
        """Return the number of batches in a pass through the prompts."""
        return len(self.train) / self.options.batch * self.options.num_iterations

    def valid(self) -> Sequence[Any]:
        """Return the held-out prompts."""
        return self.held_out.batches(ROWS)

    def measure(self, batch: Any) -> Figures:
        """Return the rewards of greedy samples; a missing one counts as 0.

        The divergence from a teacher is that of samples drawn, always with the same seed.
        """
        figures: Figures = {}
        if self.rewards.names:
            scored = self.sampler.scored(batch.prompts, greedy=True)
            mean = float(np.nan_to_num(scored.totals).mean())
            figures = {**scored.figures, "rewards/mean": mean}
        if self.teacher is not None:
            drawn = self.sampler.scored(batch.prompts)
            kl = -float(np.concatenate(drawn.taught).mean())
            figures = {**drawn.figures, **figures, "teacher/reverse_kl": kl}
        return figures

    def sample(self) -> Iterator[str]:
        """Yield greedy samples of the first prompts held out, with their rewards."""
        (shown,) = (self.held_out if len(self.held_out) else self.train).batches(SHOWN)[:1]
        yield "\n".join(self.sampler.scored(shown.prompts, greedy=True).lines(shown.prompts))

    def show(self, folder: RunFolder, result: Result) -> str:
        """Print what the model writes; return its scores before training, and the best."""
        is_late = late(result)
        text = "" if is_late() else "".join(self.sample())
        folder.write_sample(text)
        print(f"--- greedy samples ---\n{harmless(text)}\n---")
        told = []
        for name in ("rewards/mean", "teacher/reverse_kl"):
            found, called = _measured(f"val_{name}", result), series(name).short
            if result.best_iteration in found:
                first = f", {found[0]:.4f} before training" if 0 in found else ""
                told.append(f"held-out {called} {found[result.best_iteration]:.4f}{first}")
        return "; ".join(told)

    def kept(self, by: str, result: Result) -> str:
        """Return which weights a run keeps: without any reward, the newest."""
        missing = _measured("val_rewards/missing", result).values()
        if by == "reward" and result.best_losses and min(missing, default=0) == 1:
            return "newest, since every held-out reward is missing"
        return super().kept(by, result)

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield commands that use the adapter."""
        if self.rewards.missing:
            yield fact("rewards", f"{counted(self.rewards.missing, 'reward')} missing")
        yield from self.uses(folder, chats=not isinstance(self.train.prompts[0].text, str))


def _measured(name: str, result: Result) -> dict[int, float]:
    """Return a figure of each evaluation by its step; not that of rewards that all miss."""
    found = {each.iteration: each.figures for each in result.reports if each.figures}
    if name == "val_rewards/mean":
        found = {n: each for n, each in found.items() if each.get("val_rewards/missing") != 1}
    return {n: each[name] for n, each in found.items() if name in each}


def _table(functions: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return config.toml's table of reward functions, from their identity."""
    paths, hashes = (tuple(each[k] for each in functions) for k in (0, 1))
    return {"functions": paths, "sha256": hashes}


def _listed(table: Mapping[str, Sequence[str]]) -> str:
    pairs = zip(*table.values(), strict=True)
    return ", ".join(f"{path} {sha256[:12]}".rstrip() for path, sha256 in pairs)
