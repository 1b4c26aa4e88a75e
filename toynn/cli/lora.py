"""``toynn train lora``: from a GGUF file and data to an adapter of it in a run folder."""

import shlex
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from toynn.adamw import AdamW
from toynn.cli._numbers import real, whole
from toynn.cli._paths import model_file
from toynn.cli._run import (
    MIB,
    add_run_arguments,
    apply_settings,
    cosine,
    print_model,
    print_result,
    resolve_run,
    run_folder,
    run_loop,
)
from toynn.cli._text_data import (
    DATA,
    EVAL_BATCHES,
    add_mask_argument,
    described,
    print_test_loss,
    read_data,
    write_sample,
)
from toynn.engines import engine_for
from toynn.errors import ConfigError
from toynn.formats import gguf
from toynn.formats.gguf import GGUFFile
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.options import RecipeOptions
from toynn.recipes import LoRA
from toynn.train.folder import RunFolder
from toynn.train.metrics import plot_losses

__all__ = ["add_parser"]

RECIPE = "lora"
NORMAL_STD = 0.02  # of A with --init normal, as of other weights
#: What --adapter leaves no choice about, and the defaults without it.
FRESH = {"rank": 8, "alpha": 16.0, "targets": "attention", "rslora": False, "init": "peft"}


def add_parser(recipes: Any) -> None:
    """Add the recipe to those of ``toynn train``."""
    help_ = "an adapter of a model in a GGUF file, quantized or not, which is only read"
    parser = recipes.add_parser(RECIPE, help=help_, description=help_, allow_abbrev=False)
    model = "the .gguf file of a llama, qwen2, qwen3 or gpt2"
    parser.add_argument("--model", type=model_file, required=True, metavar="FILE", help=model)
    parser.add_argument("--data", required=True, metavar="PATH", help=DATA)
    add_mask_argument(parser)
    length = "the most tokens of an example, or those of a window of text (default 512)"
    parser.add_argument("--seq", type=whole(1), default=512, metavar="N", help=length)
    _add_adapter_arguments(parser)
    own = {"steps": 200, "batch": 1, "lr": 2e-4, "weight_decay": 0.0}
    add_run_arguments(parser, RECIPE, "examples", **own, log_every=10, eval_every=50)
    parser.set_defaults(run=train_lora)


def _add_adapter_arguments(parser: ArgumentParser) -> None:
    rank = f"rank of the adapters (default {FRESH['rank']})"
    parser.add_argument("--rank", type=whole(1), metavar="N", help=rank)
    alpha = f"they are scaled by alpha / rank (default {FRESH['alpha']:g})"
    parser.add_argument("--alpha", type=real(0, above=True), metavar="N", help=alpha)
    targets = (
        "which projections get one, separated by commas: q, k, v, o, gate, up, down, attention, "
        f"all-linear, or names as in GGUF or PEFT (default {FRESH['targets']})"
    )
    parser.add_argument("--targets", metavar="NAMES", help=targets)
    rslora = "scale by alpha / sqrt(rank) instead"
    parser.add_argument("--rslora", action="store_true", default=None, help=rslora)
    init = "what A starts from: a uniform distribution, as PEFT's (the default), or a normal one"
    parser.add_argument("--init", choices=("peft", "normal"), help=init)
    dropout = "zero so much of what an adapter sees while it is trained (default 0)"
    parser.add_argument("--dropout", type=real(0, 0.99), default=0.0, metavar="N", help=dropout)
    more = "go on with an adapter: a .gguf file, or a folder in PEFT's format"
    parser.add_argument("--adapter", metavar="PATH", help=more)


def train_lora(arguments: Namespace) -> int:
    """Train an adapter as the arguments say; return the exit code."""
    start = time.perf_counter()
    _resolve(arguments)
    RunFolder.check_absent(Path(arguments.out))
    apply_settings(arguments)
    with gguf.open(arguments.model) as file:
        engine_for(file)  # before anything takes time
        tokenizer = Tokenizer.from_gguf(file)
        context = file.require(f"{file.architecture}.context_length", int)
        vocab_size, seq = tokenizer.vocab_size, min(arguments.seq, context)
        data, corpus = read_data(arguments, tokenizer, seq, vocab_size)
        arguments.t_seq = data.seq
        recipe = _realize(arguments, file)
    print_model(recipe.engine)
    mapped = recipe.engine.session.memory().mapped
    print(f"            beside {mapped / MIB:.1f} MiB of the model's file, which stay mapped")

    optimizer = AdamW.for_lora()
    optimizer.weight_decay = arguments.weight_decay
    with run_folder(arguments, data=described(arguments.data, data, corpus)) as folder:
        result = run_loop(
            arguments,
            recipe,
            data.batches(arguments.batch, arguments.seed),
            data.valid_batches(arguments.batch, EVAL_BATCHES),
            optimizer,
            cosine(arguments),
            folder,
            on_best=lambda: recipe.export_adapter(folder.adapter, overwrite=True),
        )
        recipe.load_adapter(folder.adapter)
        recipe.export_peft(folder.path)
        if not result.interrupted:
            write_sample(recipe.engine, tokenizer, data, folder, arguments.seed)
            plot_losses(result.reports, folder.plot, {})
        before = result.reports[0].val_loss
        more = "" if before is None else f"before training {before:.4f}"
        print_result(result, more, folder, time.perf_counter() - start)
        print_test_loss(recipe, data, arguments.batch)
        model, adapter = (shlex.quote(str(path)) for path in (arguments.model, folder.adapter))
        chat = " --chat" if data.chats else ""
        print(f"try it      toynn generate --model {model} --adapter {adapter}{chat} --prompt ...")
        if not isinstance(tokenizer, ByteTokenizer):  # which llama.cpp does not have
            print(f"            llama-cli -m {model} --lora {adapter}")
    return 130 if result.interrupted else 0


def _resolve(arguments: Namespace) -> None:
    """Fill in what was not given; refuse what contradicts itself."""
    resolve_run(arguments)
    found = vars(arguments)
    for name, value in FRESH.items():
        if arguments.adapter is None:
            found[name] = value if found[name] is None else found[name]
        elif found[name] is not None:
            raise ConfigError(f"--{name}: the adapter that --adapter names has its own")


def _realize(arguments: Namespace, file: GGUFFile) -> LoRA:
    """Return the recipe, ready to step."""
    recipe = LoRA()
    options = RecipeOptions(
        t_seq=arguments.t_seq,
        t_batch=arguments.batch,
        seed=arguments.seed,
        checkpointing=arguments.checkpointing,
        init_scale=NORMAL_STD,
    )
    if arguments.adapter is not None:
        recipe.realize_from_adapter(file, arguments.adapter, options, arguments.dropout)
        return recipe
    recipe.realize(
        file,
        None,
        arguments.rank,
        options,
        arguments.alpha,
        [target.strip() for target in arguments.targets.split(",")],
        arguments.dropout,
        arguments.rslora,
        init=arguments.init,
    )
    return recipe
