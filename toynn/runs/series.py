"""A short name and a plain one for each field of metrics.jsonl.

Example:

    series("val_base/kl")    .short "kl", .plain "KL divergence from the base", .held_out True
"""

from typing import NamedTuple

HELD_OUT = "val_"
PER_SECOND = "_per_second"
#: Short names that differ from the field's last word. Those of metrics are what --metric takes.
SHORT = {
    "train_loss": "loss",
    "val_loss": "val",
    "learning_rate": "lr",
    "grad_norm": "norm",
    "peak_memory": "memory",
    "stop/loss": "stop",
    "rest/loss": "rest",
    "accuracy/normalized": "accuracy-normalized",
    "rewards/mean": "reward",
    "teacher/reverse_kl": "reverse-kl",
    "classes/macro_f1": "macro-f1",
    "classes/micro_f1": "micro-f1",
    "entities/f1": "entity-f1",
    "retrieval/ndcg@10": "ndcg",
    "retrieval/mrr@10": "mrr",
    "retrieval/recall@10": "recall",
}
#: Plain names, by the field without "val_".
PLAIN = {
    "train_loss": "loss",
    "learning_rate": "learning rate",
    "grad_norm": "norm of the gradient",
    "accuracy/normalized": "accuracy, by length-normalized scores",
    "base/kl": "KL divergence from the base",
    "base/same_top": "share of tokens on which the base agrees",
    "stop/loss": "loss of stop tokens",
    "rest/loss": "loss of all other tokens",
    "text/perplexity": "perplexity",
    "classes/macro_f1": "macro-f1",
    "classes/micro_f1": "micro-f1",
    "classes/matthews": "Matthews' correlation",
    "numbers/spearman": "Spearman's correlation",
    "entities/f1": "entity-f1",
    "retrieval/ndcg@10": "NDCG at 10",
    "retrieval/mrr@10": "MRR at 10",
    "retrieval/recall@10": "recall at 10",
    "rewards/margins": "margin of rewards, chosen over rejected",
    "rewards/accuracies": "share of pairs that are ranked right",
    "rewards/chosen": "reward of chosen completions",
    "rewards/rejected": "reward of rejected completions",
    "rewards/mean": "reward",
    "rewards/std": "standard deviation of rewards in a group",
    "rewards/flat_groups": "share of groups without a signal",
    "rewards/missing": "share of missing rewards",
    "teacher/forward_kl": "KL divergence from the teacher",
    "teacher/agreement": "share of tokens on which the teacher agrees",
    "teacher/on_policy": "share of batches that the student writes",
    "teacher/reverse_kl": "reverse KL divergence from the teacher, on samples",
    "samples/length": "tokens of a sample",
    "samples/cut": "share of samples cut at their longest",
    "policy/clipped": "share of tokens whose ratio is clipped",
    "policy/entropy": "entropy, estimated on samples",
    "policy/reference_kl": "KL divergence from the reference",
    "sampling/difference_mean": "difference of log-probabilities, sampled and trained",
    "sampling/difference_max": "largest difference of log-probabilities, sampled and trained",
    "logps/chosen": "log-probability of chosen completions",
    "logps/rejected": "log-probability of rejected completions",
}


class Series(NamedTuple):
    """A field of metrics.jsonl.

    Attributes
    ----------
    field
        The key in metrics.jsonl.
    family
        The quantity, without "val_": the same for the training batches and the held-out part.
    short
        The name in ``toynn plot --what``.
    plain
        The quantity in plain words, for a report.
    held_out
        Whether it was measured on the held-out part.
    """

    field: str
    family: str
    short: str
    plain: str
    held_out: bool

    @property
    def words(self) -> str:
        """The plain name, with "validation" for the held-out part."""
        return f"{self.plain}, validation" if self.held_out else self.plain

    def called(self, name: str) -> bool:
        """Whether a name means this series: its short name, its field, or a family like "a/b"."""
        return name in (self.short, self.field) or (name == self.family and "/" in name)


def series(field: str) -> Series:
    """Return the names of a field."""
    held_out = field.startswith(HELD_OUT)
    family = field.removeprefix(HELD_OUT)
    family = "train_loss" if family == "loss" else family
    if field.endswith(PER_SECOND):
        unit = field.removesuffix(PER_SECOND)
        return Series(field, PER_SECOND, "speed", f"speed, {unit} a second", held_out=False)
    group, slash, last = family.partition("/")
    plain = PLAIN.get(family)
    if plain is None:
        plain = f"loss of {last}" if slash and group == "loss" else family.replace("_", " ")
    short = SHORT.get(field, SHORT.get(family, last or family))
    return Series(field, family, short, plain, held_out)
