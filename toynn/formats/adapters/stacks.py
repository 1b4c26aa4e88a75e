"""Convert adapters of experts to and from PEFT's form, one adapter for gate and up together.

    toynn, GGUF    gate: A_g (E, r, in), B_g (E, F, r)          up: A_u, B_u
    PEFT           A = [A_g; A_u]  (E R, in), expert by expert  R = 2 r
                   B = [B_g, 0; 0, B_u]  (2 F, R E): for each rank the columns of all experts

B has F rows of gate, then F of up. If the parameter interleaves gate and up, so does B. The product
B A is the same matrix, with twice the rank. If two parameters of a module are adapted, PEFT wraps
the module twice. Names of the second wrapper are the module's; names of the first one go on with
base_layer.
Ranks and alphas are in PEFT's patterns. PEFT 0.21 uses them, though it warns that they match no
module.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toynn.errors import AdapterError
from toynn.formats.adapters.adapter import LORA_A, LORA_B, Adapter, Base, Floats, is_stack
from toynn.formats.hf.name_mapping import NameMapping, module_of
from toynn.formats.hf.pieces import layout_of, rows_of

#: The parameter of transformers that holds a module of a folder's experts: name, part, parts.
_FUSED = {
    "gate_proj": ("gate_up_proj", 0, 2),
    "up_proj": ("gate_up_proj", 1, 2),
    "w1": ("gate_up_proj", 0, 2),
    "w3": ("gate_up_proj", 1, 2),
    "w2": ("down_proj", 0, 1),
}
_LINEAR = {"input_linear": "gate_up_proj", "output_linear": "down_proj"}
_ORDER = ("gate_up_proj", "up_proj", "down_proj")  # of the parameters of a module


class Parameter(NamedTuple):
    """The place of a stack of experts in transformers: some rows of a parameter."""

    module: str
    name: str
    part: int = 0
    parts: int = 1
    interleaved: bool = False

    @property
    def whole(self) -> str:
        """The name of the parameter, with its module."""
        return f"{self.module}.{self.name}"

    def rows(self, total: int) -> slice:
        """Return the part's rows among the parameter's ``total`` rows."""
        return rows_of(self.part, self.parts, self.interleaved, total)


class Wrapped(NamedTuple):
    """PEFT's adapter of a parameter or module: tensors by name, rank and alpha."""

    whole: str
    tensors: dict[str, Floats]
    rank: int
    alpha: float


def parameter_of(mapping: NameMapping, weight: str) -> Parameter:
    """Return the place of a stack in transformers."""
    number = weight.split(".")[1]
    hf_name = mapping.modules[module_of(weight)].replace("{n}", number)
    if "{e}" in hf_name:  # folders have a matrix for each expert, transformers one parameter
        module, _, last = hf_name.partition(".{e}.")
        gated = any(
            name.endswith((".{e}.gate_proj", ".{e}.w1")) for name in mapping.modules.values()
        )
        return Parameter(module, *(_FUSED.get(last) if gated else None) or (last, 0, 1))
    name, part, parts, interleaved = layout_of(hf_name)
    module, _, last = name.rpartition(".")
    if last in _LINEAR:
        module, last = f"{module}.experts", _LINEAR[last]
    return Parameter(module, last, part, parts, interleaved)


def called_as_experts(mapping: NameMapping, weight: str) -> bool:
    """Return whether a plain matrix has the same Hugging Face name as an expert's matrix.

    PEFT takes a target module of such a name for experts, and adapts only its parameter.
    """
    experts = {name.rpartition(".")[2] for name in mapping.modules.values() if "{e}" in name}
    module = mapping.modules.get(module_of(weight), "")
    return not is_stack(weight) and module.rpartition(".")[2] in experts


def parameters(mapping: NameMapping, weights: Iterable[str]) -> dict[str, Parameter]:
    """Return the place in transformers of each weight that is a stack."""
    return {weight: parameter_of(mapping, weight) for weight in weights if is_stack(weight)}


def wrapped(adapter: Adapter, mapping: NameMapping) -> list[Wrapped]:
    """Return the adapters of stacks in PEFT's form."""
    groups: dict[str, dict[str, Parameter]] = {}
    for weight, parameter in parameters(mapping, adapter.pairs).items():
        groups.setdefault(parameter.whole, {})[weight] = parameter
    modules: dict[str, list[str]] = {}
    for whole, group in groups.items():
        modules.setdefault(next(iter(group.values())).module, []).append(whole)
    adapters = []
    for whole, group in groups.items():
        parameter = next(iter(group.values()))
        inner = len(modules[parameter.module]) > 1 and parameter.name != _ORDER[-1]
        place = f"base_model.model.{parameter.module}{'.base_layer' * inner}"
        total = adapter.pairs[next(iter(group))][1].shape[1] * parameter.parts
        kept = {weight: part.rows(total) for weight, part in group.items()}
        a, b, alpha = together(adapter, kept, total)
        columns = np.ascontiguousarray(b.transpose(1, 2, 0)).reshape(b.shape[1], -1)
        pair = {"A": a.reshape(-1, a.shape[-1]), "B": columns}
        tensors = {f"{place}.lora_{side}.weight": values for side, values in pair.items()}
        adapters.append(Wrapped(whole, tensors, a.shape[1], alpha))
    return adapters


def together(
    adapter: Adapter, rows: Mapping[str, slice | NDArray[np.intp]], total: int
) -> tuple[Floats, Floats, float]:
    """Join adapters of parts of a matrix; return A (.., R, in), B (.., total, R) and alpha."""
    pairs = {weight: adapter.pairs[weight] for weight in rows}
    scale = adapter.scale(next(iter(rows)))
    a = np.concatenate([pair[0] for pair in pairs.values()], axis=-2)
    rank, stacked = a.shape[-2], a.shape[:-2]
    b, column = np.zeros((*stacked, total, rank), np.float32), 0
    for weight, kept in rows.items():
        scaled = pairs[weight][1] * np.float32(adapter.scale(weight) / scale)
        first, column = column, column + scaled.shape[-1]
        b[..., kept, first:column] = scaled
    return a, b, scale * (sqrt(rank) if adapter.use_rslora and adapter.alpha else rank)


# -- Reading -------------------------------------------------------------------------------------


def unwrapped(
    where: str,
    mapping: NameMapping,
    base: Base,
    targets: Collection[str],
    names: Collection[str],
    read: Callable[[str], Floats],
) -> tuple[dict[str, Floats], dict[str, str], set[str]]:
    """Return A and B of stacks, the parameter of each stack, and the names that were read.

    ``targets`` are PEFT's target_parameters; ``where`` begins an error. Raises AdapterError for
    missing tensors, and for shapes that do not fit the base model.
    """
    groups: dict[str, dict[str, Parameter]] = {}
    for weight, parameter in parameters(mapping, base.tensors).items():
        whole = parameter.whole
        if any(f".{whole}".endswith(f".{target}") for target in targets):
            groups.setdefault(whole, {})[weight] = parameter
    modules = {next(iter(group.values())).module for group in groups.values()}
    tensors: dict[str, Floats] = {}
    places: dict[str, str] = {}
    seen: set[str] = set()
    for module in sorted(modules):
        inside = [f"{module}.{name}" for name in _ORDER if f"{module}.{name}" in groups]
        for whole, inner in zip(
            inside, (".base_layer", "") if len(inside) > 1 else ("",), strict=True
        ):
            pair = [f"base_model.model.{module}{inner}.lora_{side}.weight" for side in "AB"]
            if missing := [name for name in pair if name not in names]:
                raise AdapterError(f"{where}: tensor {missing[0]} is missing, of {whole}")
            tensors |= _apart(where, base, groups[whole], *(read(name) for name in pair))
            places |= dict.fromkeys(groups[whole], whole)
            seen |= set(pair)
    return tensors, places, seen


def _apart(
    where: str, base: Base, group: Mapping[str, Parameter], a: Floats, b: Floats
) -> dict[str, Floats]:
    """Return A and B of the stacks in a parameter; all share one A."""
    weight, parameter = next(iter(group.items()))
    experts, rows, columns = base.tensors[weight].shape
    shapes = (a.shape[0] // experts * experts, columns), (rows * parameter.parts, a.shape[0])
    if (a.shape, b.shape) != shapes or not a.size:
        raise AdapterError(
            f"{where}: {parameter.whole}: expected lora_A (R {experts}, {columns}) and lora_B "
            f"({shapes[1][0]}, R {experts}); got {a.shape} and {b.shape}"
        )
    whole = b.reshape(b.shape[0], -1, experts).transpose(2, 0, 1)
    stacked = a.reshape(experts, -1, columns)
    tensors: dict[str, Floats] = {}
    for name, part in group.items():
        tensors[name + LORA_A] = stacked
        tensors[name + LORA_B] = np.ascontiguousarray(whole[:, part.rows(len(b))])
    return tensors
