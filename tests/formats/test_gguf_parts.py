"""Models in several GGUF files, as llama.cpp's splitter makes them."""

import gc

import numpy as np
import pytest
from gguf_bytes import ARCHITECTURE, File, floats, key, scalar, tensor, text
from llamas import make, shake

from toynn import LlamaConfig, RecipeOptions, engines
from toynn.engines import LlamaSeqEngine
from toynn.errors import GGUFError
from toynn.formats import gguf


def split(folder, many=3, *, name="m-{:05}-of-{:05}.gguf", second_name=None, **changes):
    """Write a model of one tensor a file; ``changes``: by key, other numbers by file.

    ``own``: the name of the model that the second file gives.
    """
    paths = []
    for index in range(many):
        numbers = {"split.no": index, "split.count": many, "split.tensors.count": many}
        numbers |= {f"split.{what}": by[index] for what, by in changes.items() if index in by}
        keys = [key(what, scalar(n, "UINT16")) for what, n in numbers.items() if n is not None]
        keys += [ARCHITECTURE, key("general.name", text("whole"))] if index == 0 else []
        keys += [key("general.name", text(second_name))] if second_name and index == 1 else []
        path = folder / name.format(index + 1, many)
        data = floats(8)[:-4] + bytes([index] * 4)
        path.write_bytes(bytes(File(keys, [tensor(f"w{index}", [8])], data)))
        paths.append(path)
    return paths


def test_any_of_the_files_opens_all_without_a_copy(tmp_path):
    paths = split(tmp_path)
    for path in paths:
        with gguf.open(path) as file:
            assert (file.path, file.architecture) == (paths[0], "llama")
            assert file.metadata == {"general.architecture": "llama", "general.name": "whole"}
            assert list(file) == ["w0", "w1", "w2"] and len(file) == 3
            assert file.nbytes == sum(path.stat().st_size for path in paths)
            weights = [file[name] for name in file]
            assert not any(w.flags.owndata or w.flags.writeable for w in weights)
            assert [file.raw(name)[-1] for name in file] == [0, 1, 2]
        np.testing.assert_array_equal(weights[2][:7], np.arange(7))  # it outlives the file
    with pytest.raises(GGUFError, match="this file is being read"):
        gguf.write(paths[2], {"general.architecture": "llama"}, {}, overwrite=True)
    del weights
    gguf.write(paths[2], {"general.architecture": "llama"}, {}, overwrite=True)


def test_a_file_that_changed_is_noticed_whichever_it_is(tmp_path):
    paths = split(tmp_path)
    with gguf.open(paths[0]) as file:
        file.check_unchanged()
        paths[1].unlink()
        with pytest.raises(GGUFError, match=r"m-00002-of-00003\.gguf: changed since it was opened"):
            file.check_unchanged()


def test_missing_files_are_named(tmp_path):
    paths = split(tmp_path, 7)
    paths[4].unlink()
    one = r"m-00007-of-00007\.gguf: split\.count at byte \d+: expected 7 files in one folder, "
    with pytest.raises(GGUFError, match=rf"{one}got m-00005-of-00007\.gguf missing"):
        gguf.open(paths[6])
    for path in paths[:4]:
        path.unlink()
    with pytest.raises(GGUFError, match=r"m-00003-of-00007\.gguf and 2 others missing"):
        gguf.open(paths[6])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no": {1: 2}}, r"m-00002-of-00003\.gguf: split\.no at byte \d+: expected 1, got 2"),
        ({"no": {1: None}}, r"m-00002-of-00003\.gguf: split\.no: expected 1, got nothing"),
        ({"count": {2: 4}}, r"m-00003-of-00003\.gguf: split\.count at byte \d+: expected 3, got 4"),
        ({"tensors.count": {0: 4}}, r"split\.tensors\.count at byte \d+: expected 3, got 4"),
        ({"name": "other-{:05}-of-0000{}.bin"}, r"expected a name that ends in -00001-of-00003"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, changes, message):
    paths = split(tmp_path, **changes)
    with pytest.raises(GGUFError, match=message):
        gguf.open(paths[0])
    gc.collect()
    gguf.write(paths[0], {"general.architecture": "llama"}, {}, overwrite=True)  # not mapped


def test_a_file_of_another_model_is_refused(tmp_path):
    paths = split(tmp_path)
    (other := tmp_path / "other").mkdir()
    foreign = split(other, second_name=b"other")[1]
    paths[1].write_bytes(foreign.read_bytes())
    one = r"m-00002-of-00003\.gguf: general\.name at byte \d+: expected whole, got 'other'"
    with pytest.raises(GGUFError, match=one):
        gguf.open(paths[2])
    paths[1].write_bytes(split(other, second_name=b"whole")[1].read_bytes())
    gguf.open(paths[2]).close()


def test_a_tensor_in_two_files_is_refused(tmp_path):
    paths = split(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes().replace(b"w1", b"w0"))
    with pytest.raises(GGUFError, match=r"m-00002-.*: tensor w0 is also in m-00001-of-00003\.gguf"):
        gguf.open(paths[0])


def test_what_is_wrong_with_one_is_said_of_that_one(tmp_path):
    paths = split(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    with pytest.raises(GGUFError, match=r"m-00002-of-00003\.gguf: data of w1 is not within"):
        gguf.open(paths[0])
    paths[1].write_bytes(paths[1].read_bytes()[:-3] + b"\0\0\xc0\x7f")
    with pytest.raises(GGUFError, match=r"m-00002-of-00003\.gguf: w1, element 7 at byte"):
        gguf.open(paths[0])


def two_parts(engine, folder):
    """Write an engine's model into one file, and into two; return the one and the first."""
    whole = folder / "whole.gguf"
    engine.export_gguf(whole)
    with gguf.open(whole) as file:
        names, typed = list(file), gguf.typed_metadata(file.metadata, file.types)
        for index, part in enumerate((names[:5], names[5:])):
            metadata = typed if index == 0 else {"general.architecture": "llama"}
            numbers = {"split.no": (index, "UINT16"), "split.count": (2, "UINT16")}
            numbers["split.tensors.count"] = (len(names), "INT32")
            gguf.write(
                folder / f"m-0000{index + 1}-of-00002.gguf",
                metadata | numbers,
                {name: (file.raw(name), file.tensors[name].type) for name in part},
            )
    return whole, folder / "m-00001-of-00002.gguf"


def test_an_engine_over_several_files_has_the_logits_of_one(tmp_path):
    model, ids = make().engine, np.arange(8)
    shake(model, np.random.default_rng(0))
    expected = model.logits(ids)
    whole, first = two_parts(model, tmp_path)
    with gguf.open(first) as file:
        frozen = engines.frozen(file)
    np.testing.assert_array_equal(frozen.logits(ids), expected)
    engine = LlamaSeqEngine.from_gguf(first)
    np.testing.assert_array_equal(engine.logits(ids), expected)
    engine.export_gguf(tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == whole.read_bytes()


@pytest.mark.llama_cpp
def test_llama_cpp_takes_such_files_for_the_same_model(tmp_path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from test_llama_cpp import judged_logits

    config = LlamaConfig(96, 64, 4, 2, 160, 2, 32)
    model, ids = LlamaSeqEngine(), np.arange(16)
    model.realize_for_random_init(config, RecipeOptions(init_scale=3.0))
    _, first = two_parts(model, tmp_path)
    with gguf.open(first) as file:
        logits = engines.frozen(file).logits(ids)
    judged = judged_logits(first, ids)
    assert ((logits - judged) ** 2).sum() < 1e-8 * (judged**2).sum()
