"""A teacher through a model: loss and gradients of the adapters against TRL's in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")

import torch_llama  # noqa: E402
from lora_bases import stir, write_base  # noqa: E402
from test_preference_parity import T, sequences  # noqa: E402
from torch.nn.functional import cross_entropy, kl_div  # noqa: E402

import toynn  # noqa: E402
from toynn import engines  # noqa: E402
from toynn.data.examples import Examples  # noqa: E402
from toynn.engines.teacher import Teacher  # noqa: E402
from toynn.formats import gguf  # noqa: E402
from toynn.recipes import LoRA  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)

V = 61
#: beta, temperature, the tokens that the teacher names, the divergence's share of the loss
CASES = {
    "forward": (0.0, 1.0, V, 1.0),
    "gkd": (0.5, 0.9, V, 1.0),
    "reverse": (1.0, 1.0, V, 1.0),
    "mixed": (0.1, 2.0, V, 0.3),
    "few-forward": (0.0, 1.0, 5, 0.6),
    "few-gkd": (0.5, 0.9, 5, 1.0),
    "few-reverse": (1.0, 2.0, 7, 1.0),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    paths = write_base(folder / "base.gguf"), write_base(folder / "teacher.gguf")
    change(paths[1])
    return paths


def change(path):
    """Make another model of a file: the same tensors, drawn anew."""
    random = np.random.default_rng(12)
    with gguf.open(path) as file:
        metadata = {key: (value, file.types[key]) for key, value in file.metadata.items()}
        tensors = {name: (np.array(file[name], np.float32), "f32") for name in file}
    for values, _ in tensors.values():
        values += random.normal(0, 0.3 * values.std() + 0.01, values.shape).astype(np.float32)
    gguf.write(path, metadata, tensors, overwrite=True)


def batch_of(teacher):
    examples = Examples(T)
    for prompt, completion in sequences():
        examples.append([(prompt, False), (completion, True)])
    batch = examples.batch(range(len(examples)), 4 * T)
    batch.teacher = teacher
    return batch


def recipe_of(base, case):
    beta, temperature, k, _ = CASES[case]
    opts = toynn.RecipeOptions(t_seq=T, t_batch=4, seed=7, packed=True, label_losses=True)
    opts.teacher_beta, opts.teacher_temperature, opts.teacher_top_k = beta, temperature, k
    recipe = LoRA()
    recipe.realize(base, None, 3, opts, alpha=6.0, targets="all-linear")
    stir(recipe)
    return recipe


def model_of(path, config, adapters):
    """A model of PyTorch, in float64."""
    with gguf.open(path) as file:
        weights = {name: torch.tensor(file[name]).double() for name in file}
    for name, (a, b, scale) in adapters.items():
        weights[name] = weights[name] + scale * b @ a
    model = torch_llama.Model({}, config)
    model.all = weights
    return model


def adapters_of(recipe):
    """A recipe's adapters in PyTorch, float64: by key, and (a, b, scale) by the weight's name."""
    lora = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in recipe.adapter_weights().items()
    }
    return lora, {
        name: (lora[f"{name}.lora_a"], lora[f"{name}.lora_b"], adapter.scale)
        for name, adapter in recipe.adapters.items()
    }


def check_step(recipe, batch, loss, lora):
    """A step has PyTorch's loss, whose gradients are those of ``lora``."""
    hp = toynn.AdamW.for_lora().hp_for_step(0)
    assert recipe.train(batch, hp, True) == pytest.approx(float(loss.detach()), rel=3e-5)
    for key, got in recipe.gradients().items():
        wanted = lora[key].grad.numpy()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-5 * np.abs(wanted).max())


def logits_of(path, config, adapters):
    """Logits of all tokens with loss, in float64."""
    model, rows = model_of(path, config, adapters), []
    for prompt, completion in sequences():
        ids = torch.tensor(prompt + completion)
        logits = model.sequence_logits(ids[:-1], torch.arange(len(ids) - 1))
        rows.append(logits[len(prompt) - 1 :])
    return torch.cat(rows)


def generalized_jsd(student, teacher, beta, temperature, k):
    """TRL's GKDTrainer.generalized_jsd_loss, over the teacher's k tokens and the rest as one."""
    student, teacher = ((x / temperature).log_softmax(-1) for x in (student, teacher))
    if k < V:
        named = torch.zeros_like(teacher, dtype=torch.bool)
        named.scatter_(1, teacher.topk(k, 1).indices, 1)
        student, teacher = (
            torch.cat([x[named].view(-1, k), x[~named].view(-1, V - k).logsumexp(1, True)], 1)
            for x in (student, teacher)
        )
    if beta == 0:
        jsd = kl_div(student, teacher, reduction="none", log_target=True)
    elif beta == 1:
        jsd = kl_div(teacher, student, reduction="none", log_target=True)
    else:
        weights = torch.tensor([1 - beta, beta]).double().log()
        mixed = torch.stack([student + weights[0], teacher + weights[1]]).logsumexp(0)
        jsd = beta * kl_div(mixed, teacher, reduction="none", log_target=True)
        jsd = jsd + (1 - beta) * kl_div(mixed, student, reduction="none", log_target=True)
    return jsd.sum() / len(student)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_trl(files, case):
    beta, temperature, k, weight = CASES[case]
    base, taught_by = files
    recipe = recipe_of(base, case)
    lora, adapters = adapters_of(recipe)
    student = logits_of(base, recipe.config, adapters)
    teacher = logits_of(taught_by, recipe.config, {}).detach()
    labels = torch.tensor([id for _, completion in sequences() for id in completion])
    of_labels = cross_entropy(student, labels)
    loss = (1 - weight) * of_labels
    loss = loss + weight * generalized_jsd(student, teacher, beta, temperature, k)
    loss.backward()

    options = toynn.RecipeOptions(t_seq=T, t_batch=4, packed=True)
    with gguf.open(taught_by) as file:
        frozen = engines.frozen(file, options=options)
    batch = batch_of(Teacher(frozen, V, k, temperature, weight))
    plain = batch_of(None)
    assert recipe.evaluate(plain) == pytest.approx(float(of_labels.detach()), rel=1e-5)
    assert recipe.label_losses().mean() == pytest.approx(float(of_labels.detach()), rel=1e-5)
    check_step(recipe, batch, loss, lora)
