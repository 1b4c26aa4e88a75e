"""The numbers of a step, call by call, against a session that keeps every activation."""

import base64
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from lora_bases import write_base
from tiny import Tiny

import toynn
from toynn.errors import ConfigError, LifecycleError
from toynn.explorer.values import MOST, followed, recorded, unchanged
from toynn.graph.described import described, numbered
from toynn.graph.tape import Role
from toynn.session import Session
from toynn.testing.xor import Xor

T = 6


def xor(backend, tmp_path):
    session, take = Xor().ready()
    return session, take


def gpt2(backend, tmp_path):
    recipe = toynn.recipes.GPT2(backend)
    recipe.realize(toynn.GPT2Config(29, 12, 3, 20, 2, T), toynn.RecipeOptions(seed=2))
    return recipe.engine.session, lambda: step(recipe, 29)


def lora(backend, tmp_path):
    path = tmp_path / "base.gguf"
    if not path.exists():
        sizes = {"d_model": 256, "n_heads": 4, "d_ff": 256, "n_layers": 1, "context": 16}
        write_base(path, "llama", "Q8_0", **sizes)
    recipe = toynn.recipes.LoRA(backend)
    recipe.realize(path, None, 2, toynn.RecipeOptions(t_seq=T), targets="all-linear", init="peft")
    return recipe.engine.session, lambda: step(recipe, recipe.engine.config.vocab)


def step(recipe, vocab):
    ids, labels = np.random.default_rng(3).integers(0, vocab, (2, T))
    return recipe.step(ids, None, labels, toynn.AdamW.for_lora().hp_for_step(1), True)


def keeping_all(monkeypatch):
    """Let every session that is realized keep what its tape computes, so that it is downloaded."""
    realize = Session.realize

    def keep(session):
        owned = (Role.ACTIVATION,)
        session.tape.outputs |= {t for t in session.tape.roots if t.role in owned}
        realize(session)

    monkeypatch.setattr(Session, "realize", keep)


@pytest.mark.parametrize("make", [xor, gpt2, lora])
def test_numbers_are_those_that_download_gives(make, tmp_path, monkeypatch):
    """To the bit: of each node what it leaves, and of weights and moments what is before it."""
    session, take = make("cpu", tmp_path)
    take()
    numbers = numbered(session.tape)
    updated = [t for t in numbers if t.role in (Role.PARAMETER, Role.MOMENT)]
    before = {t: session.download(t) for t in updated}
    page = recorded(session, numbers)
    for tensor, values in before.items():
        assert session.download(tensor).tobytes() == values.tobytes(), "they are put back"

    def content(version):
        tensor, text = page["versions"][version]
        facts = by_number[tensor]
        return np.frombuffer(base64.b64decode(text), facts.dtype.replace("32", "4")).reshape(
            facts.shape
        )

    with monkeypatch.context() as patch:
        keeping_all(patch)
        other, again = make("cpu", tmp_path)
    again()
    first = {t.name: other.download(t) for t in other.tape.roots if t.role is Role.PARAMETER}
    other.run()
    theirs = {t.name: t for t in other.tape.roots}
    by_number = {number: tensor for tensor, number in numbers.items()}
    last, seen = {}, set()
    assert [each["node"] for each in page["nodes"]] == [
        i for i, node in enumerate(session.tape.nodes) if node.phase != "E"
    ]
    for each in page["nodes"]:
        for number, version in each["before"].items():
            if int(number) not in last and by_number[int(number)].role is Role.PARAMETER:
                name = by_number[int(number)].name
                assert content(version).tobytes() == first[name].tobytes(), name
            assert last.get(int(number), version) == version, "nothing changes between two nodes"
        last |= {int(number): version for number, version in each["after"].items()}
    for number, version in last.items():
        name = by_number[number].name
        expected = other.download(theirs[name])
        assert content(version).tobytes() == expected.tobytes(), name
        seen.add(name)
    session.run(look=lambda *_: None)  # over gradients that are there
    for tensor in (t for t in numbers if t.role is Role.GRADIENT and t.name in seen):
        expected = other.download(theirs[tensor.name])
        assert session.download(tensor).tobytes() == expected.tobytes(), tensor
    assert seen == {
        t.root.name for node in session.tape.nodes for t in node.outputs + node.saved if t
    }, "every tensor that the step computes"


def test_the_reference_goes_step_by_step_too_and_others_refuse(tmp_path, monkeypatch):
    session, take = gpt2("reference", tmp_path)
    take()
    assert recorded(session, numbered(session.tape))["nodes"]
    tiny = Tiny()
    compiled = tiny.s._compiled[tiny.s.tape]
    monkeypatch.setitem(tiny.s._compiled, tiny.s.tape, replace(compiled, program=object()))
    with pytest.raises(ConfigError, match="object runs only whole phases"):
        tiny.s.run("grads", look=print)
    assert not tiny.s.pending, "nothing waits for an update"


def test_a_look_that_raises_leaves_no_micro_batch():
    tiny = Tiny()
    with pytest.raises(ZeroDivisionError):
        tiny.s.run("grads", look=lambda *_: 1 / 0)
    assert not tiny.s.pending
    tiny.s.run()


def test_no_other_thread_steps_before_weights_are_put_back():
    tiny = Tiny()
    with ThreadPoolExecutor(1) as pool, unchanged(tiny.s):
        assert isinstance(pool.submit(tiny.s.run).exception(), LifecycleError)
    tiny.s.run()


def test_what_cannot_be_recorded_says_so():
    tiny = Tiny()
    tiny.s.run("grads")
    with pytest.raises(LifecycleError, match="micro-batches wait"):
        recorded(tiny.s, numbered(tiny.s.tape))
    engine = toynn.recipes.GPT2().engine
    engine.declare(toynn.GPT2Config(MOST // 64, 128, 2, 64, 1, 8), toynn.RecipeOptions())
    engine.step_memory()
    with pytest.raises(ConfigError, match="take a smaller model"):
        recorded(engine.session, numbered(engine.session.tape))


@pytest.mark.parametrize(
    ("element", "said"),
    [
        ("w", "expected a weight and an index"),
        ("w[x]", "expected a weight and an index"),
        ("v[0,0]", "weights are wte, w"),
        ("w[11,0]", r"w is \(11, 6\); got the index \[11, 0\]"),
        ("w[1]", r"got the index \[1\]"),
    ],
)
def test_a_number_to_follow_must_be_there(element, said):
    s = Tiny().s
    with pytest.raises(ConfigError, match=said):
        followed(s, element, numbered(s.tape))


def test_a_number_to_follow():
    s = Tiny().s
    told = described(s.tape, {})
    place = followed(s, "w[3, 5]", numbered(s.tape))
    assert told["tensors"][place["tensor"]]["name"] == "w" and place["index"] == [3, 5]
