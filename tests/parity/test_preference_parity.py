"""DPO, ORPO and KTO: loss and gradients of the adapters against TRL's formulas in float64."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

import torch_llama  # noqa: E402
from lora_bases import stir, write_base  # noqa: E402
from torch.nn.functional import logsigmoid  # noqa: E402

import toynn  # noqa: E402
from toynn.data.examples import Examples  # noqa: E402
from toynn.data.preference import Preferences  # noqa: E402
from toynn.engines import PreferenceOptions  # noqa: E402
from toynn.formats import gguf  # noqa: E402
from toynn.recipes import Preference  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)

T = 12
LENGTHS = ((3, 5), (3, 2), (1, 8), (1, 4))  # of prompt and completion, pair by pair
WANTED = (True, False, False, True)
CASES = {
    "dpo": PreferenceOptions("dpo", beta=0.3),
    "dpo-smoothed": PreferenceOptions("dpo", beta=0.3, label_smoothing=0.2),
    "orpo": PreferenceOptions("orpo", beta=0.7),
    "kto": PreferenceOptions("kto", beta=0.2, desirable_weight=1.5, undesirable_weight=0.75),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "base.gguf")


def sequences(vocab=61):
    """Prompts and completions, the prompts of a pair alike."""
    rng = np.random.default_rng(4)
    texts = [[rng.integers(0, vocab, n).tolist() for n in lengths] for lengths in LENGTHS]
    for k in (0, 2):
        texts[k + 1][0] = texts[k][0]
    return texts


def batch_of(options):
    examples = Examples(T)
    for prompt, completion in sequences():
        examples.append([(prompt, False), (completion, True)])
    wanted = None if options.paired else list(WANTED)
    data = Preferences(examples, wanted, whole=options.loss == "orpo")
    return data.batch(range(len(data)), 4 * T)


def recipe_of(base, options, **more):
    recipe = Preference(options)
    opts = toynn.RecipeOptions(t_seq=T, t_batch=4, seed=7, packed=True)
    recipe.realize(base, None, 3, opts, alpha=6.0, targets="all-linear", **more)
    stir(recipe)
    return recipe


class Reference:
    """The merged model in float64, as a function of A and B."""

    def __init__(self, base, recipe):
        engine = recipe.engine
        with gguf.open(base) as file:
            self.weights = {name: torch.tensor(file[name]).double() for name in file}
        self.config = engine.config
        self.lora = {
            name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
            for name, value in engine.adapter_weights().items()
        }
        self.scales = {name: adapter.scale for name, adapter in engine.adapters.items()}

    def log_p(self, prompt, completion, adapted=True):
        """Log probability of each token of a text behind its first, and which are completion's."""
        weights = dict(self.weights)
        for name, scale in self.scales.items() if adapted else ():
            a, b = self.lora[f"{name}.lora_a"], self.lora[f"{name}.lora_b"]
            weights[name] = weights[name] + scale * b @ a
        model = torch_llama.Model({}, self.config)
        model.all = weights
        ids = torch.tensor(prompt + completion)
        logits = model.sequence_logits(ids[:-1], torch.arange(len(ids) - 1))
        log_p = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        return log_p, len(prompt) - 1

    def of(self, prompt, completion, adapted=True):
        log_p, first = self.log_p(prompt, completion, adapted)
        return log_p[first:].sum()


def expected(reference, options):
    """The loss by TRL's formulas."""
    texts = sequences()
    policy = torch.stack([reference.of(*text) for text in texts])
    held = torch.stack([reference.of(*text, adapted=False) for text in texts]).detach()
    beta, e = options.beta, options.label_smoothing
    if options.loss == "dpo":
        ratio = policy - held
        m = beta * (ratio[0::2] - ratio[1::2])
        return (-logsigmoid(m) * (1 - e) - logsigmoid(-m) * e).mean()
    if options.loss == "orpo":
        average = policy / torch.tensor([len(completion) for _, completion in texts])
        chosen, rejected = average[0::2], average[1::2]
        odds = (chosen - rejected) - (
            torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
        )
        nll = -torch.cat([reference.log_p(*text)[0] for text in texts[0::2]]).mean()
        return nll - (beta * logsigmoid(odds)).mean()
    others = [(texts[k][0], texts[k - 1][1]) for k in range(len(texts))]
    gaps = [
        reference.of(p, c).detach() - reference.of(p, c, adapted=False).detach() for p, c in others
    ]
    kl = torch.stack(gaps).mean().clamp(min=0)
    good = torch.tensor(WANTED)
    ratio = policy - held
    losses = torch.where(
        good,
        options.desirable_weight * (1 - torch.sigmoid(beta * (ratio - kl))),
        options.undesirable_weight * (1 - torch.sigmoid(beta * (kl - ratio))),
    )
    return losses.mean()


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_the_formula(base, name):
    options = CASES[name]
    recipe = recipe_of(base, options)
    reference = Reference(base, recipe)
    loss = expected(reference, options)
    loss.backward()
    batch = batch_of(options)
    arrays = list(batch)
    assert recipe.evaluate(*arrays) == pytest.approx(float(loss.detach()), rel=2e-6)
    hp = toynn.AdamW.for_lora().hp_for_step(0)
    assert recipe.step(*arrays[:3], hp, True, *arrays[3:]) == pytest.approx(
        float(loss.detach()), rel=2e-6
    )
    gradients = recipe.engine.gradients()
    assert gradients.keys() == reference.lora.keys()
    for name, got in gradients.items():
        wanted = reference.lora[name].grad.numpy()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())


def test_figures_are_trls(base):
    options = CASES["dpo"]
    recipe = recipe_of(base, options)
    reference = Reference(base, recipe)
    recipe.evaluate(*batch_of(options))
    with torch.no_grad():
        gains = [
            float(reference.of(*text) - reference.of(*text, adapted=False)) for text in sequences()
        ]
    rewards = options.beta * np.array(gains)
    means = {name: total / count for name, (total, count) in recipe.figures.items()}
    assert means["rewards/chosen"] == pytest.approx(rewards[0::2].mean(), abs=1e-4)
    assert means["rewards/rejected"] == pytest.approx(rewards[1::2].mean(), abs=1e-4)
    assert means["rewards/margins"] == pytest.approx(
        (rewards[0::2] - rewards[1::2]).mean(), abs=1e-4
    )
    assert means["rewards/accuracies"] == (rewards[0::2] > rewards[1::2]).mean()


def test_orpo_is_trls(base):
    pytest.importorskip("trl", reason="TRL is not installed")
    trainer = pytest.importorskip("trl.experimental.orpo.orpo_trainer", reason="not installed")
    options = CASES["orpo"]
    recipe = recipe_of(base, options)
    reference = Reference(base, recipe)
    texts = sequences()
    with torch.no_grad():
        average = torch.stack([reference.of(*text) / len(text[1]) for text in texts])
        nll = -torch.cat([reference.log_p(*text)[0] for text in texts[0::2]]).mean()
        stub = SimpleNamespace(beta=options.beta, accelerator=SimpleNamespace(device="cpu"))
        odds = trainer.ORPOTrainer.odds_ratio_loss(stub, average[0::2], average[1::2])[0]
    assert recipe.evaluate(*batch_of(options)) == pytest.approx(float(nll - odds.mean()), rel=2e-6)


def test_without_adapters_it_is_its_own_reference(base):
    recipe = Preference(CASES["dpo"])
    opts = toynn.RecipeOptions(t_seq=T, t_batch=4, seed=7, packed=True)
    recipe.realize(base, None, 3, opts, targets="all-linear")
    assert recipe.evaluate(*batch_of(CASES["dpo"])) == pytest.approx(math.log(2), rel=1e-6)


def test_micro_batches_count_by_their_pairs(base):
    options, hp = CASES["dpo"], toynn.AdamW.for_lora().hp_for_step(0)
    examples = Examples(T)
    for prompt, completion in sequences():
        examples.append([(prompt, False), (completion, True)])
    data = Preferences(examples, None)
    parts = [list(data.batch([k], 2 * T)) for k in range(2)]
    whole = list(data.batch([0, 1], 4 * T))
    one, two = (recipe_of(base, options) for _ in range(2))
    one.step(*whole[:3], hp, True, *whole[3:])
    two.accumulate(*parts[0])
    two.step(*parts[1][:3], hp, True, *parts[1][3:])
    for name, expected_ in one.engine.gradients().items():
        got = two.engine.gradients()[name]
        np.testing.assert_allclose(got, expected_, rtol=0, atol=2e-5 * np.abs(expected_).max())
