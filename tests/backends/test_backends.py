"""The seam between a session and its backend: what is asked, in which order, and who waits."""

import lazy  # noqa: F401  registers itself
import numpy as np
import pytest
from lora_bases import write_base
from tiny import HP, Tiny

import toynn
from toynn import backends, ops
from toynn.backends.cpu import CPU
from toynn.backends.reference import Reference
from toynn.errors import BackendUnavailable, ConfigError
from toynn.recipes import LoRA
from toynn.session import Session


def test_backends_are_found_by_name():
    assert {"cpu", "reference", "lazy"} <= set(backends.available())
    assert isinstance(backends.get("cpu"), CPU) and isinstance(backends.get("reference"), Reference)
    assert Session("lazy", n_threads=3).backend.n_threads == 3
    assert backends.get("cpu") is not backends.get("cpu")
    with pytest.raises(BackendUnavailable, match="'host': not in this build; available: cpu"):
        backends.get("host")  # a module of backends, but none
    with pytest.raises(ConfigError, match="'cpu': this name is taken"):
        backends.register("cpu", CPU)


def test_nothing_is_computed_until_somebody_looks():
    tiny, eager = Tiny(backend="lazy"), Tiny()
    device = tiny.s.backend
    tiny.s.run("loss")
    tiny.s.run("grads")
    assert device.ran == 0
    eager.s.run("loss")
    eager.s.run("grads")
    assert tiny.s.download(tiny.loss) == eager.s.download(eager.loss)
    assert device.ran == 2
    for _ in range(3):
        tiny.s.run()
        eager.s.run()
    for a, b in ((tiny.w, eager.w), (tiny.wte, eager.wte)):
        assert np.array_equal(tiny.s.download(a), eager.s.download(b))


def test_what_was_uploaded_may_change_at_once():
    tiny, eager = Tiny(backend="lazy"), Tiny()
    for case in (tiny, eager):
        weights = case.s.download(case.w)
        case.s.run("loss")
        case.s.upload(case.w, weights)
        weights += 1  # too late to be seen
        case.s.reset(moments=True)
        case.s.run("loss")
    assert tiny.s.download(tiny.loss) == eager.s.download(eager.loss)


def test_a_step_is_one_run_and_looks_at_two_scalars():
    recipe = toynn.recipes.GPT2(backend="lazy")
    recipe.realize(toynn.GPT2Config(11, 8, 2, 16, 1, 4), toynn.RecipeOptions())
    device, ids = recipe.engine.session.backend, np.arange(4)
    for step in range(2):
        device.calls.clear()
        recipe.step(ids, None, ids, HP, step == 0)
    assert device.calls == ["upload"] * 4 + ["run FBU"] + ["download"] * 2


def test_a_profile_waits_and_says_what_the_backend_does():
    tiny = Tiny(backend="lazy")
    tiny.s.run()
    assert "in the queue" in str(tiny.s.profile())
    assert tiny.s.profile().short_handed_ms == 0


def test_what_goes_wrong_in_the_background_is_raised_to_who_looks(monkeypatch):
    tiny = Tiny(backend="lazy")
    tiny.s.download(tiny.w)

    def lost():
        raise RuntimeError("the device is lost")

    tiny.s.run("loss")
    tiny.s.backend.queue.append((lost,))
    with pytest.raises(RuntimeError, match="the device is lost"):
        tiny.s.download(tiny.loss)


def test_close_waits_for_the_device():
    tiny = Tiny(backend="lazy")
    tiny.s.run("loss")
    tiny.s.close()
    assert tiny.s.backend.ran == 1


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_buffer_keeps_to_its_bounds(backend):
    buffer = backends.get(backend).allocate(64)
    buffer.upload(56, np.array([1, 2], np.float32))
    assert buffer.download(60, (), "f32") == 2
    assert buffer.download(0, (16,), "u8").tolist() == [0] * 16
    for offset, n in ((60, 2), (-4, 1), (64, 1), (0, 17)):
        for call in (
            lambda offset=offset, n=n: buffer.upload(offset, np.zeros(n, np.float32)),
            lambda offset=offset, n=n: buffer.download(offset, (n,), "f32"),
            lambda offset=offset, n=n: buffer.fill(offset, 4 * n),
        ):
            with pytest.raises(ValueError, match="is not within 64 bytes"):
                call()
    buffer.fill(60, 4)
    assert buffer.download(56, (2,), "f32").tolist() == [1, 0]


# -- Mapped memory ---------------------------------------------------------------------------------


def test_a_mapped_file_is_one_buffer(tmp_path):
    path = tmp_path / "base.gguf"
    write_base(path, "gpt2")
    losses = {}
    for backend in ("lazy", "cpu"):
        recipe = LoRA(backend=backend)
        recipe.realize(path, None, 2, toynn.RecipeOptions(t_seq=8), targets="all-linear")
        ids = np.arange(8) % 11
        adamw = toynn.AdamW.for_lora()
        losses[backend] = [
            recipe.step(ids, None, ids, adamw.hp_for_step(k), k == 1) for k in (1, 2)
        ]
        session = recipe.engine.session
        assert len(session._storage.mapped) > 10
        if backend == "lazy":
            wrapped = [call for call in session.backend.calls if call[0] == "wrap"]
            assert wrapped == [("wrap", path.stat().st_size)]
    assert losses["lazy"] == losses["cpu"]


def test_parts_of_one_array_share_a_buffer():
    table = np.arange(24, dtype=np.float32).reshape(4, 6)
    raw = np.arange(34 * 6, dtype=np.uint8)
    s = Session("lazy")
    parts = {
        "rows": (s.mapped("rows", table[2:]), table[2:]),
        "one": (s.mapped("one", table[1]), table[1]),
        "other": (s.mapped("other", np.ones((2, 2), np.float32)), np.ones((2, 2))),
    }
    blocks = s.mapped("blocks", raw[34 : 34 * 3], "q8_0", (1, 64))
    assert s.backend.calls == [("wrap", 96), ("wrap", 16), ("wrap", 204)]
    for tensor, expected in parts.values():
        assert np.array_equal(s.download(tensor), expected)
    expected = toynn.formats.quants.dequantize(raw[34 : 34 * 3], "Q8_0", (1, 64))
    np.testing.assert_array_equal(s.download(blocks), expected)
    x = s.input("x", (1, 6))
    y = s.output(ops.linear(s, x, parts["rows"][0]))
    s.finalize_weights()
    s.realize()
    s.upload(x, np.ones((1, 6)))
    s.run()
    assert np.array_equal(s.download(y)[0], table[2:].sum(axis=1))
