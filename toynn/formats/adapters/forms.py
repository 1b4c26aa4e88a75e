"""Which adapters the GGUF and PEFT formats can hold, and why not."""

from collections.abc import Iterable

from toynn.formats.adapters.adapter import HEAD, LORA_M, TABLE, Base, is_stack, is_tied
from toynn.formats.adapters.stacks import called_as_experts
from toynn.formats.hf.name_mapping import NAME_MAPPINGS, module_of

#: Matrices of attention over latents that llama.cpp multiplies by without their adapters.
_UNADAPTED = ("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b")
#: One more matrix whose adapter llama.cpp ignores; all blocks share it.
_INPUTS = "per_layer_model_proj.weight"
_INSTEAD = "write a PEFT folder, or merge it into a model (toynn fuse)"


def no_gguf(tensors: Iterable[str], base: Base | None = None) -> str:
    """Return why no GGUF file can hold an adapter with these tensors; "" if one can."""
    names = list(tensors)
    if any(name.endswith(LORA_M) for name in names):
        return f"llama.cpp's adapters are A and B, without DoRA's magnitudes: {_INSTEAD}"
    known = () if base is None else base.tensors
    for name in names:
        weight = name.rpartition(".")[0]
        scale = f"{weight.removesuffix('weight')}scale"
        if weight == _INPUTS:
            return f"llama.cpp reads an adapter of {weight}, and does not apply it: {_INSTEAD}"
        if scale in known:
            return (
                f"llama.cpp multiplies only {weight} by {scale}, not its adapter; toynn multiplies "
                f"both: {_INSTEAD}"
            )
        if name.rpartition(".weight.")[0].rpartition(".")[2] in _UNADAPTED:
            return (
                f"llama.cpp reads an adapter of {name.rpartition('.')[0]}, and does not apply it: "
                f"in attention over latents it adapts only attn_output (train the targets o, "
                f"gate, up, down, experts); {_INSTEAD}"
            )
    if base is not None and (weight := _unadapted(names, base.architecture, "gguf")):
        return f"{weight}: llama.cpp multiplies by it without adapters: {_INSTEAD}"
    for name in names if base is not None and is_tied(base) else ():
        if name.startswith(TABLE):
            return (
                f"{TABLE} is also the head of this model. llama.cpp finds adapters by the name of "
                f"their tensor, so it cannot adapt the embedding table alone: {_INSTEAD}"
            )
        if name.startswith(HEAD):
            return (
                f"this model has no {HEAD}: its head is the embedding table, and llama.cpp adapts "
                f"only existing tensors: {_INSTEAD}"
            )
    return ""


def no_peft(tensors: Iterable[str], architecture: str) -> str:
    """Return why no PEFT folder can hold an adapter with these tensors; "" if one can."""
    names = list(tensors)
    if weight := _unadapted(names, architecture, "peft"):
        return (
            f"{weight}: PEFT adapts no module of that name in {architecture}: leave it out of the "
            "targets, or write adapter.gguf"
        )
    if not any(name.endswith(LORA_M) for name in names):
        return ""
    weights = sorted({name.rpartition(".")[0] for name in names})
    mapping = NAME_MAPPINGS.get(architecture)
    for weight in weights:
        what = "expert matrices are one parameter" if is_stack(weight) else ""
        if mapping and called_as_experts(mapping, weight):
            what = "it has the name of an expert matrix, so PEFT adapts its parameter"
        if what:
            return (
                f"{weight}: expected only A and B; got DoRA: in transformers {what}, and "
                "PEFT has no magnitudes for parameters: leave it out of the targets"
            )
    return ""


def _unadapted(names: Iterable[str], architecture: str, program: str) -> str:
    """Return a weight whose adapter a program does not apply; empty if there is none."""
    mapping = NAME_MAPPINGS.get(architecture)
    weights = sorted({name.rpartition(".")[0] for name in names})
    without = mapping.unadapted if mapping else {}
    return next((weight for weight in weights if without.get(module_of(weight)) == program), "")
