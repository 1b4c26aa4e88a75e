"""Commands that continue or use a run, by the files in its folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toynn.runs.record import CONFIG, METRICS, Record
from toynn.system.platform import in_shell


def commands(record: Record) -> Iterator[tuple[str, str]]:
    """Yield what can be done next, each with its command."""
    folder = record.path
    run, train = in_shell(folder), record.table("train")
    by_command = record.recipe is not None and (folder / CONFIG).is_file()
    if by_command and any(folder.glob("checkpoint-*/complete.json")):
        if record.planned is None or record.steps < record.planned:
            yield "continue from the newest checkpoint", f"toynn train --resume {run}"
        else:
            longer = f"toynn train --resume {run} --steps {2 * record.planned}"
            yield "train it for more steps", longer
    model = train.get("model")
    if (folder / "adapter.gguf").exists():
        yield from _with_adapter(model, run, folder)
    elif (folder / "model.gguf").exists():
        yield "let it write", f'toynn generate --model {run} --prompt "..."'
        yield "measure it", f"toynn eval --model {run} --data FILE"
        yield "write it for transformers", f"toynn export --model {run} --to hf --out FOLDER"
    elif (folder / "model.safetensors").exists():
        yield "ask it about a picture", f"toynn predict --model {run} picture.png"
    if by_command:
        again = f"toynn train --config {in_shell(folder / CONFIG)} --out NEW"
        yield "run it again; typed flags take precedence over the file's", again
    if (folder / METRICS).exists():
        yield "compare its curves with those of another run", f"toynn plot {run} OTHER"


def _with_adapter(model: Any, run: str, folder: Path) -> Iterator[tuple[str, str]]:
    base = in_shell(model) if isinstance(model, str) else "base.gguf"
    adapter = in_shell(folder / "adapter.gguf")
    both = f"--model {base} --adapter {run}"
    yield "let it write", f'toynn generate {both} --prompt "..."'
    file = base
    if isinstance(model, str) and Path(model).is_dir():
        file = "model.gguf"
        yield "write the base for llama.cpp", f"toynn convert {base} --out {file}"
    yield "the same in llama.cpp", f'llama-completion -no-cnv -m {file} --lora {adapter} -p "..."'
    yield "compare it with its base", f"toynn eval {both} --against {base} --data FILE"
    yield "write it for PEFT", f"toynn export {both} --to peft --out FOLDER"
    yield "merge it into the base", f"toynn fuse {both} --out merged.gguf"
