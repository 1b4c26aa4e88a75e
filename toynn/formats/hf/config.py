"""Read config.json key by key; no unknown key that could change a number is ignored."""

from collections.abc import Collection, Mapping
from copy import copy
from pathlib import Path
from typing import Any, NoReturn

from toynn.errors import DataError
from toynn.formats import objects

CONFIG, WEIGHTS = objects.CONFIG, "model.safetensors"
MAX_WHOLE, MAX_REAL = 1 << 63, 1e38
#: Of a head of classes: its matrix, the key of the classes' names, and the key of Hugging Face's
#: problem_type: what the outputs of a head of sequences are.
CLASSES = "cls.output.weight"
LABELS, PROBLEM = "classifier.output_labels", "classifier.problem_type"
CLASSIFIES = "ForSequenceClassification"  # the end of the name of a model with such a head
_MOST = 1 << 20  # classes that a config.json may name

#: Keys of config.json that do not change what toynn computes.
IGNORED_KEYS = frozenset(
    (
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "_model_name_or_path",
        "_name_or_path",
        "architectures",
        "attention_bias",
        "attention_dropout",
        "attn_pdrop",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "initializer_range",
        "is_llama_config",
        "max_window_layers",
        "mlp_bias",
        "model_type",
        "n_ctx",
        "pad_token_id",
        "pretraining_tp",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "sliding_window",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    )
)


#: Keys next to text_config that also apply to the text part.
_SHARED = ("quantization_config", "tie_word_embeddings")


class Config:
    """The object in a config.json; it records which keys were read."""

    def __init__(self, folder: Path, values: Mapping[str, Any]) -> None:
        self._path, self._values = folder / CONFIG, values
        self._known = set(IGNORED_KEYS)

    def over(self, **values: Any) -> "Config":
        """Return a copy with other values; both share the record of keys that were read."""
        other = copy(self)
        other._values = {**self._values, **values}
        return other

    def of_text(self) -> tuple["Config", bool]:
        """Return the text part's configuration, and whether it is one part of several."""
        text = self._values.get("text_config")
        if not isinstance(text, dict):
            return self, False
        shared = {key: self._values[key] for key in _SHARED if key in self._values}
        other = copy(self)
        other._values = {**text, **shared}
        return other, True

    def refuse(self, what: str) -> NoReturn:
        """Raise DataError for the file."""
        raise DataError(f"{self._path}: {what}")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value as it is in the file."""
        self._known.add(key)
        return self._values.get(key, default)

    def number(self, key: str, value: object, *, real: bool, least: int = 1) -> float:
        """Check a key's value: a real number above 0, or an integer of at least ``least``."""
        kinds = (int, float) if real else (int,)
        if isinstance(value, kinds) and not isinstance(value, bool):
            if real and 0 < value < MAX_REAL:
                return float(value)
            if not real and least <= value < MAX_WHOLE:
                return value
        self.refuse(
            f"{key} must be a {'number > 0' if real else f'whole number >= {least}'}; got {value!r}"
        )

    def ignore(self, *keys: str) -> None:
        """Accept keys with any value."""
        self._known.update(keys)

    def whole(self, key: str, default: object = None, *, least: int = 1) -> int:
        """Return the value of a key that must be an integer of at least ``least``."""
        return int(self.number(key, self.get(key, default), real=False, least=least))

    def real(self, key: str, default: object = None) -> float:
        """Return the value of a key that must be a number above 0."""
        return self.number(key, self.get(key, default), real=True)

    def flag(self, key: str, default: bool) -> bool:
        """Return the value of a key that must be true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.refuse(f"{key} must be true or false; got {value!r}")
        return value

    def numbers(self, keys: Mapping[str, str], real: Collection[str]) -> dict[str, Any]:
        """Return the numbers that the file has, by GGUF's keys."""
        numbers = {}
        for key, hf_key in keys.items():
            value = self.get(hf_key)
            if value is not None:
                numbers[key] = self.number(hf_key, value, real=key in real)
        return numbers

    def expect(self, key: str, values: tuple[object, ...]) -> None:
        """Refuse a file whose key has none of these values; a missing key is fine."""
        value = self.get(key, values[0])
        if value not in values:
            self.refuse(f"{key} must be {values[0]!r}; got {value!r}")

    def refuse_others(self) -> None:
        """Refuse a file with a key that was not read and could change numbers."""
        for key, value in self._values.items():
            if key not in self._known and value not in (None, False, [], {}):
                if key == "quantization_config":
                    self.refuse_quantized(value)
                self.refuse(f"{key} = {value!r} is not known to toynn")

    def refuse_quantized(self, settings: object) -> NoReturn:
        """Refuse a folder whose weights are quantized in a way that toynn cannot read."""
        method = settings.get("quant_method") if isinstance(settings, Mapping) else None
        self.refuse(
            f"quantization_config: this folder is quantized ({method or settings!s:.80}): use the "
            "original model"
        )


def class_of(config: Config) -> str:
    """Return the name of a folder's class at Hugging Face, or ""."""
    classes = config.get("architectures")
    return str(classes[0]) if isinstance(classes, list) and classes else ""


def read_classes(config: Config, hyper: dict[str, Any]) -> None:
    """Add the names of a head's classes and their kind to ``hyper``.

    Raises DataError for classes that are not numbered 0, 1, ...
    """
    config.ignore("num_labels", "label2id", "sentence_transformers")
    labels = config.get("id2label")
    if labels:
        count = len(labels) if isinstance(labels, dict) else 0
        names = [labels.get(str(n)) for n in range(count if count < _MOST else 0)]
        if not names or not all(isinstance(name, str) for name in names):
            config.refuse(f"id2label must name classes 0, 1, ...; got {labels!r:.80}")
        hyper[LABELS] = names
    if isinstance(problem := config.get("problem_type"), str):
        hyper[PROBLEM] = problem


def keys_of_classes(hyper: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return config.json's keys for a head of ``count`` classes; 0: no head."""
    keys: dict[str, Any] = {}
    names = hyper.get(LABELS) or [f"LABEL_{n}" for n in range(count)]  # without, readers have two
    if names:
        keys["id2label"] = {str(n): name for n, name in enumerate(names)}
        keys["label2id"] = {name: n for n, name in enumerate(names)}
    if problem := hyper.get(PROBLEM):
        keys["problem_type"] = problem
    if problem and names and len(names) == 1:  # what sentence-transformers makes of the output
        shown = "linear.Identity" if problem == "regression" else "activation.Sigmoid"
        keys["sentence_transformers"] = {"activation_fn": f"torch.nn.modules.{shown}"}
    return keys
