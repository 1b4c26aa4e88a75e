"""Which files of a folder, or of a repository on the hub, are one split of a data set.

    data/train-00000-of-00002.parquet   the name before the number is the split
    main/test-00000-of-00001.parquet    a folder is a configuration
    default/train/0000.parquet          or a split
    chats_eval.jsonl                    a word of SPLITS in the name says which split it is
    chats.jsonl                         without such a word it is train

Several files that are read one after another have one path, with a star: train-*-of-00002.parquet.
Source: huggingface.co/docs/hub/datasets-file-names-and-splits.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from toynn.data._containers import LINES, PACKED, TABLES, kind_of, texts
from toynn.errors import DataError
from toynn.system.reading import readable
from toynn.system.series import SHARD, series

__all__ = ["SPLITS", "Split", "choose", "files_of", "part_of"]

#: Words in the names of files and folders, by the split that they mean.
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
TRAIN = "train"
PARQUET = ".parquet"
#: Endings of data: a repository is read by the first of these that it has.
KINDS = tuple(dict.fromkeys((PARQUET, *LINES, *TABLES)))
#: JSON that describes data.
ABOUT = ("dataset_infos", "dataset_info", "dataset_dict", "state", "metadata")
#: Folders of the configuration that is read where none is named.
USUAL = ("", "data", "default")
#: Names of texts that tell about data.
NOTES = ("readme", "license", "licence")
LISTED = 20  # names in an error


class Split(NamedTuple):
    """The files of a split, their common path, and the names of the other splits beside it."""

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
    """Return the files of a split among the names in a repository; ``what`` begins an error.

    ``within`` is a file, or a folder to look in. Without ``split`` it is train, or the only one.
    ``cached`` says that there may be other names: then neither a configuration nor a split is taken
    for being the only one. Raises DataError where there is no such split, or a choice.
    """
    within = within.rstrip("/")
    others = " in the cache (connect to a network for others)" if cached else ""
    if within in names:
        if split is not None:
            raise DataError(f"{what}: {within} is one file, without splits: leave :{split} out")
        return Split([within], within, [])
    here = [each for each in names if not within or each.startswith(f"{within}/")]
    data = [each for each in here if _kind(each) and Path(each).stem not in ABOUT]
    if not data:
        have = ", ".join((here or list(names))[:LISTED]) or "no files"
        where = f" in {within}" if within else ""
        raise DataError(
            f"{what}: expected files ({', '.join(KINDS)}){where}{others}; there are {have}"
        )
    first = min((_kind(each) for each in data), key=KINDS.index)
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in data:
        if _kind(each) == first:
            folder, own = _sorted(each)
            groups[folder][own].append(each)
    usual = [each for each in (within, *USUAL) if each in groups]
    folder = usual[0] if usual else next(iter(groups))
    deeper = within.startswith(f"{folder}/")
    if not usual and (len(groups) > 1 or (cached and not deeper)):
        there = f"are {len(groups)} configurations" if len(groups) > 1 else "is one configuration"
        raise DataError(
            f"{what}: there {there}{others}: name one behind a slash: "
            f"{', '.join(sorted(groups)[:LISTED])}"
        )
    splits = groups[folder]
    wanted = _canonical(split) if split is not None else TRAIN
    if split is None and len(splits) == 1:
        wanted = _sorted(f"{within}/")[1] if cached else next(iter(splits))
    if wanted not in splits:
        missing = f"there is no split {wanted}" if split is not None else "no split is called train"
        raise DataError(
            f"{what}: {missing}{others}: name one behind a colon: "
            f"{', '.join(sorted(splits)[:LISTED])}"
        )
    files = sorted(splits.pop(wanted))
    return Split(files, _together(what, files, data), sorted(splits))


def part_of(folder: Path, name: str) -> Path | None:
    """Return the path of a part of the data in a folder: train.jsonl, valid.jsonl, test.jsonl.

    It may also be train.parquet, train.csv.gz, ...; or the shards of a split, in the folder or in
    data/ in it; for train also other .parquet files. Raises DataError for a choice, and where all
    data are in folders; but a folder of texts may have .parquet files below.
    """
    stem = name.removesuffix(".jsonl")
    wanted = _canonical(stem)
    for packed in ("", *PACKED):
        for ending in (*LINES, *TABLES):
            for each in dict.fromkeys((stem, wanted)):
                if (found := folder / f"{each}{ending}{packed}").exists():
                    return found
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
    if nested and not any(_shown(folder, x) and x.stem.lower() not in NOTES for x in texts(folder)):
        listed = ", ".join(str(each) for each in sorted(nested)[:LISTED])
        raise DataError(f"{folder}: its data are in folders: name one: {listed}")
    return None


def files_of(path: Path) -> list[Path]:
    """Return the files of a path with a star in its name, in order; or the path alone.

    Raises DataError for a series of shards of which one is missing.
    """
    if "*" not in path.name or path.exists():
        return [path]
    named = re.compile(re.escape(path.name).replace(r"\*", ".*"), re.DOTALL)
    names = sorted(each for each in _names(path.parent) if named.fullmatch(each))
    _check_whole(str(path), names)
    return [path.parent / each for each in names] or [path]


def _together(what: str, files: Sequence[str], names: Sequence[str]) -> str:
    """Return one path for files among ``names``. Raises DataError if none is theirs alone."""
    _check_whole(what, files)
    if len(files) == 1:
        return files[0]
    found = SHARD.search(files[0])
    if found is not None and series(files[0], files) == files:
        return f"{files[0][: found.start() + 1]}*-of-{found[2]}{found[3] and '-*'}{found[4]}"
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
    """Raise DataError if one of several shards is missing."""
    for each in files:
        if (found := SHARD.search(each)) and len(there := series(each, files)) != int(found[2]):
            raise DataError(
                f"{what}: expected {int(found[2])} shards; got {len(there)}: "
                f"{', '.join(PurePosixPath(one).name for one in there[:LISTED])}"
            )


def _sorted(name: str) -> tuple[str, str]:
    """Return the folder of a file's configuration, and its split."""
    *folders, last = name.split("/")
    found = SHARD.search(last)
    stem = last[: found.start()] if found else last.partition(".")[0]
    if found and folders[-1:] == ["data"]:
        return "/".join(folders), _canonical(stem)
    for depth, part in reversed([*enumerate([*folders, stem])]):
        for word in re.split("[^a-z]+", part.lower()):
            if (split := _canonical(word)) in SPLITS:
                return "/".join(folders[:depth] + folders[depth + 1 :]), split
    return "/".join(folders), TRAIN


def _canonical(word: str) -> str:
    """Return the split that a word means; any other word is a split's own name."""
    return next((split for split, words in SPLITS.items() if word in words), word)


def _kind(name: str) -> str:
    """Return the ending of a file of data; "" for others."""
    kind = kind_of(Path(name))
    return kind if kind in KINDS else ""


def _shown(folder: Path, path: Path) -> bool:
    """Whether neither a file nor a folder that it is in is hidden, from ``folder`` on."""
    return not any(each.startswith(".") for each in path.relative_to(folder).parts)


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with readable(folder):
        return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
