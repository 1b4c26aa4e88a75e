"""From text to a chat: tokenizer, tokens, pretraining, conversations, samples, one page.

    python examples/speedrun.py --form five                 # or minute, evening
    python examples/speedrun.py --form five --data MY_TEXTS --out mine

Without --data it reads the source of Python's library, as this interpreter has it. Conversations
ask what a function does; its docstring answers. Whole files are held out. Type the same command
again after Ctrl-C: it continues. OUT/index.html shows all stages, OUT/LOG/ what each printed.
"""

import ast
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from argparse import ArgumentParser
from pathlib import Path

from clock import bits_per_byte, check_apart, parted

from toynn.data.texts import contents
from toynn.formats.tokenizer import Tokenizer

#: Most bytes of text, tokens of the tokenizer, flags of the model, Muon's rate (1.2e-2 times the
#: root of 128 / width), steps, steps on conversations.
FORMS = {
    "minute": (600_000, 512, "--d-model 64 --layers 2 --heads 2 --seq 64", 0.017, 200, 60),
    "five": (6_000_000, 2048, "--d-model 128 --layers 4 --heads 4 --seq 128", 0.012, 2000, 500),
    "evening": (10**9, 8192, "--d-model 384 --layers 6 --heads 6 --seq 256", 0.007, 6000, 600),
}
OTHERS = re.compile(r"/(site-packages|test|tests|idlelib|lib2to3|__pycache__)/")
HELD = 12  # of 256 files
ASKED = ("What does textwrap.dedent do?", "What does os.path.join do?")


def sources(data):
    """Return (name, text) of each file: the user's, or the library's."""
    if data is not None:
        files = sorted(each for each in data.rglob("*") if each.suffix in (".txt", ".md", ".py"))
        return [(str(each.relative_to(data)), "".join(contents(each))) for each in files or [data]]
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(each for each in root.rglob("*.py") if not OTHERS.search(each.as_posix()))
    return [(str(each.relative_to(root)), each.read_text("utf-8", "replace")) for each in files]


def asked(name, text):
    """Yield conversations about the functions of a Python file: what a docstring says first."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in tree.body:
        said = isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
        if said and node.name[0] != "_":
            answer = " ".join(said.split("\n\n")[0].split())[:300]
            asks = {"role": "user", "content": f"What does {module}.{node.name} do?"}
            yield {"messages": [asks, {"role": "assistant", "content": answer}]}


class Road:
    """The stages of a road, each done once."""

    def __init__(self, out, form, data):
        self.out, self.data, self.begun, self.told = out, data, time.time(), ""
        self.size, self.vocab, self.shape, self.rate, self.steps, self.chats = FORMS[form]
        self.settings, notes = {"form": form, "data": data and str(data)}, out / "speedrun.json"
        (out / "log").mkdir(parents=True, exist_ok=True)
        self.notes = json.loads(notes.read_text()) if notes.exists() else {"of": self.settings}
        if self.notes["of"] != self.settings:
            sys.exit(f"{out}: it was begun with {self.notes['of']}, not {self.settings}: use --out")

    def stage(self, number, name, make, *needs):
        """Do a stage unless it is done; note its seconds and the tokenizer that it used."""
        print(f"\r[{number}/7] {name:<40}", end="", flush=True)
        made = self.out / "tokenizer" / "tokenizer.json"
        of = hashlib.sha256(made.read_bytes()).hexdigest() if made.exists() else None
        done = self.notes.get(name)
        if done is not None and number > 2 and done["tokenizer"] != of:
            sys.exit(f"\n{self.out}: stage {name} was made with another tokenizer than {made}")
        if done is None:
            start = time.time()
            result = make()
            self.notes[name] = {"seconds": time.time() - start, "tokenizer": of, "result": result}
            (self.out / "speedrun.json").write_text(json.dumps(self.notes, indent=1))
        return self.notes[name]["result"]

    def toynn(self, log, *words, run=None, steps=0):
        """Run a command of toynn, or resume its run; show how far it is. Return what it printed."""
        saved = run is not None and any(run.glob("checkpoint-*"))
        if run is not None and not saved:
            shutil.rmtree(run, ignore_errors=True)
        words = ("train", "--resume", str(run)) if saved else words
        path, command = (
            self.out / "log" / f"{log}.txt",
            [sys.executable, "-P", "-m", "toynn", *words],
        )
        with open(path, "w") as file:
            child = subprocess.Popen(command, stdout=file, stderr=file)
            try:
                while child.poll() is None:
                    if steps:
                        self.tell(log, run / "metrics.jsonl", steps)
                    time.sleep(0.3)
            except KeyboardInterrupt:  # the child got it, too, and saves a checkpoint
                child.wait()
                sys.exit(f"\nstopped: the same command continues in {self.out}")
        if child.returncode:
            sys.exit(f"\n{path}: {path.read_text()[-600:]}")
        return path.read_text()

    def tell(self, log, metrics, steps):
        """Show how many of a run's steps are done; in a file, once for each hundredth."""
        lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
        done = json.loads(lines[-1]).get("iteration", 0) if lines else 0
        seconds, share = time.time() - self.begun, f"{100 * done / steps:.0f} %"
        if sys.stdout.isatty() or share != self.told:
            line = f"      {log}: {share} of {steps} steps, {seconds:.0f} s in all"
            print(f"\r{line:<60}", end="", flush=True)
        self.told = share

    def texts(self):
        """Write texts and conversations; none of the validation text is in the training text."""
        pairs, rows = sources(self.data), ([], [])
        train, valid = parted(pairs, held=HELD)
        train = train[: self.size].decode("utf-8", "ignore").encode()
        valid = valid[: self.size // 8].decode("utf-8", "ignore").encode()
        if len(valid) < 5000:
            short = (
                f"the texts are too short: {len(valid)} bytes of {len(pairs)} files are held out"
            )
            sys.exit(f"\n{short}; expected at least 5,000")
        check_apart(valid, train)
        for name, text in pairs:
            rows[hashlib.sha256(name.encode()).digest()[0] < HELD].extend(asked(name, text))
        (self.out / "chats").mkdir(exist_ok=True)
        for name, text, some in (("train", train, rows[0]), ("valid", valid, rows[1])):
            lines = "".join(f"{json.dumps(row)}\n" for row in some)
            (self.out / f"{name}.txt").write_bytes(text)
            (self.out / "chats" / f"{name}.jsonl").write_text(lines)
        return f"{len(train):,} bytes, {len(valid):,} held out; {len(rows[0]):,} conversations"

    def tokens(self):
        """Write both texts as tokens, beside the tokenizer."""
        shards = self.out / "shards"
        shutil.copytree(self.out / "tokenizer", shards, dirs_exist_ok=True)
        tokenizer, counts = Tokenizer.of(shards), []
        for name, part in (("train", "train"), ("valid", "val")):
            text = (self.out / f"{name}.txt").read_text("utf-8")
            ids = tokenizer.encode_array(text).astype("<u2")
            ids.tofile(shards / f"{part}.bin")
            counts.append(f"{len(ids):,}")
        return f"{' and '.join(counts)} tokens"

    def bits(self, stage):
        """Return the bits per byte of the held-out text by the model of a stage."""
        bits = bits_per_byte(self.out / stage / "model.gguf", (self.out / "valid.txt").read_bytes())
        return f"{bits:.3f} bits per byte of the held-out text"

    def go(self):
        """Do all stages; write the page; print what the model says."""
        out, pre, chat = self.out, self.out / "pretrain", self.out / "chat"
        made = out / "tokenizer"
        self.stage(1, "texts", self.texts)
        words = ("tokenizer", "train", "--data", str(out / "train.txt"), "--out", str(made))
        words = (*words, "--vocab-size", str(self.vocab))
        self.stage(2, "tokenizer", lambda: made.exists() or self.toynn("tokenizer", *words))
        self.stage(3, "tokens", self.tokens)
        data = ("--data", str(out / "shards"), "--tokenizer", str(made))
        self.train(4, "pretrain", self.steps, self.rate, *data, *self.shape.split())
        data = ("--data", str(out / "chats"), "--init-from", str(pre / "model.gguf"))
        self.train(5, "chat", self.chats, self.rate / 5, *data, *self.shape.split()[-2:])
        self.stage(6, "samples", lambda: [[ask, self.answer(chat, ask)] for ask in ASKED])
        self.stage(7, "page", self.page)
        for name in ("pretrain", "chat"):
            print(f"\r{name:<12}{self.notes[name]['result']:<50}")
        for ask, answer in self.notes["samples"]["result"]:
            print(f"\n> {ask}\n{answer}")
        print(f"\nall stages: {out / 'index.html'}\nchat: toynn chat --model {chat}")

    def train(self, number, name, steps, rate, *words):
        """Train in the folder of a stage, then measure bits per byte."""
        run = self.out / name
        words = ("train", "from-scratch", *words, "--out", str(run), "--steps", str(steps))
        words = (*words, "--optimizer", "muon", "--save-every", "100")
        words = (*words, "--lr", str(rate), "--precision", "auto")
        ready = lambda: self.toynn(name, *words, run=run, steps=steps)  # noqa: E731
        self.stage(number, name, lambda: ready() and self.bits(name))

    def answer(self, model, question):
        """Return what a model answers, without the last line, which tells its speed."""
        words = ("generate", "--model", str(model), "--chat", "--temp", "0", "-n", "60")
        return self.toynn("samples", *words, "--prompt", question).strip().rpartition("\n")[0]

    def page(self):
        """Write index.html: what each stage gave, the runs' own pages, samples."""
        rows, links, talk = "", "", ""
        for name, each in self.notes.items():
            if name not in ("of", "samples"):
                result = html.escape(str(each["result"]))
                rows += f"<tr><td>{name}<td>{each['seconds']:.0f} s<td><pre>{result}</pre>"
        for name in ("pretrain", "chat"):
            links += f'<li><a href="{name}/report.html">{name}: curves, settings, samples</a>'
        for ask, answer in self.notes["samples"]["result"]:
            talk += f"<p><b>{html.escape(ask)}</b><pre>{html.escape(answer)}</pre>"
        head = "<!doctype html><meta charset=utf-8><title>From text to a chat</title>"
        body = f"<h1>From text to a chat</h1><table>{rows}</table><ul>{links}</ul>{talk}"
        (self.out / "index.html").write_text(head + body, "utf-8")
        return "index.html"


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--form", choices=FORMS, default="five")
    parser.add_argument("--data", type=Path, help="a folder of .txt, .md and .py files, or a file")
    parser.add_argument("--out", type=Path, default=Path("speedrun"))
    arguments = parser.parse_args()
    Road(arguments.out, arguments.form, arguments.data).go()
