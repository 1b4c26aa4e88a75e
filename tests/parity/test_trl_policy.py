"""GRPO beside TRL's GRPOTrainer, where it is installed: its own loss, and what it makes of it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
trl = pytest.importorskip("trl", reason="TRL, the group trl, is not installed")

from datasets import Dataset  # noqa: E402
from peft import PeftModel  # noqa: E402
from test_hf_parity import their_model  # noqa: E402
from test_policy_parity import A, batch_of, recipe_of  # noqa: E402
from test_preference_parity import sequences  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

import toynn  # noqa: E402
from toynn.engines import SequenceEngine  # noqa: E402
from toynn.engines.policy import PolicyOptions, policy_loss  # noqa: E402
from toynn.formats import adapters, gguf  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
torch.set_num_threads(1)

WAYS = {
    "plain": {},
    "beta": {"beta": 0.2},
    "limits": {"epsilon_high": 0.28, "delta": 1.3},
    "sequence": {"importance_sampling_level": "sequence", "epsilon": 0.02, "beta": 0.1},
    "temperature": {"temperature": 0.7, "epsilon": 0.1},
    "on-policy": {"beta": 0.1},
    "teacher": {"delta": 1.3},
}
CASES = [(loss_type, way) for loss_type in ("dapo", "grpo", "dr_grpo", "bnpo") for way in WAYS]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The path of a model as a GGUF file; the same is in the folder beside it."""
    folder = tmp_path_factory.mktemp("base")
    their_model("llama").save_pretrained(folder / "model")
    SequenceEngine.from_hf(folder / "model").export_gguf(folder / "base.gguf")
    return folder / "base.gguf"


def trainer_of(recipe, options, folder):
    """A GRPOTrainer in float64 with the recipe's adapters, and options by the same names."""
    recipe.export_peft(folder / "adapter")
    model = PeftModel.from_pretrained(their_model("llama"), folder / "adapter", is_trainable=True)
    words = Tokenizer(models.WordLevel({str(k): k for k in range(61)}, unk_token="0"))
    named = {name: value for name, value in vars(options).items() if name != "importance_cap"}
    trainer = trl.GRPOTrainer(
        model.double(),
        lambda completions, **_: [0.0] * len(completions),
        trl.GRPOConfig(
            str(folder / "out"),
            **named,
            use_bias_correction_kl=False,  # True: the divergence times the ratio, TRL's default
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=4,
            num_generations=2,
            report_to="none",
        ),
        Dataset.from_list([{"prompt": "1"}] * 4),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="0"),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def padded(rows, *, left=False):
    """Rows as one array (4, longest), and which places they fill."""
    longest = max(map(len, rows))
    values, mask = torch.zeros(4, longest, dtype=torch.float64), torch.zeros(4, longest)
    for k, row in enumerate(rows):
        at = slice(longest - len(row), longest) if left else slice(len(row))
        values[k, at], mask[k, at] = torch.tensor(row, dtype=torch.float64), 1
    return values, mask.long()


@pytest.mark.parametrize(("loss_type", "way"), CASES)
def test_loss_and_gradients_are_those_of_trl(loss_type, way, base, tmp_path):
    options = PolicyOptions(loss_type, **WAYS[way])
    recipe = recipe_of(base, options)
    trainer = trainer_of(recipe, options, tmp_path)
    model, log_p_of = trainer.model.train(), trainer._get_per_token_logps_and_entropies
    prompts, completions = zip(*sequences(), strict=True)
    (prompt_ids, prompt_mask), (ids, mask) = padded(prompts, left=True), padded(completions)
    prompt_ids, ids, seen = prompt_ids.long(), ids.long(), []

    def noted(*arguments, **more):
        log_p, *others = log_p_of(*arguments, **more)  # float32: TRL's head computes no other
        seen.append(log_p := log_p.double())
        log_p.retain_grad()
        return log_p, *others

    whole = torch.cat([prompt_ids, ids], 1), torch.cat([prompt_mask, mask], 1)
    inputs = {"prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": ids}
    given = A
    if way == "teacher":  # an advantage of each token
        given = [
            [a + (-1) ** t / (t + 1) for t in range(len(c))]
            for a, c in zip(A, completions, strict=True)
        ]
    advantages = padded(given)[0] if way == "teacher" else torch.tensor(given, dtype=torch.float64)
    inputs |= {"completion_mask": mask, "advantages": advantages}
    with torch.no_grad():
        now = log_p_of(model, *whole, ids.size(1))[0]
        with model.disable_adapter():
            inputs["ref_per_token_logps"] = log_p_of(model, *whole, ids.size(1))[0].double()
    old = None
    if way != "on-policy":
        random = np.random.default_rng(8)
        old = [
            row[: len(each)].numpy() + random.normal(0, 0.4, len(each))
            for row, each in zip(now, completions, strict=True)
        ]
        inputs["old_per_token_logps"] = padded([row.tolist() for row in old])[0]
    trainer._get_per_token_logps_and_entropies = noted
    loss = trainer._compute_loss(model, inputs | {"num_items_in_batch": mask.sum()})
    loss.backward()

    used = mask.bool()
    log_p, reference = (x[used].detach().numpy() for x in (seen[0], inputs["ref_per_token_logps"]))
    batch = batch_of(options, old, given)
    before = log_p if old is None else np.concatenate(old)
    held = reference if options.beta else None
    got, slopes, _ = policy_loss(log_p, before, batch.samples, options, held)
    assert got == pytest.approx(loss.item(), rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(slopes, seen[0].grad[used].numpy(), rtol=1e-11, atol=1e-15)

    hp = toynn.AdamW.for_lora().hp_for_step(0)
    assert recipe.train(batch, hp, True) == pytest.approx(loss.item(), rel=3e-5, abs=1e-6)
    for each in model.parameters():
        each.data = (each if each.grad is None else each.grad).detach().float()
    model.save_pretrained(tmp_path / "gradients")
    with gguf.open(base) as file:
        theirs = adapters.load(tmp_path / "gradients", file).pairs
    gradients = recipe.gradients()
    assert {name.rpartition(".")[0] for name in gradients} == theirs.keys()
    for name, pair in theirs.items():
        for part, wanted in zip("ab", pair, strict=True):
            got = gradients[f"{name}.lora_{part}"]
            np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-5 * np.abs(wanted).max())
