"""What ``toynn fuse`` and ``toynn export`` do: they write files."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from toynn.cli._adapters import combined
from toynn.cli._models import origin
from toynn.engines import SequenceEngine
from toynn.engines.converting import fuse_into
from toynn.errors import ConfigError
from toynn.formats import adapters, bases
from toynn.formats.adapters import Adapter
from toynn.formats.bases import Base
from toynn.formats.fuse import Fused
from toynn.jobs.adapted import UnknownBase
from toynn.jobs.paths import model_file, text_model
from toynn.system.printing import counted, wrapped


def fuse(arguments: Namespace) -> int:
    """Write the model; print what was merged and how much rounding changed."""
    named, tokenizer = origin(arguments)
    model = model_file(named)
    if not Path(model).is_dir():  # a GGUF file keeps its own tokenizer
        tokenizer = arguments.tokenizer
    with bases.open(model) as base:
        weighted, strict = arguments.adapter, arguments.strict
        adapter = combined(weighted, base, arguments.method, strict=strict)
        assert adapter is not None  # the parser requires --adapter
        fused = fuse_into(
            base,
            adapter,
            arguments.out,
            outtype=arguments.outtype,
            overwrite=arguments.overwrite,
            tokenizer=tokenizer,
        )
        merged = f"{arguments.out}: merged {len(fused.types)} of {len(base)} tensors"
    for line in _rounding(fused):
        print(wrapped(line))
    print(f"{merged}, {_say(adapter)}")
    for line in _notes(fused):
        print(wrapped(line))
    return 0


def export(arguments: Namespace) -> int:
    """Write the adapter, or the model."""
    if arguments.to == "hf":
        return _export_model(arguments)
    if arguments.adapter is None:
        raise ConfigError(f"--to {arguments.to}: name the adapter (--adapter)")
    with ExitStack() as stack:
        base: Base | None = None
        with suppress(UnknownBase):  # some adapters do not need it
            base = bases.open(model_file(origin(arguments).model), check=False)
            stack.callback(base.close)
        weighted, strict = arguments.adapter, arguments.strict
        adapter = combined(weighted, base, arguments.method, strict=strict)
        assert adapter is not None
        if arguments.to == "gguf":
            adapters.write_gguf(arguments.out, adapter, base, overwrite=arguments.overwrite)
        else:
            adapters.write_peft(arguments.out, adapter, base, overwrite=arguments.overwrite)
    print(f"{arguments.out}: {len(adapter.pairs)} tensors adapted, {_say(adapter)}")
    return 0


def _export_model(arguments: Namespace) -> int:
    """Write a model as a Hugging Face folder."""
    if arguments.model is None:
        raise ConfigError("--to hf: name the model (--model)")
    if arguments.adapter is not None:
        raise ConfigError("--to hf: it takes no --adapter: merge it by `toynn fuse` first")
    if arguments.overwrite:
        raise ConfigError("--to hf: --overwrite does not replace a folder: name a new one by --out")
    path = text_model(Path(model_file(arguments.model)))
    if path.is_dir():
        raise ConfigError(f"--to hf: {path} is a folder in that format already")
    engine: SequenceEngine[Any] = SequenceEngine.from_file(path, build=False)
    why = engine.export_hf(arguments.out, arguments.tokenizer)
    count = sum(tensor.size for tensor in engine.tensors.values())
    print(f"{arguments.out}: {count:,} parameters as float32, in Hugging Face's format")
    if why:
        print(wrapped(f"the folder has no tokenizer: {why}; --tokenizer names one"))
    return 0


def _say(adapter: Adapter) -> str:
    ranks = sorted({adapter.rank_of(weight) for weight in adapter.pairs})
    kind = " (rsLoRA)" if adapter.use_rslora else ""
    kind += " (DoRA)" if adapter.use_dora else ""
    return (
        f"rank {'-'.join(map(str, ranks[:: len(ranks) - 1 or 1]))}, alpha {adapter.alpha:g}{kind}"
    )


def _notes(fused: Fused) -> Iterator[str]:
    """Yield a line for each changed type."""
    if fused.chosen is not None:
        yield f"all matrices are {fused.chosen.upper()} now; --outtype chooses another type"
    for old, new in sorted(set(fused.types.values())):
        names = [name for name, types in fused.types.items() if types == (old, new)]
        if old != new:
            yield f"{counted(len(names), 'merged tensor')}: {old} before, {new} now"


def _rounding(fused: Fused) -> Iterator[str]:
    """Yield a line for the rounding error of each type."""
    for old, new in sorted(set(fused.types.values())):
        names = [name for name, types in fused.types.items() if types == (old, new)]
        if rounded := [name for name in names if name in fused.squares]:
            worst = max(rounded, key=fused.rounding)
            yield (
                f"rounding to {new} changed {counted(len(rounded), 'merged tensor')} by "
                f"{fused.rounding(*rounded):.2%} of what the adapter adds, {worst} by "
                f"{fused.rounding(worst):.2%}; --outtype f32 avoids it"
            )
