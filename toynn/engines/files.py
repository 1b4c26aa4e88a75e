"""Read and write models: GGUF files and Hugging Face folders.

Nothing in a file is silently ignored: a tensor or hyper-parameter that the model does not know is
an error that names it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from toynn.errors import ConfigError, DataError, GGUFError
from toynn.formats import gguf, hf, mixes
from toynn.formats.foreign import foreign
from toynn.formats.gguf import stored_as
from toynn.formats.hf.config import CLASSES
from toynn.formats.hf.name_mapping import module_of
from toynn.formats.outtypes import MIXES, OUTTYPES, check_kind
from toynn.formats.tokenizer import ByteTokenizer, Given, Tokenizer, TokenType
from toynn.formats.tokenizer.folder import FolderKeys
from toynn.formats.tokenizer.vocab import PREFIX
from toynn.models import (
    ARCHITECTURES,
    ENCODERS,
    HEAD,
    TABLE,
    Hyper,
    SequenceModel,
    Source,
    architecture,
    hyper,
    refuse,
)
from toynn.options import RecipeOptions

Carried = Mapping[str, Any]  # metadata of a file that is not the model's
StrPath = str | PathLike[str]

ENCODES = (
    "{!r} is an encoder, which writes no text: `toynn train classify` trains it; `toynn predict` "
    "and `toynn embed` use it"
)
#: Keys of a file that describe that file and not the model.
_OWN_KEYS = tuple(
    f"general.{key}"
    for key in ("architecture", "alignment", "file_type", "quantization_version", "type")
)


def passed_on(file: Source) -> dict[str, tuple[Any, str]]:
    """Return the metadata that an export keeps: the tokenizer, name, author and licence."""
    return {
        key: typed
        for key, typed in gguf.typed_metadata(file.metadata, file.types).items()
        if key.startswith(("tokenizer.", "general.")) and key not in _OWN_KEYS
    }


def tokenizer_of(path: StrPath, vocab: int) -> dict[str, tuple[Any, str]]:
    """Return the tokenizer of a GGUF file or a folder; rows after its last token get names.

    Raises DataError for a folder's tokenizer of a kind that GGUF has no name for, and the file's
    error for more tokens than ``vocab``.
    """
    if Path(path).is_dir():
        return FolderKeys(Path(path), vocab).typed()
    with gguf.open(path, check=False) as file:
        texts = file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(texts, gguf.Strings) and len(texts) > vocab:
            refuse(file, f"it has {len(texts)} tokens; the model has {vocab}")
        keys = {k: v for k, v in passed_on(file).items() if k.startswith("tokenizer.")}
    if not isinstance(texts, gguf.Strings):
        return keys
    # Rows without a token get names and the type UNUSED, as in llama.cpp's converter.
    rows = range(len(texts), vocab)
    added: dict[str, list[Any]] = {
        "tokens": [f"[PAD{id}]" for id in rows],
        "token_type": [int(TokenType.UNUSED)] * len(rows),
        "scores": [0.0] * len(rows),
    }
    for key, (values, type) in keys.items() if rows else ():
        if more := added.get(key.removeprefix(PREFIX)):
            keys[key] = [*values[: len(texts)], *more], type
    return keys


def check_model(file: Source, known: Collection[str] | None = None, reader: str = "") -> None:
    """Raise the error of the file's format unless it is a model that toynn has.

    With ``known``, unless it is one of these architectures, which the ``reader`` takes.
    """
    if not file.tensors:
        refuse(file, "it has a vocabulary and no weights: a tokenizer (--tokenizer), not a model")
    names = ARCHITECTURES if known is None else known
    if file.architecture not in names:
        whose = "toynn has" if len(names) >= len(ARCHITECTURES) else f"{reader} reads"
        encodes = ENCODES.format(file.architecture) if file.architecture in ENCODERS else ""
        named = f"its architecture is {file.architecture!r}; {whose} {', '.join(names)}"
        refuse(file, encodes or foreign([file.architecture]) or named)


def config_of(
    file: Source, known: Collection[str] | None = None, reader: str = ""
) -> tuple[Any, dict[str, Any]]:
    """Return the configuration of a file's model, and the options that it requires.

    ``known`` and ``reader`` are as in ``check_model``, whose error is raised, too.
    """
    check_model(file, known, reader)
    keys = Hyper(file)
    try:
        model = architecture(file.architecture)
        cfg, options = model.read(keys), model.options(keys)
    except ConfigError as error:
        refuse(file, str(error))
    keys.refuse_others()
    return cfg, options


def classes_of(file: Source) -> int:
    """Return the number of classes of a decoder's head; 0: it has none."""
    is_decoder = CLASSES in file.tensors and file.architecture in ARCHITECTURES
    return next(iter(file.tensors[CLASSES].shape), 0) if is_decoder else 0


def check_tensors(file: Source, model: SequenceModel[Any], cfg: Any, opts: RecipeOptions) -> None:
    """Raise the file's error unless it has exactly the tensors of a model."""
    beside = {name: array.shape for name, array in model.beside(cfg).items()}
    hyper.check_tensors(file, model.shapes(cfg, opts) | beside)


def metadata_of(
    model: SequenceModel[Any], cfg: Any, outtype: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata of a model's GGUF file; ``more``: its tokenizer, if any, and names.

    Raises ConfigError for a model that GGUF cannot express.
    """
    vocab = cfg.vocab
    model, cfg = model.filed(cfg)
    model.check_gguf(cfg)
    name = model.architecture
    return {
        "general.architecture": name,
        "general.type": "model",
        "general.file_type": OUTTYPES[outtype],
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "no_vocab",
        **more,
        f"{name}.vocab_size": vocab,
        **{
            key if key.startswith("tokenizer.") else f"{name}.{key}": value
            for key, value in model.write(cfg).items()
        },
    }


def write_gguf(path: StrPath, engine: Any, outtype: str, *, overwrite: bool) -> None:
    """Write a SequenceEngine's model; ``outtype`` is the type of its matrices, or a mix.

    Raises ConfigError for an unknown ``outtype``, and for a mix without llama-cpp-python.
    """
    check_kind(outtype, "export_gguf")
    if outtype in MIXES:
        with mixes.quantized(
            Path(path),
            outtype,
            lambda whole: write_gguf(whole, engine, "f32", overwrite=False),
            overwrite=overwrite,
            who="export_gguf",
            instead='export_gguf("whole.gguf", outtype="f32")',
        ):
            return
    model, cfg = engine.model, engine.config
    metadata = metadata_of(model, cfg, outtype, engine._carried)
    name = metadata["general.architecture"]
    metadata |= {f"{name}.{key}": value for key, value in engine.told().items()}
    weights = model.exported(cfg, engine.weights()) | model.beside(cfg)
    if model.needs_head:
        weights.setdefault(HEAD, weights[TABLE])
    tensors = {
        name: (values, stored_as(name, values.shape, outtype)) for name, values in weights.items()
    }
    gguf.write(path, metadata, tensors, overwrite=overwrite)


def write_hf(
    path: StrPath,
    engine: Any,
    tokenizer: StrPath | None,
    write: Callable[..., None] = hf.write,
) -> str:
    """Write a model as a new Hugging Face folder; return why it has no tokenizer, or "".

    ``engine`` is a SequenceEngine; ``tokenizer``, a path, replaces its own; ``write`` takes the
    arguments of ``hf.write``. Raises ConfigError for
    tensors that config.json cannot describe, and what reading a tokenizer raises.
    """
    model, cfg = engine.model, engine.config
    beside = model.beside(cfg)
    if unsaid := {name for name in beside if module_of(name) not in model.config_says}:
        raise ConfigError(f"export_hf: config.json has no place for {', '.join(sorted(unsaid))}")
    keys = model.write(cfg) | {"vocab_size": cfg.vocab} | engine.told(folder=True)
    files, named, why = tokenizer_files(engine, tokenizer)
    tensors = model.exported(cfg, engine.whole_weights())
    files |= engine.files_beside()
    write(path, model.architecture, keys, tensors, beside, files=files, named=named)
    return why


def tokenizer_files(
    engine: Any, named: StrPath | None
) -> tuple[dict[str, bytes], dict[str, int | None], str]:
    """Return a tokenizer's files by name and its BOS and EOS ids; or why there is none."""
    carried, rows = engine._carried, engine.config.vocab
    try:
        if named is not None and Path(named).is_dir():
            tokenizer = Tokenizer.of(named, rows)
        elif named is not None:
            tokenizer = Tokenizer.from_gguf(Given(Path(named), tokenizer_of(named, rows)))
        elif f"{PREFIX}tokens" in carried:
            tokenizer = Tokenizer.from_gguf(Given(Path("the model"), carried))
        elif rows == ByteTokenizer().vocab_size:
            tokenizer = ByteTokenizer()
        else:
            return {}, {}, "the model has none"
        ids = {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eos}
        return tokenizer.hf_files(), ids, ""
    except (DataError, GGUFError, ConfigError) as error:
        if named is not None:
            raise
        return {}, {}, str(error)


def check_options(file: Source, opts: RecipeOptions, required: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the options fit a mapped file, which has ``required`` ones."""
    for name in ("untied", "qkv_bias"):
        if getattr(opts, name) and not required.get(name, False):
            raise ConfigError(f"{name}: expected False, as in {file.path}; got True")
    if opts.weight_dtype != "f32":
        raise ConfigError(
            "weight_dtype: expected f32, which here means the file's own type; got "
            f"{opts.weight_dtype!r}, but frozen weights are not rounded again"
        )


def check_agrees(file: Source, cfg: Any, stored: Any) -> None:
    """Raise ConfigError unless a configuration equals that ``stored`` in a file."""
    if type(cfg) is not type(stored):
        raise ConfigError(
            f"cfg: expected a {type(stored).__name__}, as {file.path} is {file.architecture}; got "
            f"{cfg!r}"
        )
    names = [field.name for field in fields(stored) if field.name not in ("init", "head_dim")]
    names += ["d_head"] if hasattr(stored, "d_head") else []
    pairs = [(name, getattr(stored, name), getattr(cfg, name)) for name in names]
    differing = [f"{name}: expected {a!r}; got {b!r}" for name, a, b in pairs if not _alike(a, b)]
    if differing:
        raise ConfigError(f"cfg differs from {file.path}: {'; '.join(differing)}")


def _alike(a: Any, b: Any) -> bool:
    """Return whether two values are equal; numbers are compared as float32, as in a file."""
    if isinstance(a, str):
        return bool(a == b)
    return np.array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


def active_parameters(file: Source) -> int:
    """Return the number of parameters that a token uses; of the experts, only the chosen ones.

    Raises GGUFError for a file that is not a model toynn knows.
    """
    cfg, options = config_of(file)
    return ARCHITECTURES[file.architecture].active(cfg, RecipeOptions(**options))


def expert_bytes(file: Source, tokens: int) -> tuple[int, int]:
    """Return the bytes of all experts in a file, and of those that ``tokens`` tokens use.

    The second is an expected value: each token chooses K of E experts evenly and independently, so
    it leaves an expert out with probability 1 - K/E. Both are 0 without experts. Raises GGUFError
    for a file that is not a model toynn knows.
    """
    if file.architecture in ENCODERS:
        return 0, 0
    cfg, _ = config_of(file)
    left_out = (1 - ARCHITECTURES[file.architecture].used(cfg)) ** tokens
    stacks = (info for info in file.tensors.values() if info.name.endswith("_exps.weight"))
    nbytes = sum(info.nbytes for info in stacks)
    return nbytes, round(nbytes * (1 - left_out))
