"""Encoders: models of texts whose tokens see both sides, and the heads on top of them.

    sequence:  logits = W_out f(W_cls x + b) + b_out          x: the pooled row of a text
    tokens:    logits = W_out x + b_out                       x: every row

The first row (CLS) is pooled, or the mean of a text's rows where the configuration says so. f is
tanh (BERT), relu (DistilBERT), or a norm of GELU (ModernBERT, which has it before a head of tokens,
too). The head's modules are llama.cpp's: cls, cls.norm, cls.output. Source: Devlin et al. 2018,
arXiv:1810.04805, sections 3 and 4.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from toynn.errors import ConfigError
from toynn.formats.hf.config import (
    CLASSIFIES,
    LABELS,
    PROBLEM,
    Config,
    class_of,
    keys_of_classes,
    read_classes,
)
from toynn.graph.tape import Tensor
from toynn.models.checks import check_positive, check_sizes
from toynn.models.hyper import Hyper, refuse
from toynn.models.keys import LAYER_EPS
from toynn.models.sequence import SequenceModel
from toynn.models.tables import Floats, Row, matrix
from toynn.nn import Layers
from toynn.options import RecipeOptions

__all__ = [
    "HEADS",
    "LABELS",
    "PROBLEM",
    "STD",
    "TYPES",
    "Encoder",
    "EncoderConfig",
    "head_rows",
]


HEADS = ("", "sequence", "tokens")
#: Keys: norms' epsilon, the number of token types.
TYPES = "tokenizer.ggml.token_type_count"
STD = 0.02
#: Keys of config.json that act in training only, or say what the weights say.
_UNUSED = (
    *("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout", "dropout"),
    *("qa_dropout", "seq_classif_dropout", "gradient_checkpointing"),
    *("finetuning_task", "output_past", "directionality", "layer_norm_eps"),
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_type"),
    *("pooler_size_per_head", "sinusoidal_pos_embds", "tie_weights_"),
)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape of an encoder. Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    norm_eps
        Epsilon that norms add to the variance.
    types
        Rows of the table of token types; 0: none.
    head, labels
        "" (none), "sequence" or "tokens"; the number of its outputs.
    pooler
        Whether a head of sequences has its first matrix, cls.
    """

    vocab: int
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    context: int
    norm_eps: float = 1e-12
    types: int = 2
    head: str = ""
    labels: int = 0
    pooler: bool = False
    arch: str = "bert"

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "d_model", "n_heads", "d_ff", "n_layers", "context")
        check_sizes(self, "types", "labels", least=0)
        check_positive(self, "norm_eps")
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"{type(self).__name__}: n_heads must divide d_model; got {self.n_heads} and "
                f"{self.d_model}"
            )
        if self.head not in HEADS or bool(self.head) != bool(self.labels):
            raise ConfigError(
                f"{type(self).__name__}: head must be one of {', '.join(map(repr, HEADS))}, with "
                f"labels of its own; got {self.head!r} with {self.labels} labels"
            )

    @property
    def n_kv_heads(self) -> int:
        """Heads of k and v: as many as of q."""
        return self.n_heads

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads


def head_rows(dense: str, out: str, **more: Any) -> tuple[Row, ...]:
    """Return the rows of a head, by the names of its matrices at Hugging Face."""
    return (
        matrix("cls", "C C", dense, std=STD, when="pooler", **({"bias": True} | more)),
        matrix("cls.output", "K C", out, std=STD, when="K", bias=True),
    )


class Encoder(SequenceModel[EncoderConfig]):
    """Base of the architectures."""

    config_type: ClassVar[type[Any]] = EncoderConfig
    encodes = True
    #: Beginning of Hugging Face's classes: "Bert" of BertModel.
    title = ""
    #: The name of the model within a model with a head, which a folder without a head leaves out.
    prefix = ""

    @abstractmethod
    def sized(self, hyper: Hyper) -> dict[str, Any]:
        """Return the fields of the configuration beside the common ones."""

    def read(self, hyper: Hyper) -> EncoderConfig:
        """Return a file's configuration."""
        tensors = hyper.tensors
        if hyper.flag("attention.causal", False):
            refuse(hyper.file, f"{hyper.prefix}attention.causal must be false; got true")
        labels = hyper.rows("cls.output.weight") if "cls.output.weight" in tensors else 0
        head = hyper.word("head", "sequence" if labels else "") if labels else ""
        types = tensors["token_types.weight"].shape[0] if "token_types.weight" in tensors else 0
        hyper.count(TYPES, types)
        hyper.known(LABELS, PROBLEM, "position_offset", "head", "pooling_type")
        cfg: EncoderConfig = self.config_type(
            **hyper.sizes(),
            norm_eps=hyper.real(LAYER_EPS),
            arch=self.architecture,
            types=types,
            head=head,
            labels=labels,
            pooler="cls.weight" in tensors,
            **self.sized(hyper),
        )
        return cfg

    def write(self, cfg: EncoderConfig) -> dict[str, Any]:
        """Return the hyper-parameters of a file."""
        return {
            "context_length": cfg.context,
            "embedding_length": cfg.d_model,
            "feed_forward_length": cfg.d_ff,
            "block_count": cfg.n_layers,
            "attention.head_count": cfg.n_heads,
            "attention.causal": False,
            LAYER_EPS: float(cfg.norm_eps),
            TYPES: max(cfg.types, 1),
        }

    def check_gguf(self, cfg: EncoderConfig) -> None:
        """Refuse a head of tokens. Raises ConfigError."""
        if cfg.head == "tokens":
            raise ConfigError("export: llama.cpp has no head of token classes: write a folder")

    def complete(self, config: Config, hyper: dict[str, Any]) -> dict[str, Floats]:
        """Read the head's kind, and the names of its classes."""
        for key in _UNUSED:
            config.get(key)
        read_classes(config, hyper)
        named = class_of(config)
        ends = {CLASSIFIES: "sequence", "ForTokenClassification": "tokens"}
        hyper["head"] = next((kind for end, kind in ends.items() if named.endswith(end)), "")
        return {}

    def folder(self, hyper: Mapping[str, Any], tensors: Mapping[str, Floats]) -> dict[str, Any]:
        """Return config.json's keys for the head."""
        end = {"sequence": CLASSIFIES, "tokens": "ForTokenClassification"}
        kind = end.get(hyper.get("head", ""), "Model")
        keys: dict[str, Any] = {"architectures": [f"{self.title}{kind}"], "pad_token_id": 0}
        return keys | keys_of_classes(hyper, len(tensors.get("cls.output.bias", ())))

    # -- Forward -------------------------------------------------------------------------------

    def last(self, layers: Layers, cfg: EncoderConfig, x: Tensor) -> Tensor:
        """Return x: the last block ends with its norm."""
        return x

    def head(self, cfg: EncoderConfig, opts: RecipeOptions) -> str:
        """Return the last matrix of the head."""
        return "cls.output"

    def outputs(self, layers: Layers, cfg: EncoderConfig, x: Tensor) -> Tensor:
        """Record the head's logits (N, labels) of x (N, C): pooled rows, or all rows."""
        if cfg.head == "sequence" and cfg.pooler:
            x = self.pooled(layers, cfg, x)
        return layers.linear(x, "cls.output")

    def pooled(self, layers: Layers, cfg: EncoderConfig, x: Tensor) -> Tensor:
        """Record f(W_cls x + b)."""
        return layers.softcap(layers.linear(x, "cls"), 1.0)  # tanh

    def pooling(self, cfg: EncoderConfig) -> str:
        """Return what a head of sequences reads: "cls" or "mean"."""
        return "cls"
