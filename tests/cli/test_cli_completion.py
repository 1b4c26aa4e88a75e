"""``toynn completion bash``, read by a bash: what Tab offers, word by word."""

import contextlib
import io
import shutil
import subprocess

import pytest
from hang import HANG

from toynn.cli import main

ASK = """
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _toynn; echo "${COMPREPLY[*]}"; }
"""
LINES = {
    ("toynn", "tr"): "train",
    ("toynn", "train", "lo"): "lora",
    ("toynn", "train", "lora", "--ran"): "--rank --rank-timeout",
    ("toynn", "train", "lora", "--model", "a b.gguf", "--loss", ""): "sft dpo orpo kto",
    ("toynn", "train", "vit", "--loss", ""): "",
    ("toynn", "train", "gpt2", "--lr-schedule", "c"): "cosine constant",
    ("toynn", "train", "lora", "--data", ""): "",  # the shell completes files
    ("toynn", "train", "lora", "--metric", "m"): "margins",
    ("toynn", "train", "vit", "--metric", ""): "loss accuracy",
    ("toynn", "train", "lora", "--init", "p"): "peft pissa",
    ("toynn", "train", "lora", "--targets", "a"): "attention all-linear",
    ("toynn", "train", "gpt2", "--report", ""): "html tensorboard wandb none",
    ("toynn", "generate", "--backend", ""): "cpu metal reference",
    ("toynn", "bench", "--only", "mat"): "matmul",
    ("toynn", "fuse", "--outtype", "q4_k"): "q4_k_s q4_k_m",
    ("toynn", "plot", "runs/a", "--what", "l"): "loss lr learned_tokens length",
    ("toynn", "info", ""): "",
    ("toynn", "completion", ""): "bash zsh --help",
}


@pytest.fixture(scope="module")
def script():

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["completion", "bash"]) == 0
    return printed.getvalue()


def test_what_tab_offers(script, tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    path = tmp_path / "ask.sh"
    asked = "\n".join("ask " + " ".join(f"'{word}'" for word in words) for words in LINES)
    path.write_text(script + ASK + asked + "\n")
    done = subprocess.run([bash, "--norc", path], capture_output=True, text=True, timeout=HANG)
    assert done.stderr == ""
    assert dict(zip(LINES, done.stdout.split("\n"), strict=False)) == LINES


def test_zsh_reads_the_same_by_its_bashcompinit(script, capsys):
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert out.endswith(script) and "bashcompinit" in out.removesuffix(script)
