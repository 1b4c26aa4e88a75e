"""Find the files of a folder, or of a repository on the hub, that are one split of a data set.

    data/train-00000-of-00002.parquet   the name before the number is the split
    main/test-00000-of-00001.parquet    a folder is a configuration
    default/train/0000.parquet          or a split
    chats_eval.jsonl                    a word of SPLITS in the name says which split it is
    chats.jsonl                         without such a word it is train

Files that are read one after the other share one path with a star: train-*-of-00002.parquet.
Source: huggingface.co/docs/hub/datasets-file-names-and-splits.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from toynn.data._containers import COMPRESSED, LINES, TABLES, kind_of, texts
from toynn.errors import DataError
from toynn.system.reading import readable
from toynn.system.series import SHARD, series

#: For each split, the words in names of files and folders that mean it.
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
TRAIN = "train"
PARQUET = ".parquet"
#: Suffixes of data files, best first: only files of the best one in a repository are read.
KINDS = tuple(dict.fromkeys((PARQUET, *LINES, *TABLES)))
#: Stems of JSON files that describe data.
ABOUT = ("dataset_infos", "dataset_info", "dataset_dict", "state", "metadata")
#: Folders of the default configuration.
USUAL = ("", "data", "default")
#: Stems of texts about the data.
NOTES = ("readme", "license", "licence")
LISTED = 20  # the most names in an error


class Split(NamedTuple):
    """The files of a split, their common path, and the names of the other splits."""

    files: list[str]
    path: str
    others: list[str]


def choose(
    what: str,
    names: Sequence[str],
    within: str = "",
    split: str | None = None,
    *,
    cached: bool = False,
) -> Split:
    """Return the files of a split from the file names of a repository.

    ``what`` begins an error. ``within`` is a file, or a folder to look in. The default ``split`` is
    train, or the only one. ``cached`` means that ``names`` may be incomplete: then neither a
    configuration nor a split is taken for the only one. Raises DataError if there is no such split,
    or if several fit.
    """
    within = within.rstrip("/")
    others = " in the cache (connect to a network for others)" if cached else ""
    if within in names:
        if split is not None:
            raise DataError(
                f"{what}: {within} is one file, which has no splits: leave :{split} out"
            )
        return Split([within], within, [])
    here = [each for each in names if not within or each.startswith(f"{within}/")]
    data = [each for each in here if _kind(each) and Path(each).stem not in ABOUT]
    if not data:
        have = ", ".join((here or list(names))[:LISTED]) or "no files"
        where = f" in {within}" if within else ""
        raise DataError(f"{what}: expected files ({', '.join(KINDS)}){where}{others}; got {have}")
    first = min((_kind(each) for each in data), key=KINDS.index)
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in data:
        if _kind(each) == first:
            folder, name = _sorted(each)
            groups[folder][name].append(each)
    usual = [each for each in (within, *USUAL) if each in groups]
    folder = usual[0] if usual else next(iter(groups))
    deeper = within.startswith(f"{folder}/")
    if not usual and (len(groups) > 1 or (cached and not deeper)):
        there = f"are {len(groups)} configurations" if len(groups) > 1 else "is one configuration"
        raise DataError(
            f"{what}: there {there}{others}: name one after a slash: "
            f"{', '.join(sorted(groups)[:LISTED])}"
        )
    splits = groups[folder]
    wanted = _canonical(split) if split is not None else TRAIN
    if split is None and len(splits) == 1:
        wanted = _sorted(f"{within}/")[1] if cached else next(iter(splits))
    if wanted not in splits:
        missing = f"there is no split {wanted}" if split is not None else "no split is called train"
        raise DataError(
            f"{what}: {missing}{others}: name one after a colon: "
            f"{', '.join(sorted(splits)[:LISTED])}"
        )
    files = sorted(splits.pop(wanted))
    return Split(files, _together(what, files, data), sorted(splits))


def part_of(folder: Path, name: str) -> Path | None:
    """Return the path of a part of the data in a folder, or None if it has no such part.

    ``name`` is train.jsonl, valid.jsonl or test.jsonl. The part may also be train.parquet,
    train.csv.gz, ..., or the shards of a split, in the folder or its data/. For train it may be
    other .parquet files too. Raises DataError if several fit, and if data are only in folders below
    (unless it is a folder of texts).
    """
    stem = name.removesuffix(".jsonl")
    wanted = _canonical(stem)
    for compression in ("", *COMPRESSED):
        for ending in (*LINES, *TABLES):
            for each in dict.fromkeys((stem, wanted)):
                if (path := folder / f"{each}{ending}{compression}").exists():
                    return path
    for inside in (folder, folder / "data"):
        names = _names(inside)
        shards = [each for each in names if SHARD.search(each)]
        files = [each for each in shards if _kind(each) and _sorted(each)[1] == wanted]
        if not files and wanted == TRAIN:
            files = [each for each in names if each.endswith(PARQUET) and _sorted(each)[1] == TRAIN]
        if files:
            return inside / _together(str(inside), sorted(files), names)
    if wanted != TRAIN:
        return None
    nested = {each.parent for each in folder.rglob(f"*{PARQUET}") if _shown(folder, each)}
    if nested and not any(x.stem.lower() not in NOTES for x in texts(folder)):
        listed = ", ".join(str(each) for each in sorted(nested)[:LISTED])
        raise DataError(f"{folder}: its data are in folders below it: name one: {listed}")
    return None


def files_of(path: Path) -> list[Path]:
    """Return the files that a path with a star means, in order; or the path alone.

    Raises DataError if a shard of a series is missing.
    """
    if "*" not in path.name or path.exists():
        return [path]
    named = re.compile(re.escape(path.name).replace(r"\*", ".*"), re.DOTALL)
    names = sorted(each for each in _names(path.parent) if named.fullmatch(each))
    _check_whole(str(path), names)
    return [path.parent / each for each in names] or [path]


def _together(what: str, files: Sequence[str], names: Sequence[str]) -> str:
    """Return one path for exactly these files of ``names``. Raises DataError if none exists."""
    _check_whole(what, files)
    if len(files) == 1:
        return files[0]
    shard = SHARD.search(files[0])
    if shard is not None and series(files[0], files) == files:
        return f"{files[0][: shard.start() + 1]}*-of-{shard[2]}{shard[3] and '-*'}{shard[4]}"
    folder, ending = PurePosixPath(files[0]).parent, "".join(PurePosixPath(files[0]).suffixes[-1:])
    beside = [
        each for each in names if each.endswith(ending) and PurePosixPath(each).parent == folder
    ]
    if sorted(beside) == list(files):
        return str(folder / f"*{ending}")
    raise DataError(
        f"{what}: expected one file, or the shards of one; got {len(files)}: name one: "
        f"{', '.join(files[:LISTED])}"
    )


def _check_whole(what: str, files: Sequence[str]) -> None:
    """Raise DataError if a shard is missing."""
    for each in files:
        if (shard := SHARD.search(each)) and len(present := series(each, files)) != int(shard[2]):
            raise DataError(
                f"{what}: expected {int(shard[2])} shards; got {len(present)}: "
                f"{', '.join(PurePosixPath(one).name for one in present[:LISTED])}"
            )


def _sorted(name: str) -> tuple[str, str]:
    """Return the folder of a file's configuration, and the file's split."""
    *folders, last = name.split("/")
    shard = SHARD.search(last)
    stem = last[: shard.start()] if shard else last.partition(".")[0]
    if shard and folders[-1:] == ["data"]:
        return "/".join(folders), _canonical(stem)
    for depth, part in reversed([*enumerate([*folders, stem])]):
        for word in re.split("[^a-z]+", part.lower()):
            if (split := _canonical(word)) in SPLITS:
                return "/".join(folders[:depth] + folders[depth + 1 :]), split
    return "/".join(folders), TRAIN


def _canonical(word: str) -> str:
    """Return the split that a word means; any other word is a split's name itself."""
    return next((split for split, words in SPLITS.items() if word in words), word)


def _kind(name: str) -> str:
    """Return the suffix of a data file; "" for any other file."""
    kind = kind_of(Path(name))
    return kind if kind in KINDS else ""


def _shown(folder: Path, path: Path) -> bool:
    """Return whether no part of a path below ``folder`` is hidden."""
    return not any(each.startswith(".") for each in path.relative_to(folder).parts)


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with readable(folder):
        return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
