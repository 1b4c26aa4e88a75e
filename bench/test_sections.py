"""The sections of compare.py: what they count, and that they say when there is nothing to race."""

import growth
import sections
import steps

from toynn.ops import loss


def test_a_name_that_no_shape_has(capsys):
    sections.matmul(1, 1, "no such shape")
    assert "no shape has such a name" in capsys.readouterr().out


def test_the_work_of_a_step_is_what_it_runs(monkeypatch):
    whole = steps.gpt2_recipe(shape := steps.SHAPES["d64_L2_T32_B1"]).engine.session.tape
    monkeypatch.setattr(loss, "WHOLE", 0)
    monkeypatch.setattr(loss, "ROWS", 8)
    recipe = steps.gpt2_recipe(shape)
    ids, labels = steps.draw(shape)
    steps.toynn_step(recipe, ids, steps.positions(shape), labels)()
    session = recipe.engine.session
    ran = sum(row.flops for row in session.profile().rows)
    assert growth.work(session.tape) == ran != growth.work(whole)
