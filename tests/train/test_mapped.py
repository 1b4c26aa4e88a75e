"""Every mapped file is watched: bases, data and caches that are overwritten in place are noticed.

Which files are mapped, the system says: /proc/self/maps. Whatever is mapped below the test's folder
is overwritten, one file after another, and each must be noticed by its name.
"""

import gc
import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import runs
from fake_recipe import FakeRecipe
from lora_bases import write_base
from safetensors.numpy import load_file, save_file
from vocabs import bpe_file

import toynn
from toynn.data import jsonl
from toynn.data.mixture import Mixture
from toynn.data.preference import read_preferences
from toynn.data.taught import TaughtFile, data_digest, header, in_order, tokens_digest
from toynn.engines import LlamaSeqEngine, ViTEngine, frozen
from toynn.engines.converting import convert, fuse_into
from toynn.engines.teacher import Teacher
from toynn.errors import ToynnError
from toynn.evaluation import perplexity
from toynn.formats import adapters, bases, gguf, quants
from toynn.formats.tokenizer import ByteTokenizer, Tokenizer
from toynn.generation.drawing import Reader, generate, sample
from toynn.options import RecipeOptions
from toynn.train import TokenCache, Trainer, trainer

pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")

MAPS = Path("/proc/self/maps")
mapped_only = pytest.mark.skipif(not MAPS.exists(), reason="the system does not say what is mapped")
PACKAGE = Path(toynn.__file__).parent
#: Where files are mapped. A new place needs a row of BASES or DATA below, which maps by it.
PLACES = {
    "data/binary.py",
    "data/taught.py",  # a teacher's file: see "Teachers" below
    "data/windows.py",
    "formats/gguf/mapping.py",
    "formats/safetensors.py",
    "train/token_cache.py",
}
MAPPING = re.compile(r"\bmemmap\(|\(mmap\.mmap\)|\bmmap\(|mmap_mode|memory_map")


def mapped_below(folder):
    """The files of a folder that are mapped by this process, by the word of the system."""
    lines = [line.split(maxsplit=5) for line in MAPS.read_text().splitlines()]
    paths = {Path(line[5]) for line in lines if len(line) == 6}
    return sorted(path for path in paths if path.is_relative_to(folder.resolve()))


@contextmanager
def overwritten(path):
    """Give a file other bytes, in place, and its own again, at the old time."""
    before, state = path.read_bytes(), path.stat()
    try:
        with path.open("r+b") as file:
            file.write(bytes(byte ^ 1 for byte in before))
        # However coarse the clock is.
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        yield
    finally:
        with path.open("r+b") as file:
            file.write(before)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def noticed(path):
    return pytest.raises(ToynnError, match=rf"{re.escape(str(path))}: changed since it was opened")


def test_every_place_that_maps_files_is_known():
    """So that whoever adds one adds a row here."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if MAPPING.search(path.read_text())
    }
    assert found == PLACES


# -- Bases -----------------------------------------------------------------------------------------


def one_gguf(folder):
    return write_base(folder / "base.gguf", "llama", vocab=runs.VOCAB, context=runs.T)


def two_ggufs(folder):
    whole, paths = one_gguf(folder), []
    with gguf.open(whole) as file:
        metadata, names = gguf.typed_metadata(file.metadata, file.types), list(file.tensors)
        for n in (0, 1):
            paths.append(folder / f"m-0000{n + 1}-of-00002.gguf")
            split = {"split.no": n, "split.count": 2, "split.tensors.count": len(names)}
            told = metadata | {key: (value, "UINT16") for key, value in split.items()}
            gguf.write(paths[-1], told, {name: (file[name], "f32") for name in names[n::2]})
    whole.unlink()
    return paths[0]


def one_safetensors(folder):
    LlamaSeqEngine.from_gguf(one_gguf(folder), t_seq=1).export_hf(folder / "hf")
    return folder / "hf"


def two_safetensors(folder):
    path = one_safetensors(folder)
    weights, placed = load_file(path / "model.safetensors"), {}
    (path / "model.safetensors").unlink()
    for n in (0, 1):
        name = f"model-0000{n + 1}-of-00002.safetensors"
        part = {key: weights[key] for key in sorted(weights)[n::2]}
        save_file(part, path / name)
        placed |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": placed}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


BASES = [one_gguf, two_ggufs, one_safetensors, two_safetensors]
every_base = pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)


def last_file(base):
    """The file of a base that is the last of its weights."""
    return max(base.glob("*.safetensors") if base.is_dir() else base.parent.glob("*.gguf"))


@mapped_only
@every_base
def test_a_base_is_watched_where_it_is_looked_at_and_written_from(kind, tmp_path):
    """Recipes close a base that they opened: it stays mapped, and watched."""
    base = kind(tmp_path)
    recipe, _, _ = runs.lora(base)
    outs = iter(tmp_path / f"out{n}" for n in range(100))
    mapped = mapped_below(tmp_path)
    assert len(mapped) == (2 if "two" in kind.__name__ else 1)
    for path in mapped:
        with overwritten(path):
            for call in (
                recipe.check_unchanged,
                lambda: recipe.export_adapter(next(outs)),
                lambda: recipe.export_peft(next(outs)),
                lambda: recipe.save(next(outs)),
                lambda: perplexity(recipe.engine, np.arange(11, dtype=np.int32), 5),
            ):
                with noticed(path):
                    call()
        recipe.check_unchanged()
    assert not list(tmp_path.glob("out*"))


@every_base
def test_a_base_that_is_overwritten_ends_the_training_before_anything_is_saved(kind, tmp_path):
    base, out, steps = kind(tmp_path), tmp_path / "out", []
    recipe, data, valid = runs.lora(base)
    path = last_file(base)
    before, state = path.read_bytes(), path.stat()

    def overwrite(result):
        steps.append(result.iterations)
        if result.iterations == 1:
            path.write_bytes(before[:-4] + bytes(4))
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))

    options = runs.OPTIONS | {"folder": out, "on_step": overwrite}
    with noticed(path):
        Trainer(recipe, data, valid=valid, **options | {"save_every": 2}).fit()
    assert steps == [1, 2] and not list(out.glob("checkpoint-*"))
    path.write_bytes(before)
    recipe, data, valid = runs.lora(base)
    steps.clear()
    options |= {"folder": tmp_path / "again", "save_every": 0, "eval_every": 3}
    with noticed(path):
        Trainer(recipe, data, valid=valid, **options).fit()
    assert steps == [1, 2, 3]


@pytest.mark.parametrize("kind", [one_safetensors, two_safetensors], ids=lambda kind: kind.__name__)
def test_what_a_folder_says_of_its_weights_is_watched(kind, tmp_path):
    """Another config.json makes another model of the same weights, and fuse reads it again."""
    recipe, _, _ = runs.lora(kind(tmp_path))
    for path in sorted((tmp_path / "hf").glob("*.json")):
        if not path.name.startswith(("config", "model")):
            continue
        with overwritten(path), noticed(path):
            recipe.check_unchanged()
        recipe.check_unchanged()


@every_base
def test_a_base_in_whose_place_another_file_stands(kind, tmp_path):
    """Of the same size and time, as `cp -p` leaves it: what is written next would be of that."""
    base = kind(tmp_path)
    recipe, _, _ = runs.lora(base)
    path = last_file(base)
    state = path.stat()
    (tmp_path / "other").write_bytes(path.read_bytes())
    os.utime(tmp_path / "other", ns=(state.st_atime_ns, state.st_mtime_ns))
    (tmp_path / "other").replace(path)
    with noticed(path):
        recipe.check_unchanged()
    path.unlink()
    with noticed(path):
        recipe.check_unchanged()


MADE = [(kind, make) for kind in BASES for make in ("fuse", "read")]
MADE += [(kind, "convert") for kind in (one_safetensors, two_safetensors)]


@pytest.mark.parametrize(
    ("kind", "make"), MADE, ids=[f"{make}-{kind.__name__}" for kind, make in MADE]
)
def test_a_base_that_is_overwritten_while_a_model_is_made_of_it(kind, make, tmp_path, monkeypatch):
    """It is noticed when all is read, and no file is left of what was read of two models."""
    base, out = kind(tmp_path), tmp_path / "out.gguf"
    adapter = runs.lora(base)[0].engine.adapter()
    path, state = last_file(base), last_file(base).stat()
    with bases.open(base) as file:
        read = type(file).__getitem__

        def late(self, name):
            found = read(self, name)
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
            return found

        monkeypatch.setattr(type(file), "__getitem__", late)
        with noticed(path):
            if make == "fuse":
                fuse_into(file, adapter, out)
            elif make == "convert":
                convert(base, out)
            else:
                LlamaSeqEngine().read(file, RecipeOptions(1, 1))
    assert not out.exists()


@every_base
def test_a_model_that_is_only_read_is_watched_too(kind, tmp_path):
    base = kind(tmp_path)
    with bases.open(base) as file:
        engine = frozen(file)
    ids = np.arange(11, dtype=np.int32)
    perplexity(engine, ids, 5)
    path = last_file(base)
    with overwritten(path), noticed(path):
        perplexity(engine, ids, 5)


@every_base
@pytest.mark.parametrize("how", ["one", "several", "talk"])
def test_a_model_that_writes_is_watched_at_each_token(how, kind, tmp_path):
    """The prompt is read, tokens are drawn, and then the file becomes another one."""
    base = kind(tmp_path)
    with bases.open(base) as file:
        engine = frozen(file)
    path, prompt = last_file(base), [1, 2, 3]
    if how == "several":
        decoder = engine.batch_decoder(2, 8)
        decoder.read({0: prompt, 1: prompt[:1]})
        with overwritten(path), noticed(path):
            decoder.read({1: [4]})
        assert decoder.past(1) == 1
        decoder.read({1: [4]})
        return
    reader = Reader(engine) if how == "talk" else None
    drawn = generate(engine, prompt, 5, reader=reader, temperature=0)
    said = [next(drawn), next(drawn)]
    with overwritten(path), noticed(path):
        next(drawn)
    drawn = generate(engine, [*prompt, *said], 3, reader=reader, temperature=0)
    assert said + list(drawn) == sample(engine, prompt, 5, temperature=0)


@mapped_only
def test_what_is_read_into_memory_maps_nothing(tmp_path):
    """So adapters, checkpoints and models that are trained as a whole need no watch."""
    base, out = one_safetensors(tmp_path), tmp_path / "run"
    recipe, data, valid = runs.lora(base)
    Trainer(recipe, data, valid=valid, **runs.OPTIONS | {"folder": out, "steps": 2}).fit()
    runs.vit(None)[0].save(tmp_path / "vit.safetensors")
    engines = [LlamaSeqEngine.from_hf(base, t_seq=1), ViTEngine.load(tmp_path / "vit.safetensors")]
    with bases.open(base) as file:
        read = [adapters.load(path, file) for path in (out, out / "adapter.gguf")]
    assert {path.parent for path in mapped_below(tmp_path)} == {base}
    del recipe, file
    gc.collect()
    assert mapped_below(tmp_path) == [] and engines and read


@pytest.mark.parametrize("kind", ["donor", "vit"])
def test_a_file_that_is_overwritten_while_it_is_read(kind, tmp_path, monkeypatch):
    """All numbers of a new model are of one file."""
    path = one_gguf(tmp_path) if kind == "donor" else tmp_path / "vit.safetensors"
    if kind == "vit":
        runs.vit(None)[0].save(path)
    state = path.stat()

    def late(*given, dequantize=quants.dequantize):
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        return dequantize(*given)

    monkeypatch.setattr(quants, "dequantize", late)
    with pytest.raises(ToynnError, match=r"changed since it was opened"):
        runs.warm_start(path) if kind == "donor" else ViTEngine.load(path)


# -- Data and caches -------------------------------------------------------------------------------

SEQ = 8


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return Tokenizer.from_gguf(bpe_file(tmp_path_factory.mktemp("vocab") / "bpe.gguf"))


def rows(path, of):
    path.write_text("\n".join(json.dumps(of(n)) for n in range(1, 40)))
    return path


def read(path, tokenizer, **more):
    return jsonl.read(path, tokenizer, SEQ, vocab_size=tokenizer.vocab_size, **more)


def text(folder, bpe):
    (folder / "a.txt").write_text("some words of a text. " * 40)
    return read(folder / "a.txt", ByteTokenizer(), store=TokenCache(folder / "tokens"))


def tokens(folder, bpe):
    np.arange(300, dtype="<u2").tofile(folder / "a.bin")
    return read(folder / "a.bin", bpe)


def shards(folder, bpe):
    for name in ("train_0", "train_1", "val_0"):
        np.arange(200, dtype="<u2").tofile(folder / f"{name}.bin")
    return read(folder, bpe)


def cached_text(folder, bpe):
    (folder / "a.txt").write_text("some words of a text. " * 40)
    return read(folder / "a.txt", bpe, store=TokenCache(folder / "tokens"))


def cached_documents(folder, bpe):
    (folder / "a.txt").write_text("some words of a text.\n" * 40)
    return jsonl.documents(
        folder / "a.txt",
        bpe,
        SEQ,
        vocab_size=bpe.vocab_size,
        separator="\n",
        store=TokenCache(folder / "tokens"),
    )


def cached_examples(folder, bpe):
    for name in ("train", "valid", "test"):
        rows(folder / f"{name}.jsonl", lambda n, name=name: {"text": f"{name} {n}"})
    return read(folder, bpe, store=TokenCache(folder / "tokens"))


def cached_preferences(folder, bpe):
    for name in ("train", "valid"):
        rows(
            folder / f"{name}.jsonl",
            lambda n, name=name: {"prompt": f"{name} {n}", "chosen": "ab", "rejected": "bc"},
        )
    store = TokenCache(folder / "tokens")
    return read_preferences(folder, bpe, 2 * SEQ, vocab_size=bpe.vocab_size, store=store)


def mixture(folder, bpe):
    parts = {"text": cached_text, "tokens": tokens}
    for name in parts:
        (folder / name).mkdir(exist_ok=True)
    return Mixture.of({name: make(folder / name, bpe) for name, make in parts.items()})


DATA = {
    text: 1,
    tokens: 1,
    shards: 3,
    cached_text: 1,
    cached_documents: 1,
    cached_examples: 9,
    cached_preferences: 6,
    mixture: 2,
}


@mapped_only
@pytest.mark.parametrize("kind", DATA, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("cached", [False, True], ids=["made", "found"])
def test_data_that_are_mapped_are_watched(kind, cached, bpe, tmp_path):
    if cached:
        kind(tmp_path, bpe)
    data = kind(tmp_path, bpe)
    check = trainer._checks(FakeRecipe(), data)
    mapped = mapped_below(tmp_path)
    assert len(mapped) == DATA[kind]
    for path in mapped:
        check()
        with overwritten(path), noticed(path):
            check()
    check()


# -- Teachers --------------------------------------------------------------------------------------


def test_a_teacher_is_watched_at_each_batch(tmp_path):
    base, ids = one_gguf(tmp_path), np.arange(20, dtype=np.int32) % runs.VOCAB
    with bases.open(base) as file:
        teacher = Teacher(frozen(file, options=RecipeOptions(1, 8)), runs.VOCAB, 4)
    batch = next(in_order(ids, 1, 8))
    said = teacher(batch)
    facts = {"k": 4, "vocab": runs.VOCAB, "records": 19, "tokens": tokens_digest(["a"])}
    path = tmp_path / "taught"
    path.write_bytes(header(facts | {"data": data_digest(ids)}) + bytes(19 * 28))
    written = TaughtFile.opened(path, ids, ["a"], 1.0)
    for whose, file in ((teacher, base), (written, path)):
        whose(batch)
        with overwritten(file), noticed(file):
            whose(batch)
    assert said.ids.shape == written(batch).ids.shape
