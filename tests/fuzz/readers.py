"""All that reads files from elsewhere: for each reader files that are whole, and how to read them.

A reader that is added is a row of READERS.
"""

import gzip
import hashlib
import io
import json
import shutil
import zlib
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from lora_bases import write_base
from pictures import write_mnist
from safetensors.numpy import load_file, save_file
from small_encoders import written
from some_adapters import draw
from vocabs import bpe_file, spm_file

from toynn import GPT2Config, RecipeOptions
from toynn.cli import Parser, main, train
from toynn.data import binary, jsonl, labelled, pairs
from toynn.data.examples import Columns, Examples
from toynn.data.images import ImageData, read_picture
from toynn.data.text import RandomWindows
from toynn.engines import LlamaSeqEngine, ViTEngine
from toynn.engines.encoder import Encoder, Task
from toynn.errors import ToynnError
from toynn.evaluation.choices import read_questions
from toynn.formats import adapters, gguf, hf, sentences
from toynn.formats.safetensors import SafeTensors, encode
from toynn.formats.sentences import Sentences
from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.chat import ChatTemplate
from toynn.recipes import GPT2
from toynn.train import TokenCache, Trainer, checkpoint, token_cache

Files = dict[str, bytes]  # by name, of one folder


@dataclass(frozen=True)
class Reader:
    """What makes whole files in a folder, and what reads them, or raises ToynnError.

    Files that are ``apart`` know nothing of each other: a case is one of them.
    """

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    apart: bool = False

    @cache  # noqa: B019  (a few readers, for the life of the process)
    def whole(self) -> list[Files]:
        """Files that can be read."""
        with TemporaryDirectory() as folder:
            self.write(Path(folder))
            files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        return [{name: content} for name, content in files.items()] if self.apart else [files]


def all_of(file):
    """Read every tensor."""
    with closing(file):
        for name in file.tensors:
            np.array(file[name])


@cache
def base():
    """A model that adapters are for; it stays open."""
    folder = TemporaryDirectory()
    file = gguf.open(write_base(Path(folder.name) / "base.gguf"))
    file.folder = folder
    return file


def write_adapter(folder):
    adapters.write_gguf(folder / "a.gguf", draw(base(), ["blk.0.attn_q.weight"], ranks=(2,)))


def write_peft(folder):
    weights = ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"]
    adapters.write_peft(folder, draw(base(), weights, ranks=(2,)), base(), overwrite=True)


def write_hf(folder):
    engine = LlamaSeqEngine.from_gguf(base().path, t_seq=1)
    engine.export_hf(folder / "hf")
    for path in (folder / "hf").iterdir():
        path.rename(folder / path.name)
    (folder / "hf").rmdir()


def write_texts(folder):
    rows = [
        {"text": "a plain text, ünïcode"},
        {"prompt": "Who?", "completion": "Zork.", "more": [1, 2.5, None, True]},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]},
    ]
    row = rows[0]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    (folder / "b.jsonl").write_text("".join(json.dumps(rows[1]) + "\n" for _ in range(4)))
    (folder / "c.jsonl").write_text("".join(json.dumps(rows[2]) + "\n" for _ in range(4)))


def write_prompts(folder):
    talk = [{"role": "user", "content": "hi, ünï"}]
    rows = [
        {"prompt": "2 + 2 =", "answer": 4, "more": [1, 2.5, None, {"a": True}]},
        {"prompt": talk, "answer": "x"},
        {"messages": talk},
    ]
    for name, row in zip("abc", rows, strict=True):
        (folder / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 3)
    (folder / "d.csv").write_text('prompt,answer\n"one\n""cat""",x\ntwo,"y, z"\n')
    (folder / "e.json").write_text(json.dumps(rows[:1] * 3))


def read_prompts(path):
    """What rewards get of them is JSON; a prompt has characters."""
    for where, prompt, columns in jsonl.prompts(path):
        assert where and prompt, where
        json.dumps([prompt, columns]).encode()


def write_packed(folder):
    write_texts(folder)
    for path in folder.glob("*.jsonl"):
        packed = gzip.compress(path.read_bytes(), mtime=0)
        path.with_name(f"{path.name}.gz").write_bytes(packed)
        path.unlink()


class Letters:
    """An encoder that needs no file: a character is its number."""

    bos, eos, add_bos = 1, 2, True

    def encode(self, text, add_special, *, continues=False):
        return list(map(ord, text))

    of_bytes, fingerprint = False, "letters"

    def encode_many(self, texts):
        return [self.encode(text, False, continues=continues) for text, continues in texts]

    def encode_blocks(self, blocks):
        return [np.array([ord(letter) for letter in block], np.int32) for block in blocks]

    def encode_talks(self, talks):
        return (self.encode_turns(*talk) for talk in talks)

    def encode_turns(self, messages, tools=None):
        return [(self.encode(m["content"], False), m["role"] == "assistant") for m in messages]


def read_texts(path):
    jsonl.read(path, Letters(), 16, vocab_size=0x110000)


def write_arrow(folder):
    import pyarrow
    from pyarrow import ipc, parquet

    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    table = pyarrow.table({"messages": [talk] * 4, "kind": ["a", None, "ü", "a"]})
    parquet.write_table(table, folder / "a.parquet")
    for name, compression in (("a", None), ("b", "zstd")):
        options = ipc.IpcWriteOptions(compression=compression)
        coded = table.set_column(1, "kind", table["kind"].dictionary_encode())
        for new, kind in ((ipc.new_file, "feather"), (ipc.new_stream, "arrow")):
            with new(str(folder / f"{name}.{kind}"), coded.schema, options=options) as file:
                file.write_table(coded)


def write_parquet(folder):
    import pyarrow
    from pyarrow import parquet

    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    parquet.write_table(pyarrow.table({"messages": [talk] * 4}), folder / "a.parquet")
    table = pyarrow.table({"text": ["one", "ü", "b", "a" * 99], "when": [1, 2, 3, 4]})
    for name, how in (("b", {"compression": "zstd"}), ("c", {"use_dictionary": False})):
        parquet.write_table(table, folder / f"{name}.parquet", **how)


def write_labelled(folder):
    rows = [
        {"text": "one cat, ünï", "label": "x"},
        {"text": "one", "text_pair": "two", "label": 3},
        {"text": "one cat", "labels": ["x", "y"]},
        {"words": ["one", "cat"], "tags": ["O", "B-X"]},
        {"text": "one cat", "spans": [[4, 7, "X"]]},
    ]
    for name, row in zip("abcde", rows, strict=True):
        (folder / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 3)
    (folder / "f.csv").write_text('text,label\n"one\n""cat""",x\ntwo,"y, z"\n')
    (folder / "g.conll").write_text("-DOCSTART- O\n\none O\ncat N B-X\n\nünï O\n")


def write_pairs(folder):
    rows = [
        {"anchor": "one", "positive": "two", "negative": "three", "negative_1": "four"},
        {"sentence1": "one", "sentence2": "ünï", "score": 0.5},
        {"query": "one", "passage": "two", "label": 1},
    ]
    for name, row in zip("abc", rows, strict=True):
        (folder / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 3)
    (folder / "d.csv").write_text('query,passage,label\n"one\n""cat""",x,1\ntwo,"y, z",0.5\n')


def write_search(folder):
    rows = [{"id": "7", "title": "T", "text": "seven"}, {"_id": "x", "text": "ünï"}]
    asked = [{"query": "a", "relevant": 7}, {"query": "b", "relevant": ["x", "7"]}]
    for name, each in (("corpus", rows), ("asked", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))


def write_sentences(folder):
    files = Sentences("cls", True, 9, {"query": "find: "}).files(16)
    for name, content in files.items():
        (folder / name.replace("/", "_")).write_bytes(content)


def read_sentences(folder):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling_config.json").rename(folder / "1_Pooling" / "config.json")
    try:
        sentences.read(folder)
    finally:
        shutil.rmtree(folder / "1_Pooling")


def write_encoder(folder):
    Encoder.load(written(folder / "a", n_layers=1), Task("sequence", 2)).export_hf(folder / "b")
    (folder / "config.json").write_bytes((folder / "b" / "config.json").read_bytes())
    WEIGHTS["model.safetensors"] = (folder / "b" / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "a")
    shutil.rmtree(folder / "b")


def read_encoder(folder):
    for name, content in WEIGHTS.items():
        (folder / name).write_bytes(content)
    Encoder.load(folder).outputs([[3, 4]])


WEIGHTS = {}  # of an encoder, whose configuration is damaged


def write_tables(folder):
    rows = [("text", "b"), ('"two\n""lines"", ü"', "1"), ("a plain text", '"2"')]
    (folder / "a.csv").write_text("".join(f"{a},{b}\r\n" for a, b in rows))
    (folder / "b.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    (folder / "c.csv").write_text('prompt,completion\n"Who?",Zork\nx,"y, z"\n')


def write_arrays(folder):
    rows = [{"text": "a plain text, ünïcode"}, {"text": "b", "more": [1, 2.5, None, {"c": []}]}]
    (folder / "a.json").write_text(json.dumps(rows * 2))
    (folder / "b.json").write_text("\ufeff" + json.dumps(rows, indent=2, ensure_ascii=False))


def write_zst(folder):
    import pyarrow

    write_tables(folder)
    write_arrays(folder)
    for path in list(folder.iterdir()):
        packed = pyarrow.compress(path.read_bytes(), codec="zstd", asbytes=True)
        path.with_name(f"{path.name}.zst").write_bytes(packed)
        path.unlink()


def write_shards(folder):
    write_hf(folder)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for k, names in enumerate((list(whole)[::2], list(whole)[1::2])):
        save_file({name: whole[name] for name in names}, folder / f"m-{k}.safetensors")
        places |= dict.fromkeys(names, f"m-{k}.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in folder.iterdir():  # what is damaged is the index alone
        if not path.name.endswith("index.json"):
            SHARDS[path.name] = path.read_bytes()
            path.unlink()


SHARDS = {}


def read_shards(folder):
    for name, content in SHARDS.items():
        (folder / name).write_bytes(content)
    with closing(hf.open(folder)) as model:
        model["token_embd.weight"], model["blk.0.attn_q.weight"]


def write_tokenizers(folder):
    """One of bytes; tokenizer_config.json says more of it."""
    letters = [chr(n) for n in range(97, 123)]
    vocab = {text: n for n, text in enumerate([*letters, "\u0120", "th", "the", "an"])}
    model = {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["th", "e"], ["a", "n"]]}
    cut = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"id": len(vocab), "content": "<end>", "special": True, "lstrip": False}
    data = {"version": "1.0", "added_tokens": [added], "normalizer": {"type": "NFC"}}
    data |= {"pre_tokenizer": cut, "model": model, "decoder": cut, "post_processor": cut}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    told = {"eos_token": "<end>", "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


def read_tokenizers(folder):
    tokenizer = Tokenizer.of(folder)
    ids = tokenizer.encode_many([("the thane", False), (" ünï<end>", True)])
    tokenizer.decode(ids[0])


TEMPLATE = (
    "{%- for m in messages -%}{{ '<' + m['role'] + '>' }}{% if m.content is string %}"
    "{{ m.content | trim }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    "{{ eos_token }}{%- endfor -%}{% set x = namespace(n=2) %}{% if add_generation_prompt %}"
    "{{ '<a>' ~ x.n }}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% endif %}"
)


def read_template(folder):
    try:
        source = (folder / "chat_template.jinja").read_text()
    except UnicodeDecodeError as error:
        raise ToynnError("no text") from error
    template = ChatTemplate(folder, source, "<s>", "</s>")
    template.render([{"role": "user", "content": "hi"}], True)


def write_npz(folder):
    images = np.arange(4 * 9 * 9, dtype=np.uint8).reshape(4, 9, 9)
    np.savez(folder / "a.npz", images=images, labels=[0, 1, 0, 1], classes=["a", "b"])


def write_pictures(folder):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8)
    for kind in ("png", "jpg", "gif", "bmp", "webp", "tif"):
        Image.fromarray(pixels).save(folder / f"a.{kind}")


def read_pictures(folder):
    refused = []
    for path in sorted(folder.iterdir()):
        try:
            read_picture(path, 8, 3)
        except ToynnError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def read_tokenizer(path):
    with gguf.open(path, check=False) as file:
        tokenizer = Tokenizer.from_gguf(file)
    ids = tokenizer.encode("A text, ünïcode <bos>\n and more", parse_special=True)
    tokenizer.decode(ids, special=True)


def write_questions(folder):
    rows = [{"question": "2 + 2?", "choices": ["3", "4"], "answer": 1}] * 3
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_vit(folder):
    from toynn import RecipeOptions, ViTConfig
    from toynn.recipes import VitTiny

    recipe = VitTiny()
    sizes = dict(image=8, patch=4, d_model=8, n_heads=2, d_ff=8, n_layers=1, classes=2)
    recipe.realize(ViTConfig(**sizes), RecipeOptions())
    recipe.engine.save(folder / "model.safetensors")


def write_run(folder):
    (folder / "config.toml").write_text(
        '[run]\nrecipe = "gpt2"\nversion = "0.1"\n\n[data]\nname = "a.txt"\n\n'
        "[train]\nsteps = 10\nbatch = 2\nseed = 0\n"
    )
    write_vit(folder)


def read_run(folder):
    """What `toynn info` says: 0, or 2 with a message; anything else is a find."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = main(["info", str(folder)])
    if code == 2:
        raise ToynnError("refused")
    assert code == 0, code


@cache
def tiny():
    """A recipe that a checkpoint is of, and its data."""
    recipe = GPT2()
    config = GPT2Config(vocab=11, d_model=8, n_heads=2, d_ff=8, n_layers=1, context=4)
    recipe.realize(config, RecipeOptions(t_seq=4, t_batch=2))
    return recipe


def trainer(**more):
    data = RandomWindows(np.arange(50) % 11, 2, 4, seed=0)
    return Trainer(tiny(), data, steps=4, save_every=2, progress=False, **more)


def write_checkpoint(folder):
    trainer(folder=folder / "run").fit()
    for path in (folder / "run" / "checkpoint-2").iterdir():
        if path.is_file():
            path.rename(folder / path.name)
    shutil.rmtree(folder / "run")
    marker = json.loads((folder / "complete.json").read_bytes())
    marker["files"] = {name: each for name, each in marker["files"].items() if "/" not in name}
    (folder / "complete.json").write_text(json.dumps(marker))


def read_checkpoint(folder):
    found = checkpoint.read(folder)
    resumed = trainer(resume=found)
    resumed._restore(found, resumed._begun.feed)


def read_state(folder):
    """A state whose checksum is right, whatever is in it."""
    marker, content = folder / "complete.json", (folder / "trainer_state.json").read_bytes()
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        files = json.loads(marker.read_bytes())
        files["files"]["trainer_state.json"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
        marker.write_text(json.dumps(files))
    read_checkpoint(folder)


def write_state(folder):
    write_checkpoint(folder)
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            KEPT[path.name] = path.read_bytes()
            path.unlink()


KEPT = {}  # weights that are not what is damaged


def read_kept(folder):
    for name, content in KEPT.items():
        (folder / name).write_bytes(content)
    read_state(folder)


def write_tokens(folder):
    ids = np.arange(60) % 11
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids)
    (folder / "llmc.bin").write_bytes(header.tobytes() + ids.astype("<u2").tobytes())
    header[:2] = 20240801, 7
    (folder / "llama.bin").write_bytes(header.tobytes() + ids.astype("<u4").tobytes())
    (folder / "nano.bin").write_bytes(ids.astype("<u2").tobytes())


def each(read, pattern):
    """A function that reads all files of a kind, and raises what the first bad one does."""

    def read_all(folder):
        refused = []
        for path in sorted(folder.glob(pattern)):
            try:
                read(path)
            except ToynnError as error:
                refused.append(error)
        try:
            if refused:
                raise refused[0]
        finally:
            refused.clear()  # an error refers to this frame, and to those with files still open

    return read_all


def write_table(folder):
    write_texts(folder)
    store = TokenCache(folder / "tokens", print)
    jsonl.read(folder / "a.jsonl", Letters(), 16, vocab_size=0x110000, store=store)
    for path in folder.glob("*.jsonl"):
        path.unlink()
    for path in folder.glob("tokens/*/*"):
        path.rename(folder / path.name)
    shutil.rmtree(folder / "tokens")


def read_table(folder):
    found = token_cache._opened(folder, token_cache.EXAMPLES, {})
    examples = Examples.of(Columns(*(found.columns[name] for name in token_cache.EXAMPLES)), 16)
    examples.lengths, examples[0], found.facts["labels"]


def read_cache(folder):
    """Numbers whose checksums are right, whatever they are."""
    path = folder / token_cache.TABLE
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        table = json.loads(path.read_bytes())
        for file in folder.glob("*.bin"):
            table["sums"][file.stem] = hashlib.sha256(file.read_bytes()).hexdigest()
        table.pop("sum", None)
        table["sum"] = token_cache._sum(table)
        path.write_text(json.dumps(table))
    read_table(folder)


def write_config(folder):
    (folder / "config.toml").write_text(
        '[run]\nrecipe = "vit"\n\n[data]\nclasses = ["a", "b"]\n\n'
        "[train]\nsteps = 10\nlr = 1e-3\nflip = true\ncrop = false\nnorm = 'rmsnorm'\n"
    )


def read_config(folder):
    """The job that a file says."""
    parser = Parser()
    train.add_parser(parser.add_subparsers(), required=False)
    path = str(folder / "config.toml")
    arguments = parser.parse_args(["train", *train.words_of(["--config", path])])
    train.job_of(arguments)


READERS = [
    Reader(
        "gguf", lambda at: write_base(at / "a.gguf"), lambda at: all_of(gguf.open(at / "a.gguf"))
    ),
    Reader(
        "gguf-blocks",
        lambda at: write_base(at / "a.gguf", type="Q4_K", d_model=256, d_ff=256, n_heads=4),
        lambda at: all_of(gguf.open(at / "a.gguf", check=True)),
    ),
    Reader(
        "model",
        lambda at: write_base(at / "a.gguf", "qwen3"),
        lambda at: LlamaSeqEngine.from_gguf(at / "a.gguf", t_seq=1, build=False),
    ),
    Reader("adapter", write_adapter, lambda at: adapters.load(at / "a.gguf", base())),
    Reader("peft", write_peft, lambda at: adapters.load(at, base())),
    Reader("hf", write_hf, lambda at: LlamaSeqEngine.from_hf(at, t_seq=1)),
    Reader(
        "safetensors",
        lambda at: (at / "a.safetensors").write_bytes(
            encode({"w": np.ones((2, 3), np.float32), "b": np.ones(5, np.float32)}, {"k": "v"})
        ),
        lambda at: all_of(SafeTensors(at / "a.safetensors")),
    ),
    Reader("vit", write_vit, lambda at: ViTEngine.load(at / "model.safetensors")),
    Reader("jsonl", write_texts, each(read_texts, "*.jsonl"), apart=True),
    Reader("packed", write_packed, each(read_texts, "*.jsonl.gz"), apart=True),
    Reader("questions", write_questions, lambda at: read_questions(at / "a.jsonl")),
    Reader("prompts", write_prompts, each(read_prompts, "*.*"), apart=True),
    Reader("npz", write_npz, lambda at: ImageData.read(at / "a.npz")),
    Reader("idx", lambda at: write_mnist(at, {"train": 6, "t10k": 3}), ImageData.read),
    Reader("pictures", write_pictures, read_pictures, apart=True),
    Reader("bpe", lambda at: bpe_file(at / "a.gguf"), lambda at: read_tokenizer(at / "a.gguf")),
    Reader("spm", lambda at: spm_file(at / "a.gguf"), lambda at: read_tokenizer(at / "a.gguf")),
    Reader("run", write_run, read_run),
    Reader("config", write_config, read_config),
    Reader("checkpoint", write_checkpoint, read_checkpoint),
    Reader("state", write_state, read_kept),
    Reader("bin", write_tokens, each(lambda path: binary.map_tokens(path, 11), "*.bin")),
    Reader("tokens", write_table, read_table),
    Reader("cache", write_table, read_cache),
    Reader("labelled", write_labelled, each(labelled.read, "*.*"), apart=True),
    Reader("pairs", write_pairs, each(pairs.read, "*.*"), apart=True),
    Reader(
        "search",
        write_search,
        lambda at: pairs.read_search(at / "asked.jsonl", at / "corpus.jsonl"),
    ),
    Reader("sentences", write_sentences, read_sentences),
    Reader("encoder", write_encoder, read_encoder),
    Reader("csv", write_tables, each(read_texts, "*.*"), apart=True),
    Reader("arrays", write_arrays, each(read_texts, "*.*"), apart=True),
    Reader("shards", write_shards, read_shards),
    Reader("tokenizer", write_tokenizers, read_tokenizers),
    Reader("template", lambda at: (at / "chat_template.jinja").write_text(TEMPLATE), read_template),
]
if find_spec("pyarrow"):
    READERS += [
        Reader("arrow", write_arrow, each(read_texts, "*.*"), apart=True),
        Reader("parquet", write_parquet, each(read_texts, "*.*"), apart=True),
        Reader("zst", write_zst, each(read_texts, "*.*"), apart=True),
    ]
