"""The options of losses other than cross-entropy: preferences and rewards."""

from dataclasses import dataclass
from typing import Literal, get_args

from toynn.errors import ConfigError
from toynn.options import check_fields, option, options_of, real, whole

Kind = Literal["dpo", "orpo", "kto"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class PreferenceOptions:
    """The preference loss and its parameters, by TRL's names.

    Raises ConfigError for values out of range.

    Attributes
    ----------
    loss
        "dpo" (arXiv:2305.18290) and "orpo" (arXiv:2403.07691) for pairs, chosen and rejected;
        "kto" (arXiv:2402.01306) for single completions, wanted or unwanted.
    beta
        The factor of differences in log probability; for ORPO, the weight of the odds term.
    label_smoothing
        For DPO: the probability that a pair is labelled the wrong way round, below 0.5.
    desirable_weight, undesirable_weight
        For KTO: the weights of wanted and unwanted completions.
    """

    loss: Kind = option(default="dpo")
    beta: float = option(default=0.1, read=real(0, above=True))
    label_smoothing: float = option(default=0.0, read=real(0, 0.5, below=True))
    desirable_weight: float = option(default=1.0, read=real(0, above=True))
    undesirable_weight: float = option(default=1.0, read=real(0, above=True))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.label_smoothing and self.loss != "dpo":
            raise ConfigError(f"label_smoothing: only dpo has it; the loss is {self.loss}")

    @property
    def paired(self) -> bool:
        """Whether sequences come in pairs, chosen and rejected."""
        return self.loss != "kto"


#: The parameters beside the loss.
PARAMETERS = tuple(name for name in options_of(PreferenceOptions) if name != "loss")


@dataclass(frozen=True)
class PolicyOptions:
    """How samples are learned from, by TRL's names.

    Raises ConfigError for values out of range.

    Attributes
    ----------
    loss_type
        What losses of tokens are divided by: "dapo" by the tokens of an update, "bnpo" by those of
        a batch; "grpo" takes the mean over the tokens of a sample, then over samples; "dr_grpo"
        divides by samples times ``max_completion_length``.
    beta
        The weight of the divergence from the model without adapters; 0: it is not computed.
    epsilon, epsilon_high
        The ratio is clipped to 1 - epsilon and 1 + epsilon_high (None: epsilon).
    delta
        The most that the ratio counts where the advantage is negative; None: no limit.
    importance_sampling_level
        Whether each "token" has its ratio, or the "sequence" has one (GSPO).
    importance_cap
        Weigh tokens by p_train / p_sample, at most this; 0: by 1.
    max_completion_length
        The most tokens of a sample, by which "dr_grpo" divides.
    temperature
        The temperature at which samples were drawn.
    """

    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = option(default="dapo")
    beta: float = option(default=0.0, read=real(0))
    epsilon: float = option(default=0.2, read=real(0, 1))
    epsilon_high: float | None = option(default=None, read=real(0))
    delta: float | None = option(default=None, read=real(1, above=True))
    importance_sampling_level: Literal["token", "sequence"] = option(default="token")
    importance_cap: float = option(default=0.0, read=real(0))
    max_completion_length: int = option(default=256, read=whole(1))
    temperature: float = option(default=1.0, read=real(0, above=True))

    def __post_init__(self) -> None:
        check_fields(self)
