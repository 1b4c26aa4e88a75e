"""Recipes whose calls are interrupted by Ctrl-C at a chosen instruction, or by an alarm.

A course is a list of moves, calls of a recipe that follow on one another: training steps, uploads,
checkpoints, exports. Walked without interrupts, it says what state each move starts from, what it
returns, and how many instructions of Python it takes. Walked with interrupts, each move that is
interrupted must have been made wholly or not at all; then it is made again, if it was not.
"""

import dis
import hashlib
import random
import signal
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import runs
from lora_bases import write_base
from realizing import RECIPES as REALIZED
from realizing import one_step

from toynn.data.examples import Examples
from toynn.data.preference import Preferences
from toynn.data.texts import Texts
from toynn.engines.snapshot import Snapshot
from toynn.recipes import Preference
from toynn.train import checkpoint


def preference(base):
    recipe, rng, examples = Preference(), np.random.default_rng(4), Examples(runs.T)
    options = runs.options(packed=True)
    recipe.realize(base, None, 3, options, targets="all-linear", dropout=0.3)
    for _ in range(8):
        tokens = [rng.integers(0, runs.VOCAB, n).tolist() for n in (2, 3, 4)]
        for completion in tokens[1:]:
            examples.append([(tokens[0], False), (completion, True)])
    data = Preferences(examples, None)
    return recipe, (data.batch([k], 2 * runs.T) for k in range(len(data))), None


RECIPES = runs.RECIPES | {"preference": preference}


# -- Interrupts ------------------------------------------------------------------------------------


@cache
def _leaves(code):
    """The offsets of instructions that leave a with statement without an error.

    An exception there would skip __exit__. None can come: CPython handles signals behind calls, at
    backward jumps and where functions begin, and these instructions are loads and one call.
    """
    offsets, steps = set(), list(dis.get_instructions(code))
    names = [step.opname for step in steps]
    for k in range(len(steps) - 3):
        nones = all(s.opname == "LOAD_CONST" and s.argval is None for s in steps[k : k + 3])
        if nones and names[k + 3] in ("PRECALL", "CALL"):
            end = k + 4 + (names[k + 3] == "PRECALL")
            offsets.update(step.offset for step in steps[k - (names[k - 1] == "SWAP") : end])
    return offsets


def traced(call, at=0):
    """Make a call; before its instruction number ``at``, raise SIGINT. Return (result, counted).

    The instructions are those of Python, in all functions but those that import, and those that
    weak references call, from which CPython raises nothing. The result of a call that was
    interrupted is INTERRUPTED.
    """
    count = 0

    def begin(frame, event, argument):
        name = frame.f_code.co_filename
        if name.startswith("<frozen") or name.endswith("_weakrefset.py"):
            return None
        leaves = _leaves(frame.f_code)

        def local(frame, event, argument):
            nonlocal count
            if event == "opcode" and frame.f_lasti not in leaves:
                count += 1
                if count == at:
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)
            return local

        frame.f_trace_opcodes = True
        return local

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        result = call()
    except KeyboardInterrupt:
        result = INTERRUPTED
    finally:
        sys.settrace(before)
    return result, count


def timed(call, delay):
    """Make a call; after so many seconds, an alarm raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGALRM, before)


INTERRUPTED = object()
LAST = 80  # instructions of a call that are its last


# -- Courses ---------------------------------------------------------------------------------------


class Course:
    """The moves of a recipe, and what they do without interrupts."""

    def __init__(self, name, work, *, whole=True):
        self.whole = whole  # else without what takes long: files, and tapes that are recorded
        base = Path(work) / "base.gguf"
        if not base.exists():
            write_base(base, "llama", vocab=runs.VOCAB, context=runs.T)
        self.folder = Path(work) / name
        self.folder.mkdir()
        self.recipe, data, _ = RECIPES[name](base)
        self.engine, self.session = self.recipe.engine, self.recipe.engine.session
        self.session.max_grad_norm = 0.5
        read = [next(data).read() for _ in range(6)]
        if isinstance(read[0], Texts):  # the longest makes the tape that all others fit into
            read.sort(key=lambda texts: -texts.tokens)
        self.batches = [(b,) if isinstance(b, Texts) else tuple(b) for b in read]
        self.adamw = self.recipe.optimizer()
        self._begin()
        self.moves = list(self._moves())
        for move in self.moves:  # what is made once only is made now
            move()
        self.states, self.results, self.sizes = self._walk()
        assert self.states[0] == self.states[-1]

    def _begin(self):
        """Take two steps and a part of one: a state to go back to, in which all is in use."""
        self.step(0, True)
        self.step(1)
        self.recipe.accumulate(*self.batches[2])
        snapshot = self.recipe.snapshot()
        names = (*snapshot.weights, *snapshot.optimizer)
        arrays = {name: snapshot.read(name).copy() for name in names}
        kept = (
            dict(snapshot.counts),
            snapshot.weights,
            snapshot.optimizer,
            arrays.__getitem__,
            snapshot.kind,
        )
        self.first = Snapshot(*kept)
        self.recipe.evaluate(*self.batches[3])
        self.fed = self.inputs()

    def inputs(self):
        """Return the inputs of the tape of the last step, unless newer tapes have replaced it."""
        s = self.session
        alive = s.trained in s._compiled
        return {name: s.download(t) for name, t in s.trained.inputs.items() if alive}

    def feed(self, as_lists=False):
        """Feed the first inputs to the tape of the last step; lists go in one by one."""
        tape = self.session.trained
        inputs = {name: v.tolist() if as_lists else v for name, v in self.fed.items()}
        self.session.feed({tape.inputs[name]: v for name, v in inputs.items()}, tape)

    def run(self, to, weight):
        """Run the tape of the last step."""
        self.session.run(to, weight=weight, tape=self.session.trained)

    @property
    def of_texts(self):
        return isinstance(self.batches[0][0], Texts)

    def step(self, k, is_first=False):
        hp = self.adamw.hp_for_step(k)
        if self.of_texts:
            return self.recipe.train(*self.batches[k], hp, is_first)
        inputs, positions, labels, *segments = self.batches[k]
        return self.recipe.step(inputs, positions, labels, hp, is_first, *segments)

    def state(self):
        """The hash of all that training has changed, of the inputs, and of what waits."""
        recipe, s = self.recipe, self.session
        digest = hashlib.blake2b()
        weight, sums = s.waiting()
        known = recipe.step_index, getattr(self.engine, "batches", 0), weight, s.tape.loss.name
        digest.update(repr(known).encode())
        moments = [t for pair in self.engine.moments.values() for t in pair]
        learned = [s.download(tensor) for tensor in (*self.engine.parameters.values(), *moments)]
        for values in (*learned, *self.inputs().values(), *sums.values()):
            digest.update(values.tobytes())
        return digest.hexdigest()

    def _moves(self):
        """Yield calls; the last one goes back to where the first one began."""
        recipe, engine, s = self.recipe, self.engine, self.session
        weight = next(iter(engine.parameters.values()))
        inputs = self.batches[0][0]
        hp = self.adamw.hp_for_step(3)

        def logits(n):
            if self.of_texts:
                return recipe.outputs_of(self.batches[n % 6][0]).tobytes()
            return engine.logits(np.resize(inputs, (n, *inputs.shape[1:]))).tobytes()

        def decoded():
            decoder = engine.decoder()
            decoder.read([1, 2, 3])
            return decoder.read([4]).tobytes()

        def saved():
            parts = {"loop": {}, "feed": {}, "identity": {}, "plan": {}}
            state = {**parts, "metrics_bytes": 0, "samples_bytes": 0}
            checkpoint.save(self.folder, 1, recipe.snapshot(), state)
            snapshot = checkpoint.read(self.folder / "checkpoint-1").snapshot
            return [
                snapshot.read(name).tobytes() for name in (*snapshot.weights, *snapshot.optimizer)
            ]

        for k in range(3 if self.whole else 1):
            yield lambda k=k: recipe.evaluate(*self.batches[k])
            for n in range(3 * k + 1, 3 * k + 4 if self.whole else 1):  # more than are kept
                yield lambda n=n: logits(n)
            yield lambda k=k: self.step(k, k == 0)
            yield lambda k=k: recipe.accumulate(*self.batches[k + 3])
            yield lambda k=k: recipe.accumulate(*self.batches[k + 2])
        yield lambda: recipe.update(hp, False)
        yield self.feed
        yield lambda: self.run("grads", 2.0)
        yield lambda: self.feed(as_lists=True)
        yield lambda: self.run("update", 3.0)
        yield lambda: s.upload(weight, np.full(weight.shape, 0.25, np.float32))
        yield lambda: [values.tobytes() for values in engine.gradients().values()]
        yield lambda: self.step(5)
        if self.whole:
            yield saved
            yield lambda: recipe.write_run(self.folder)
            yield lambda: self.step(4)
            yield lambda: recipe.accumulate(*self.batches[0])
            yield lambda: recipe.read_run(self.folder)
        if self.whole and hasattr(engine, "decoder") and not self.of_texts:
            yield decoded
        yield lambda: self.step(3)
        yield lambda: s.reset(moments=True)
        yield lambda: recipe.restore(self.first)
        yield self.feed

    def _walk(self):
        """Make all moves; return the states before them and at the end, the results, the sizes."""
        states, results, sizes = [self.state()], [], []
        for move in self.moves:
            result, size = traced(move)
            states.append(self.state())
            results.append(result)
            sizes.append(size)
        return states, results, sizes

    def interrupted(self, seed, times, *, alarm=False):
        """Walk once, and interrupt each move so often; return how many interrupts there were."""
        rng, count = random.Random(seed), 0
        for k, move in enumerate(self.moves):
            for _ in range(times):
                spot = rng.random()
                if alarm:
                    result = timed(move, 1e-6 + spot * 3e-7 * self.sizes[k])
                else:
                    at = 1 + int(spot * self.sizes[k])
                    result, size = traced(move, at)
                    is_lost = result is not INTERRUPTED and size >= at
                    assert not is_lost, f"move {k} at {spot}: the interrupt was lost"
                count += result is INTERRUPTED
                state = self.state()
                if state == self.states[k + 1]:
                    break
                assert state == self.states[k], f"move {k} at {spot}: half of it was made"
            else:
                assert move() == self.results[k], f"move {k}: another result behind an interrupt"
            assert self.state() == self.states[k + 1], f"move {k}: another state"
        return count


def realized(name, base, seed, times):
    """Interrupt the realizing of so many recipes, and realize each again, if it was not.

    Every second interrupt is one of the last, where the recipe takes over what was made.
    """
    make, realize = REALIZED[name]
    rng, recipe = random.Random(seed), make()
    realize(recipe, base)
    expected = one_step(recipe)
    size = min(traced(lambda: realize(make(), base))[1] for _ in range(2))  # the first is longer
    for k in range(times):
        recipe, at = make(), 1 + rng.randrange(size)
        at = size - at % LAST if k % 2 else at
        traced(partial(realize, recipe, base), at)
        if recipe.t_loss is None:
            realize(recipe, base)
        assert one_step(recipe) == expected, f"realizing at {at} of {size}: another step"
