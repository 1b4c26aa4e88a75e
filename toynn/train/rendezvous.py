"""Prepare the first step of several processes: check that they agree, and share the state.

Functions:

    agree       compare version, instruction set, configuration, hashes of files, the first batch
    share       copy the weights and moments of rank 0 to all ranks
    measured    time a step and a sum, to predict the cost on other machines
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from toynn.backends.threads import get_num_threads
from toynn.data.batch import Batch
from toynn.distributed import LINKS, Cost, Group
from toynn.engines.snapshot import Snapshot
from toynn.errors import ConfigError, DataError
from toynn.system.printing import counted
from toynn.train.differences import differences
from toynn.train.ranks import BLOCK, Ranks

T = TypeVar("T")

MACHINES = (2, 4, 8, 16, 32, 64)
MB = 1e6

TIMES = 3  # measurements of a sum


def agree(group: Group, recipe: Any, identity: Mapping[str, Any], first: Batch | None) -> None:
    """Raise ConfigError, with the differences, on all ranks unless all would do the same.

    Hashes are compared first; the full description is sent only if they differ.
    """
    settings = {
        **identity,
        "parameters": {name: w.shape for name, w in recipe.parameters.items()},
        "first batch": None if first is None else _digest(first),
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    hashes = group.gather(hashlib.sha256(text.encode()).hexdigest())
    if len(set(hashes)) == 1:
        return
    tables = [json.loads(each) for each in group.gather(text)]
    rank = next(rank for rank, each in enumerate(hashes) if each != hashes[0])
    lines = differences(tables[0], tables[rank])
    for words in (("then", "there"), ("now", "here")):
        lines = [line.replace(f" {words[0]}", f" {words[1]}") for line in lines]
    raise ConfigError(
        f"the ranks would not do the same: {group.name(rank)} differs from {group.name(0)}: "
        f"{'; '.join(lines)}"
    )


def _digest(batch: Batch) -> str:
    whole = hashlib.sha256()
    for array in map(np.asarray, (each for each in Batch.of(batch) if each is not None)):
        whole.update(repr((array.shape, str(array.dtype))).encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def check_enough(group: Group, source: Any) -> None:
    """Raise DataError if there are fewer examples than ranks."""
    examples = getattr(source, "examples", None)
    if examples is not None and examples < group.size:
        raise DataError(
            f"{examples} training examples for {group.size} ranks: expected at least one for each; "
            f"start fewer (mpiexec -n {max(1, examples)}), or use more data"
        )


def share_state(group: Group, recipe: Any) -> None:
    """Copy rank 0's training state to all ranks, except waiting gradients."""
    state: Snapshot = recipe.snapshot()
    moments = {n: shape for n, shape in state.optimizer.items() if not n.endswith(".sum")}
    counts = {**group.tell(state.counts), "waiting": 0.0}
    if group.rank == 0:
        for name in (*state.weights, *moments):
            group.share(state.read(name))
        return

    def received(name: str) -> NDArray[np.float32]:
        return group.share(np.empty({**state.weights, **moments}[name], np.float32))

    recipe.restore(Snapshot(counts, state.weights, moments, received, state.kind))


def share_weights(group: Group, engine: Any) -> None:
    """Copy the trained weights of rank 0 to all ranks."""
    for tensor in engine.parameters.values():
        engine.session.upload(tensor, group.share(engine.session.download(tensor)))


def measured(ranks: Ranks, first: Batch, per_update: int) -> Cost:
    """Return an estimate of the cost of a step, before the first step.

    A forward pass is timed twice, and scaled to a step by the tape's flops. A sum of zeros of the
    gradients' size is timed too. Raises ConfigError if ranks with the same weights get different
    losses of one batch: then their bases differ.
    """
    group, recipe = ranks.group, ranks.recipe
    session: Any = recipe.session
    losses, times = zip(*(_timed(lambda: recipe.evaluate(first)) for _ in range(2)), strict=True)
    hexes = group.gather(losses[0].hex())
    if len(set(hexes)) > 1:
        rank = next(rank for rank, each in enumerate(hexes) if each != hexes[0])
        raise ConfigError(
            f"{group.name(rank)} gets another loss of the first batch than {group.name(0)} with "
            "the same weights: do they have the same base and build of toynn?"
        )
    flops = dict.fromkeys("FEBU", 1)
    for node in session.tape.nodes:
        flops[node.phase] += node.flops
    whole = (flops["F"] + flops["B"] + flops["U"]) / (flops["F"] + flops["E"])
    nbytes = session.gradient_bytes
    values = np.zeros(max(1, min(BLOCK * group.size, nbytes // 4)), np.float32)
    memory, sums = [], []
    for _ in range(TIMES):
        memory.append(_timed(lambda: np.add(values, values.copy(), out=values))[1])
        group.barrier("a sum")
        sums.append(_timed(lambda: ranks.sum(values))[1])
    figures = [min(times), min(memory) / values.nbytes, min(sums) / values.nbytes]
    forward, copying, here = group.exchange(figures).max(axis=0).tolist()
    share = -(-per_update // group.size)  # the most micro-batches of an update that a rank has
    return Cost(nbytes, forward * whole * share, copying, here * nbytes)


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def expected(ranks: Ranks, per_update: int) -> Iterator[str]:
    """Yield the first lines of a run: the work of each rank and its expected cost."""
    group, cost = ranks.group, ranks.cost
    places = ", ".join(f"{count} on {host}" for host, count in Counter(group.hosts).items())
    limit = ranks.recipe.session.n_threads
    threads, cpus = get_num_threads(limit), len(frozenset().union(*group.local_cpus))
    each = f"{counted(threads, 'thread')} each of {counted(cpus, 'CPU')}"
    yield f"ranks       {group.size}: {places}; here {each}"
    if len(group.local_cpus) * threads > cpus:
        yield f"            more threads than CPUs: more than {cpus} in all do not help"
    if per_update % group.size:
        yield (
            f"            an update has {per_update} batches, as at the run's start: of "
            f"{group.size} ranks, some have fewer"
        )
    share = cost.here / (cost.here + cost.work)
    order = "in the order of the ranks" if ranks.order == "ordered" else "in any order"
    moved = f"{cost.moved(group.size) / MB:.2f} MB"
    yield f"gradients   {cost.nbytes / MB:.2f} MB, added {order}"
    yield f"            a rank sends {moved} a step, and receives as many"
    yield f"expected    {seconds(cost.work + cost.here)} a step, {share:.1%} of it the sum"
    if len(set(group.hosts)) == 1:
        yield "            speed with one rank a machine, compared with one machine:"
        yield f"            machines  {''.join(f'{n:7}' for n in MACHINES)}"
        for name, link in LINKS.items():
            row = "".join(f"{cost.faster(n, link):7.1f}" for n in MACHINES)
            yield f"            {name:10}{row}"


def took(ranks: Ranks) -> Iterator[str]:
    """Yield the last lines of a run: the measured cost next to the expected one."""
    spent, cost = ranks.spent, ranks.cost
    if not spent.steps:
        return
    step, here = spent.whole / spent.steps, cost.work + cost.here
    yield (
        f"ranks       a step took {seconds(step)} (expected {seconds(here)}): sums "
        f"{spent.sums / spent.whole:.1%}, waiting for other ranks {spent.waits / spent.whole:.1%}"
    )


def seconds(time: float) -> str:
    """Return a time in seconds or milliseconds, with about three digits."""
    return f"{time:.2f} s" if time >= 1 else f"{time * 1e3:.3g} ms"
