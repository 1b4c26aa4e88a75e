"""Fetch models and data by their name on the Hugging Face hub.

    hf:OWNER/NAME[/FILE][@REVISION]                     a model
    hf:OWNER/NAME[/FILE or FOLDER][:SPLIT][@REVISION]   data

huggingface_hub downloads into its cache (HF_HOME), shows progress, continues an interrupted
download, and honours HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN. Without a network the cache is used.
Files are downloaded one after another in the caller's thread, so Ctrl-C ends a download at once.
``hub_name`` returns the hub's name of a folder.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from toynn.errors import ConfigError, ToynnError
from toynn.formats.objects import CONFIG, read_object
from toynn.system.series import series

PREFIX = "hf:"
T = TypeVar("T")
PATIENCE = 60  # seconds for the hub to say which files a repository has
EXAMPLE = "expected hf:OWNER/NAME or hf:OWNER/NAME/FILE, and perhaps @REVISION after it"
PART = r"[\w.-]+"
REPOSITORY = re.compile(f"{PART}/{PART}")
NAME = re.compile(rf"hf:({PART}/{PART})(?:/([^@:]+))?(?::({PART}))?(?:@([^@:]+))?")
#: Files of a folder in Hugging Face's format; consolidated.safetensors is a second copy.
FOLDER = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
COPIES = ("*/*", "consolidated*")
#: The same for GGUF repositories, where files in folders are not copies.
UNWANTED = ("*/*.json", "*/*.safetensors", "*/*.jinja", "*/tokenizer.model", "consolidated*")
#: Folders in the cache of transformers and huggingface_hub.
CACHED = re.compile(r"models--(.+)")
#: Files that may name a model, and their keys.
SAID = {CONFIG: "_name_or_path", "tokenizer_config.json": "name_or_path"}


class Name(NamedTuple):
    """A repository, a file or folder in it, a data split and a revision, as typed."""

    text: str
    repo: str
    file: str | None
    split: str | None
    revision: str | None


#: Chooses the files of a repository that a name means; returns them and their one path. The given
#: files are all of the repository, or only those in the cache (True).
Choose = Callable[[Name, Sequence[str], bool], tuple[Sequence[str], str]]


def named(text: str, *, data: bool = False) -> Name:
    """Parse a name on the hub; only ``data`` may have a split.

    Raises ConfigError for a malformed name.
    """
    match = NAME.fullmatch(text)
    if match is not None and not {".", ".."}.isdisjoint(re.split("[:/@]", text)):
        raise ConfigError(f"{text}: {EXAMPLE}; got a part that is . or ..")
    if match is None or (match[3] is not None and not data):
        split = "; name a split as in hf:OWNER/NAME:test" if data else ""
        raise ConfigError(f"{text}: {EXAMPLE}{split}")
    return Name(text, *match.groups())


def fetched(text: str) -> Path:
    """Fetch a model; return its path in the cache, a file or a folder.

    Raises ConfigError for a malformed name, if several files fit, and for a repository, revision or
    file that does not exist or needs permission. Without a network, raises it if the cache has no
    copy.
    """
    name = named(text)
    patterns = [name.file] if name.file else [*FOLDER, "*.gguf"]
    return _fetched(name, "model", _wanted, patterns, None if name.file else UNWANTED)


def fetched_data(text: str, choose: Choose) -> Path:
    """Fetch data; return their path in the cache. ``choose`` chooses the files.

    Raises ConfigError as ``fetched`` does, and what ``choose`` raises.
    """
    return _fetched(named(text, data=True), "dataset", choose, [])


def _fetched(
    name: Name, kind: str, choose: Choose, known: list[str], unknown: Sequence[str] | None = None
) -> Path:
    """Download the files that ``choose`` returns; without a network, find them in the cache.

    Without a network, all files that match ``known`` but not ``unknown`` must be in the cache.
    """
    hub = _hub(name.text)

    def snapshot(patterns: Sequence[str], local: bool, ignored: Sequence[str] | None) -> Path:
        """Return the folder in the cache with these files; unless ``local``, download them."""
        folder = hub.snapshot_download(
            name.repo,
            repo_type=kind,
            revision=name.revision,
            allow_patterns=list(patterns),
            ignore_patterns=ignored,
            local_files_only=local,
        )
        return Path(folder)

    with _refusals(name, kind):
        try:
            api = hub.HfApi()
            answer = _soon(lambda: api.repo_info(name.repo, repo_type=kind, revision=name.revision))
            files, local = sorted(each.rfilename for each in answer.siblings), False
        except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError):
            raise  # the hub has answered
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(
                f"{name.text}: {api.endpoint} does not answer as the hub does{_first_line(error)}: "
                "is HF_ENDPOINT right?"
            ) from error
        except Exception as error:  # HF_HUB_OFFLINE, or any error of the transport
            try:
                cached = snapshot(known, True, unknown)
            except hub.errors.LocalEntryNotFoundError as absent:
                raise absent from error
            files = sorted(each.relative_to(cached).as_posix() for each in cached.rglob("*.*"))
            local = True
        wanted, path = choose(name, files, local)
        if local:
            return snapshot(wanted, True, None) / path
        for file in wanted:  # in this thread, which Ctrl-C interrupts; then they are in the cache
            hub.hf_hub_download(name.repo, file, repo_type=kind, revision=answer.sha)
        return _soon(lambda: snapshot(wanted, False, None)) / path


def _soon(ask: Callable[[], T]) -> T:
    """Return what the hub answers. Raises TimeoutError if that takes more than PATIENCE seconds.

    The hub is asked in a daemon thread, which no one waits for after that, nor after Ctrl-C.
    """
    answers: SimpleQueue[T | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            answers.put(ask())
        except BaseException as error:  # raised below
            answers.put(error)

    Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=PATIENCE)
    except Empty:
        raise TimeoutError(f"no answer within {PATIENCE} seconds") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _hub(text: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(f"{text}: needs huggingface_hub: pip install huggingface_hub") from error
    return huggingface_hub


def _wanted(name: Name, files: Sequence[str], _: bool) -> tuple[Sequence[str], str]:
    """Choose the files of a model: the named file, the only .gguf, or a model's folder.

    Of a sharded file all shards are chosen. The path is the first file's, or "" for a folder.
    """
    if name.file is not None:
        if name.file not in files:
            ends = [each for each in files if Path(each).suffix == Path(name.file).suffix]
            have = f": it has {', '.join(ends[:20])}" if ends else ""
            raise ConfigError(f"{name.text}: {name.repo} has no file {name.file}{have}")
        shards = series(name.file, files)
        return shards, shards[0]
    folder = [each for each in files if _belongs(each)]
    if any(each.endswith(".safetensors") for each in folder) and "config.json" in folder:
        return folder, ""
    models = [series(each, files) for each in files if each.endswith(".gguf")]
    first = [shards[0] for k, shards in enumerate(models) if shards not in models[:k]]
    if len(first) == 1:
        return models[0], first[0]
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
    """Return whether a file belongs to a model's folder in Hugging Face's format."""
    return any(fnmatch(file, each) for each in FOLDER) and not any(fnmatch(file, x) for x in COPIES)


@contextmanager
def _refusals(name: Name, kind: str) -> Iterator[None]:
    """Turn errors of the hub, the network or the disk into ConfigError."""
    import logging

    from huggingface_hub import errors

    said, where = name.text, f"{name.repo} at revision {name.revision or 'main'}"
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)  # it warns of each of its tries
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
            f"{said}: the hub has no {kind} {name.repo}; or it is private: then `hf auth login`, "
            "or set HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{said}: {error}") from error
    except errors.LocalEntryNotFoundError as error:
        why = "" if isinstance(error.__cause__, errors.OfflineModeIsEnabled) else _first_line(error)
        raise ConfigError(
            f"{said}: the hub cannot be reached{why}, and the cache has no {where}: connect to a "
            "network, or name a path"
        ) from error
    except ToynnError:
        raise
    except Exception as error:  # a full disk, or the transport; the next try continues
        raise ConfigError(f"{said}: cannot download {where}{_first_line(error)}") from error
    finally:
        log.setLevel(before)


def _first_line(error: BaseException) -> str:
    """Return the reason of an error, or of its cause, for a message."""
    reason = str(error.__cause__ or error).strip().partition("\n")[0]
    return f" ({reason})" if reason else ""


def hub_name(folder: Path) -> tuple[str | None, str | None]:
    """Return the name by which transformers loads a folder, and its revision if known.

    In the hub's cache (models--ORG--NAME/snapshots/REVISION) the path has both. Elsewhere
    config.json or tokenizer_config.json may have a name. But a fine-tuned model often has its
    parent's, so it counts only if the folder has the same name. The default is the absolute path;
    for a file it is None.
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
