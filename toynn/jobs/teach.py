"""Write what a teacher says of data to a file: ``toynn teach``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from toynn.data import taught
from toynn.data.digest import digest
from toynn.data.jsonl import Dataset
from toynn.errors import ConfigError, DataError
from toynn.formats import disk
from toynn.formats.files import Writer, finish, unwritable
from toynn.jobs.lora import LoRAJob
from toynn.jobs.teacher import opened
from toynn.system.reading import open_file


def teach(
    job: LoRAJob, out: Path, k: int, temperature: float, tell: Callable[[int, int], object]
) -> dict[str, Any]:
    """Write a file of ``job``'s data by its model; ``tell`` gets tokens done, and all of them.

    Until it is complete it is called ``out``.partial; the next call continues one that was begun.
    Return the facts in its header. Raises ConfigError for several sources of data, DataError if an
    unfinished file is of another model, other data or other options.
    """
    job.fetch()
    job.resolve()
    with job.files:
        job.read()
    if not isinstance(job.data, Dataset):
        raise ConfigError("--data: expected one source, which one file belongs to; got several")
    options, train, vocab = job.recipe_options(), job.data.train, job.tokenizer.vocab_size
    seq, k = job.t_seq, min(k, vocab)
    student = replace(options, t_seq=seq)
    teacher = opened(job.options.model, job.tokenizer, student, k, temperature)
    records = int(taught.learned(train).sum())
    facts: dict[str, Any] = {"model": digest(job.options.model)}
    facts |= {"data": taught.data_digest(train)}
    facts |= {"tokens": taught.tokens_digest(job.tokenizer.tokens), "temperature": temperature}
    facts |= {"k": k, "vocab": vocab, "records": records, "seq": seq, "batch": options.t_batch}
    kind, head = taught.record(k, vocab), taught.header(facts)
    partial = out.with_name(f"{out.name}.partial")
    begun = 0
    if partial.exists():
        with open_file(partial) as before:
            if before.read(len(head)) != head:
                raise DataError(
                    f"{partial}: it was begun with another model, other data or other options: "
                    "delete it, or name another --out"
                )
            begun = (before.seek(0, 2) - len(head)) // kind.itemsize
    try:
        with cast(Writer, open(partial, "r+b" if begun else "wb")) as file:
            file.write(head)
            done = 0
            for batch in taught.in_order(train, options.t_batch, seq):
                if batch.rows and done + batch.rows > begun:
                    file.seek(len(head) + done * kind.itemsize)
                    file.write(_records(teacher(batch), kind))
                    file.flush()
                done += batch.rows
                tell(done, records)
            finish(file)
        disk.rename(partial, out)
        disk.sync_folder(out.parent)
    except OSError as failure:
        raise unwritable(out, f"{records} records", out.parent, failure, DataError) from failure
    return facts


def _records(said: Any, kind: Any) -> bytes:
    rows = np.empty(len(said.ids), kind)
    rows["ids"], rows["log_p"], rows["log_rest"] = said[:3]
    return rows.tobytes()
