"""What a student writes by --lmbda, beside TRL's GKDTrainer, where it is installed."""

import warnings
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("trl", reason="TRL, the group trl, is not installed")

import test_distillation_parity as distilled  # noqa: E402
from test_distillation_parity import T, V, files  # noqa: E402, F401
from test_preference_parity import sequences  # noqa: E402

import toynn  # noqa: E402
from toynn import engines  # noqa: E402
from toynn.engines.teacher import Teacher  # noqa: E402
from toynn.formats import gguf  # noqa: E402
from toynn.jobs.teacher import OnPolicyBatches, TeacherOptions  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is experimental
    from trl.experimental.gkd import GKDTrainer

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
torch.set_num_threads(1)

STOP = [*range(5, 25)]  # tokens: some completions end early
MOST = 4


class Source:
    """A batch, again and again."""

    per_epoch, examples, state = 1.0, 4, {}

    def __next__(self):
        return distilled.batch_of(None)


class Model:
    """A model of TRL's: float64 logits of padded rows, and completions that exist already."""

    def __init__(self, *parts):
        self.model = distilled.model_of(*parts)

    def __call__(self, input_ids, attention_mask):
        logits = torch.zeros(*input_ids.shape, V, dtype=torch.float64)
        for k, used in enumerate(attention_mask.bool()):
            ids = input_ids[k]
            logits[k, used] = self.model.sequence_logits(ids[used], torch.arange(int(used.sum())))
        return SimpleNamespace(logits=logits)

    def eval(self):
        """Do nothing: it has no dropout."""

    def generate(self, input_ids, **_):
        tokens = [[*row, *[0] * (MOST - len(row))] for row in self.written]
        return SimpleNamespace(sequences=torch.cat([input_ids, torch.tensor(tokens)], 1))


@pytest.mark.parametrize("case", ["forward", "gkd", "reverse"])
def test_loss_and_gradients_are_those_of_trl(case, files):  # noqa: F811
    beta, temperature, _, _ = distilled.CASES[case]
    recipe = distilled.recipe_of(files[0], case)
    with gguf.open(files[1]) as file:
        options = toynn.RecipeOptions(t_seq=T, t_batch=4, packed=True)
        teacher = Teacher(engines.frozen(file, options=options), V, V, temperature, 0.3)
    job = SimpleNamespace(recipe=recipe, teacher=teacher, parts=(), t_seq=T)
    job.options = TeacherOptions(lmbda=1.0, max_completion_length=MOST)
    job.tokenizer = SimpleNamespace(eog=STOP)
    batch = next(OnPolicyBatches(Source(), job)).read()
    starts = [*np.flatnonzero(batch.segments == np.arange(batch.tokens)), batch.tokens]
    rows = [(batch.inputs[a:b], batch.labels[a:b]) for a, b in pairwise(starts)]
    written = [labels[labels != -100].tolist() for _, labels in rows]
    prompts = [
        ids[: len(ids) + 1 - len(own)].tolist() for (ids, _), own in zip(rows, written, strict=True)
    ]
    assert prompts == [prompt for prompt, _ in sequences()]
    assert {len(own) for own in written} > {MOST} and all(
        own[-1] in STOP or len(own) == MOST for own in written
    )

    lora, adapters = distilled.adapters_of(recipe)
    student = Model(files[0], recipe.config, adapters)
    student.written, longest = written, max(map(len, prompts))
    asked = {
        "prompts": torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts]),
        "prompt_attention_mask": torch.tensor(
            [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
        ),
    }
    how = SimpleNamespace(eos_token_id=STOP)
    names = "input_ids", "attention_mask", "labels"
    inputs = dict(
        zip(names, GKDTrainer.generate_on_policy_outputs(student, asked, how), strict=True)
    )
    trainer = SimpleNamespace(
        teacher_model=Model(files[1], recipe.config, {}),
        beta=beta,
        generalized_jsd_loss=partial(GKDTrainer.generalized_jsd_loss, temperature=temperature),
    )
    loss = GKDTrainer.compute_loss(trainer, student, inputs)
    loss.backward()
    distilled.check_step(recipe, batch, loss, lora)
