"""GRPO through a model: loss and gradients of the adapters against PyTorch in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

from lora_bases import stir, write_base  # noqa: E402
from test_distillation_parity import V, change, logits_of  # noqa: E402
from test_preference_parity import Reference, T, sequences  # noqa: E402

import toynn  # noqa: E402
from toynn import engines  # noqa: E402
from toynn.engines.policy import PolicyBatch, PolicyOptions, Sample, shares  # noqa: E402
from toynn.engines.teacher import Teacher  # noqa: E402
from toynn.formats import gguf  # noqa: E402
from toynn.recipes import GRPO  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)

A = (1.2, -0.4, 0.3, -1.1)
CASES = {
    "on-policy": {},
    "dapo": {"beta": 0.2},
    "grpo": {"loss_type": "grpo", "delta": 1.3},
    "dr_grpo": {"loss_type": "dr_grpo", "beta": 0.1, "epsilon_high": 0.28},
    "bnpo": {"loss_type": "bnpo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base.gguf")


def recipe_of(base, options):
    recipe = GRPO(options)
    opts = toynn.RecipeOptions(t_seq=T, t_batch=4, seed=7, packed=True)
    recipe.realize(base, None, 3, opts, alpha=6.0, targets="all-linear")
    stir(recipe)
    return recipe


def batch_of(options, old, A=A):
    lengths = [len(tokens) for _, tokens in sequences()]
    share, weight = shares(lengths, np.ones(len(lengths), bool), options)
    samples = [
        Sample(p, c, a, float(s), [-1.0] * len(c), None if old is None else old[k].tolist())
        for k, ((p, c), a, s) in enumerate(zip(sequences(), A, share, strict=True))
    ]
    return PolicyBatch.with_samples(samples, weight)


def loss_of(reference, options, old, A=A):
    """TRL's loss in PyTorch, sample by sample."""
    total, held = [], []
    for k, (prompt, completion) in enumerate(sequences()):
        log_p, first = reference.log_p(prompt, completion)
        now = log_p[first:]
        before = now.detach() if old is None else torch.tensor(old[k])
        w = now - before
        w = w.mean() if options.importance_sampling_level == "sequence" else w
        high = options.epsilon_high or options.epsilon
        c1 = torch.exp(w)
        c2 = torch.clamp(c1, 1 - options.epsilon, 1 + high)
        c1 = c1 if options.delta is None else torch.clamp(c1, max=options.delta)
        a = torch.tensor(A[k])
        each = -torch.min(c1 * a, c2 * a) * torch.ones_like(now)
        if options.beta:
            with torch.no_grad():
                other = reference.log_p(prompt, completion, adapted=False)[0][first:]
            each = each + options.beta * (torch.exp(other - now) - (other - now) - 1)
        total.append(each)
        held.append(each.mean())
    if options.loss_type == "grpo":
        return torch.stack(held).mean()
    if options.loss_type == "dr_grpo":
        return torch.cat(total).sum() / (len(total) * options.max_completion_length)
    return torch.cat(total).mean()


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_the_formula(base, name):
    check(base, name)


def check(base, name, A=A):
    options = PolicyOptions(**CASES[name])
    recipe = recipe_of(base, options)
    reference = Reference(base, recipe)
    random, old = np.random.default_rng(8), None
    if name != "on-policy":
        old = []
        for prompt, completion in sequences():
            log_p, first = reference.log_p(prompt, completion)
            log_p = log_p[first:].detach().numpy()
            old.append(log_p + random.normal(0, 0.2, len(completion)))
    loss = loss_of(reference, options, old, A)
    loss.backward()
    batch = batch_of(options, old, A)
    hp = toynn.AdamW.for_lora().hp_for_step(0)
    assert recipe.train(batch, hp, True) == pytest.approx(float(loss.detach()), rel=3e-5, abs=1e-6)
    for key, got in recipe.gradients().items():
        wanted = reference.lora[key].grad.numpy()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", CASES)
def test_a_teacher_is_an_advantage_of_each_token(base, name, tmp_path, monkeypatch):
    """A = log p_teacher - log p when drawn, of tokens; both over the temperature."""
    monkeypatch.setattr("toynn.engines.teacher.FEW", 2)  # rows come in several parts
    change(write_base(path := tmp_path / "teacher.gguf"))
    with gguf.open(path) as file:
        frozen = engines.frozen(file, options=toynn.RecipeOptions(t_seq=T, t_batch=4, packed=True))
    got = Teacher(frozen, V, 1, 0.7).log_p(batch_of(PolicyOptions(), None))
    logits = logits_of(path, frozen.config, {}) / 0.7
    tokens = torch.tensor([id for _, completion in sequences() for id in completion])
    wanted = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens].numpy()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5)
    drawn = np.random.default_rng(3).normal(-4, 0.5, len(got))
    sizes = [len(completion) for _, completion in sequences()]
    check(base, name, [each.tolist() for each in np.split(got - drawn, np.cumsum(sizes)[:-1])])


def test_parts_add_up_to_the_whole(base):
    """A batch in parts has the gradient of the whole; each part has its share of the weight."""

    class Parts:
        def __init__(self):
            self.figures = {"rewards/mean": (2.0, 4.0)}

        def parts(self):
            whole = batch_of(options, None)
            return [
                PolicyBatch.with_samples(
                    [Sample(**vars(s) | {"share": 2 * s.share}) for s in half], whole.weight / 2
                )
                for half in (whole.samples[:1], whole.samples[1:])
            ]

    options = PolicyOptions(beta=0.1)
    hp = toynn.AdamW.for_lora().hp_for_step(0)
    one, two = (recipe_of(base, options) for _ in range(2))
    first, second = one.train(batch_of(options, None), hp, True), two.train(Parts(), hp, True)
    assert second == pytest.approx(first, rel=1e-5)
    assert two.figures["rewards/mean"] == (2.0, 4.0)
    assert two.figures["policy/reference_kl"][1] == one.figures["policy/reference_kl"][1]
    for name, wanted in one.gradients().items():
        got = two.gradients()[name]
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())
