"""Other programs' names for commands, flags and values, for hints at toynn's names.

The programs are mlx-lm, PEFT, TRL, transformers' Trainer, llama.cpp, ollama, nanoGPT and axolotl.
"""

import re
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches

from toynn.formats.foreign import PAGE
from toynn.options import RENAMED, Option

#: Least similarity of two words, 0 to 1, for one to be suggested for the other.
NEAR = 0.7

_COMMANDS = {
    "train lora": "lora qlora finetune fine-tune fine_tune sft mlx_lm.lora",
    "train lora --loss dpo": "dpo",
    "train lora --loss orpo": "orpo",
    "train lora --loss kto": "kto",
    "train gpt2": "pretrain gpt2",
    "generate": "run sample inference infer complete main llama-completion mlx_lm.generate",
    "chat": "talk interactive llama-cli mlx_lm.chat",
    "eval": "evaluate perplexity ppl benchmark llama-perplexity lm_eval lm-eval",
    "check": "preprocess validate inspect-data",
    "fuse": "merge merge-lora merge_lora quantize llama-quantize export-lora mlx_lm.fuse",
    "convert": "convert_hf_to_gguf convert-hf-to-gguf convert_hf_to_gguf.py",
    "info": "show inspect gguf-dump gguf_dump",
    "bench": "llama-bench",
    "runs": "list ls",
    "train from-scratch": "scratch llama pretraining",
    "train classify": "classifier classification text-classification token-classification",
    "train rerank": "reranker cross-encoder",
    "embed": "embedding embeddings encode llama-embedding",
}
_FLAGS = {
    "model": "base-model model-name-or-path model-path model-name base-model-name-or-path",
    "adapter": "lora adapter-path lora-scaled lora-path resume-adapter-file peft-model-id",
    "data": "dataset datasets dataset-name train-data train-file data-path training-data",
    "valid": "val-data valid-data eval-data validation-file eval-file eval-dataset",
    "holdout": "val-set-size val-size test-size validation-split eval-split",
    "out": "output output-dir out-dir save-path output-path folder",
    "steps": "max-steps max-iters num-iters num-steps n-steps total-steps",
    "epochs": "num-train-epochs num-epochs n-epochs",
    "batch": "per-device-train-batch-size micro-batch-size train-batch-size",
    "grad-accum": "gradient-accumulation-steps gradient-accumulation accumulate-grad-batches",
    "seq": "max-length sequence-len sequence-length cutoff-len block-size ctx-size max-seq-len c",
    "lr-schedule": "lr-scheduler-type lr-scheduler scheduler",
    "min-lr-ratio": "min-lr cosine-min-lr-ratio",
    "warmup": "warmup-steps warmup-iters num-warmup-steps",
    "max-grad-norm": "grad-clip gradient-clipping clip-grad",
    "eval-every": "eval-steps eval-interval val-interval",
    "save-every": "save-steps save-interval checkpoint-every",
    "log-every": "logging-steps log-interval",
    "rank": "lora-rank lora-r lora-dim r",
    "alpha": "lora-alpha",
    "dropout": "lora-dropout",
    "targets": "lora-target-modules target-modules lora-targets lora-keys",
    "question-delimiter": "target-delimiter",
    "num-layers": "lora-layers layers-to-transform",
    "lorafa": "lora-fa use-lorafa",
    "dora": "use-dora",
    "rslora": "use-rslora",
    "init": "init-lora-weights",
    "loss": "loss-type rl train-mode",
    "metric": "metric-for-best-model",
    "checkpointing": "grad-checkpoint gradient-checkpointing activation-checkpointing",
    "no-mask-prompt": "train-on-inputs",
    "resume": "resume-from-checkpoint auto-resume-from-checkpoints",
    "report": "wandb report-to wandb-project use-wandb tensorboard",
    "precision": "bf16 fp16 tf32 fp32 dtype torch-dtype mixed-precision",
    "backend": "device gpu cuda n-gpu-layers ngl",
    "threads": "num-threads n-threads cpu-threads t",
    "seed": "s",
    "d-model": "n-embd hidden-size embed-dim",
    "layers": "n-layer n-layers num-hidden-layers",
    "heads": "n-head num-attention-heads",
    "temp": "temperature",
    "max-tokens": "max-new-tokens num-tokens n-predict",
    "prompts": "file prompt-file",
    "system": "system-prompt",
    "outtype": "dtype-out quant quantization q-bits ftype",
}
_ADVICE = {
    "prompts carry no loss anyway: leave it out": "mask-prompt",
    "an evaluation reads all validation data; --holdout N holds out less": "eval-iters",
    "only adapters have dropout: `toynn train lora`": "dropout",
    "AdamW's betas are 0.9 and 0.999, or 0.95 for from-scratch and warm-start: leave it out": (
        "beta1 beta2 adam-beta1 adam-beta2 betas"
    ),
    "the rate falls along --lr-schedule, over all steps: leave it out": "lr-decay-iters",
    "the kernels are compiled: leave it out": "compile torch-compile",
    "the type is LoRA, or DoRA (--dora); `toynn train from-scratch --init-from MODEL` trains all "
    "weights": "fine-tune-type",
    "`toynn eval --adapter RUN --data FOLDER` measures test.jsonl": "test",
    "the model may be a quantized file, such as `toynn convert --outtype q8_0` writes": (
        "load-in-4bit load-in-8bit"
    ),
    "the context is the model's own; --max-tokens limits the answer": "c ctx-size",
    "the model's end-of-text token always ends a text: leave it out": "ignore-eos",
    f"toynn does not serve, but llama-server loads what it writes: see {PAGE}": (
        "serve server api llama-server mlx_lm.server"
    ),
}
_VALUES = {
    "medium": "bf16 bfloat16 fp16 float16 half mixed",
    "highest": "fp32 float32 full",
    "high": "tf32",
    "cosine": "cosine_decay cosine_with_min_lr",
    "constant": "constant_with_warmup",
    "linear": "linear_schedule linear_decay",
    "metal": "mps gpu",
    "normal": "gaussian",
    "macro-f1": "f1 F1 f1_macro macro_f1",
    "micro-f1": "f1_micro micro_f1",
    "entity-f1": "seqeval entity_f1",
}
_CHAT = {
    "clear": "reset new restart r",
    "undo": "back pop",
    "help": "? h commands",
    "regen": "regenerate retry again redo",
    "system": "set",
    "save": "export write",
    "exit": "q",
}


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: flag for flag, names in table.items() for name in names.split()}


#: toynn's name by another program's name. CHAT is for commands within a conversation.
COMMANDS, FLAGS, VALUES = _by_name(_COMMANDS), _by_name(_FLAGS), _by_name(_VALUES)
CHAT = _by_name(_CHAT)
#: What to do without a command or a flag that toynn does not have.
ADVICE = _by_name(_ADVICE)


def meant(name: str, known: Iterable[str], *tables: dict[str, str]) -> str | None:
    """Return the known name that an unknown one may mean, or None.

    Other programs' names are tried first, if the first word of toynn's name is known; then the most
    similar known name, unless there is ``ADVICE``.
    """
    names = list(known)
    for table in tables:
        flags = table.get(name, "")
        for words in (flags, flags.removeprefix("train ")):
            if words.partition(" ")[0] in names:
                return words
    close = get_close_matches(name, names, 1, NEAR)
    return close[0] if close and name not in ADVICE else None


def hint(
    name: str, known: Iterable[str], *tables: dict[str, str], form: Callable[[str], str] = str
) -> str:
    """Return "did you mean ...?" for an unknown name, or advice; "" without either."""
    flag = meant(name, known, *tables)
    return f"did you mean {form(flag)}?" if flag else ADVICE.get(name, "")


def hinted(message: str) -> str:
    """Return a message about a wrong choice, with a hint if there is one."""
    names = r"must be (?:one )?of (?P<known>.*); got '(?P<word>[^']+)'"
    choice = r"invalid choice: '(?P<word>[^']+)' \(choose from (?P<known>.*)\)"
    wrong = re.search(names, message) or re.search(choice, message)
    more = wrong and hint(wrong["word"], re.findall(r"[\w-]+", wrong["known"]), COMMANDS, VALUES)
    return f"{message}; {more}" if more else message


def option_hint(name: str, options: Collection[Option]) -> str:
    """Return a hint at the option that an unknown key or keyword may mean; "" if there is none."""
    flags = {each.name: each.flag[2:] for each in options}
    if RENAMED.get(name) in flags:
        return f"its name is {RENAMED[name]} now"
    also = {each.also.lstrip("-"): each.flag[2:] for each in options if each.also}
    return hint(name.replace("_", "-"), flags.values(), also, FLAGS, form=_keyword)


def _keyword(flag: str) -> str:
    return flag.replace("-", "_")
