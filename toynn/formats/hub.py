"""Models and data by their name on the Hugging Face hub: ``hf:OWNER/NAME[/FILE][@REVISION]``.

huggingface_hub downloads them into its cache (HF_HOME), shows progress, goes on with a download
that was interrupted, and honours HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN. Without a network what
the cache has is taken. ``hub_name`` says by what name a folder is to be had.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from toynn.errors import ConfigError
from toynn.formats.hf.config import CONFIG
from toynn.formats.objects import read_object

__all__ = ["PREFIX", "fetched", "hub_name"]

PREFIX = "hf:"
EXAMPLE = "expected hf:OWNER/NAME, hf:OWNER/NAME/FILE, and perhaps @REVISION behind it"
PART = r"[\w.-]+"
REPOSITORY = re.compile(f"{PART}/{PART}")
NAME = re.compile(rf"hf:({PART}/{PART})(?:/([^@]+))?(?:@([^@]+))?")
#: What a folder in Hugging Face's format is made of; consolidated.safetensors is a second copy.
FOLDER = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
COPIES = ("*/*", "consolidated*")
#: The same, of which .gguf files in folders are no copies.
UNWANTED = ("*/*.json", "*/*.safetensors", "*/*.jinja", "*/tokenizer.model", "consolidated*")
SHARD = re.compile(r"-\d{5}-of-(\d{5})(?=\.\w+$)")
#: Where transformers and huggingface_hub put what they download.
CACHED = re.compile(r"models--(.+)")
#: Files that may name a model, and the keys that do.
SAID = {CONFIG: "_name_or_path", "tokenizer_config.json": "name_or_path"}


class Name(NamedTuple):
    """A repository, a file in it and a revision, as they were typed."""

    text: str
    repo: str
    file: str | None
    revision: str | None


def fetched(text: str) -> Path:
    """Return the path in the cache of what a name means: a file, or a folder of a model.

    Raises ConfigError for what is no such name, a repository, revision or file that is not there or
    not allowed, a choice between several files, and where there is no network nor a cached copy.
    """
    found = NAME.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text}: {EXAMPLE}")
    name = Name(text, *found.groups())
    hub = _hub(text)
    with _refusals(name):
        try:
            listed = hub.HfApi().list_repo_files(name.repo, revision=name.revision)
            files, local = sorted(listed), False
        except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError):
            raise  # the hub has answered
        except Exception as error:  # HF_HUB_OFFLINE, or whatever the transport raises
            files, local = _cached(hub, name, error), True
        wanted = _wanted(name, files)
        folder = _snapshot(hub, name, wanted, local)
    one = name.file is not None or wanted[0].endswith(".gguf")
    return folder / wanted[0] if one else folder


def _hub(text: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(f"{text}: needs huggingface_hub: pip install huggingface_hub") from error
    return huggingface_hub


def _snapshot(hub: Any, name: Name, patterns: list[str], local: bool) -> Path:
    """Return the folder of the cache that has these files, once they are there."""
    more = {"revision": name.revision, "allow_patterns": patterns, "local_files_only": local}
    return Path(hub.snapshot_download(name.repo, **more))


def _cached(hub: Any, name: Name, error: Exception) -> list[str]:
    """Return the files that the cache has, where the hub cannot be asked.

    Raises what huggingface_hub does where it has none, with the reason why.
    """
    patterns = [name.file] if name.file else [*FOLDER, "*.gguf"]
    more = {"allow_patterns": patterns, "ignore_patterns": None if name.file else list(UNWANTED)}
    try:
        folder = Path(
            hub.snapshot_download(name.repo, revision=name.revision, local_files_only=True, **more)
        )
    except hub.errors.LocalEntryNotFoundError as absent:
        raise absent from error
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.*"))


def _wanted(name: Name, files: list[str]) -> list[str]:
    """Return the files to download: the one that is named, a .gguf, or those of a model's folder.

    Of a file in shards all are.
    """
    if name.file is not None:
        if name.file not in files:
            ends = [each for each in files if Path(each).suffix == Path(name.file).suffix]
            have = f": it has {', '.join(ends[:20])}" if ends else ""
            raise ConfigError(f"{name.text}: {name.repo} has no file {name.file}{have}")
        return _series(name.file, files)
    folder = [each for each in files if _belongs(each)]
    if any(each.endswith(".safetensors") for each in folder) and "config.json" in folder:
        return folder
    first = [each for each in files if each.endswith(".gguf") and _series(each, files)[0] == each]
    if len(first) == 1:
        return _series(first[0], files)
    if first:
        listed = ", ".join(first)
        raise ConfigError(
            f"{name.text}: {name.repo} has {len(first)} models: name one, as in "
            f"hf:{name.repo}/{first[0]}: {listed}"
        )
    raise ConfigError(
        f"{name.text}: expected a .gguf file, or config.json with .safetensors; {name.repo} has "
        f"{', '.join(files[:20]) or 'no files'}"
    )


def _belongs(file: str) -> bool:
    """Whether a file is of a model's folder in Hugging Face's format."""
    return any(fnmatch(file, each) for each in FOLDER) and not any(fnmatch(file, x) for x in COPIES)


def _series(file: str, files: list[str]) -> list[str]:
    """Return the shards of a file, the first one first; or the file alone."""
    found = SHARD.search(file)
    if found is None:
        return [file]
    stem, end = file[: found.start()], f"-of-{found[1]}{file[found.end() :]}"
    return [each for k in range(1, int(found[1]) + 1) if (each := f"{stem}-{k:05}{end}") in files]


@contextmanager
def _refusals(name: Name) -> Iterator[None]:
    """Raise ConfigError for what the hub, the network or the disk refuses."""
    from huggingface_hub import errors

    said, where = name.text, f"{name.repo} at revision {name.revision or 'main'}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{said}: {name.repo} is gated: accept its terms on its page, then `hf auth login`, or "
            "set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(f"{said}: {name.repo} has no revision {name.revision}") from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{said}: there is no model {name.repo}; or it is private: then `hf auth login`, or "
            "set HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{said}: {error}") from error
    except errors.LocalEntryNotFoundError as error:
        why = "" if isinstance(error.__cause__, errors.OfflineModeIsEnabled) else _first_line(error)
        raise ConfigError(
            f"{said}: the hub cannot be reached{why}, and the cache has no {where}: connect to a "
            "network, or name a path"
        ) from error
    except ConfigError:
        raise
    except Exception as error:  # a full disk, or what the transport raises: the next try goes on
        raise ConfigError(f"{said}: cannot download {where}{_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return the reason of an error, or of its cause, for a message."""
    reason = str(error.__cause__ or error).strip().partition("\n")[0]
    return f" ({reason})" if reason else ""


def hub_name(folder: Path) -> tuple[str | None, str | None]:
    """Return by what name transformers loads a folder, and the revision, if that is known.

    In the hub's cache (models--ORG--NAME/snapshots/REVISION) the path says both. Else config.json
    or tokenizer_config.json may name it. A fine-tuned model's name its parent, so a name counts
    only where the folder is called so. Without a name it is the absolute path; of a file, None.
    """
    if not folder.is_dir():
        return None, None
    whole = folder.absolute()
    kept = CACHED.fullmatch(whole.parents[1].name) if len(whole.parents) > 1 else None
    if kept is not None and whole.parent.name == "snapshots":
        return kept[1].replace("--", "/", 1), whole.name
    for file, key in SAID.items():
        said = read_object(folder / file).get(key) if (folder / file).is_file() else None
        if not isinstance(said, str) or not REPOSITORY.fullmatch(said):
            continue
        if whole.name in (said.partition("/")[2], said.replace("/", "--"), said.replace("/", "_")):
            return said, None
    return str(whole), None
