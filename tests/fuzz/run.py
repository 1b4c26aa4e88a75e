"""One case: files written into a folder and read; what may come of it, and what may not."""

import resource
import traceback
import warnings
import zlib
from contextlib import contextmanager

import numpy as np
from mutations import mutated

from toynn.errors import ToynnError

#: What a reader may take beside what the process has: no file here is as large as a hundredth.
ROOM = 2 * 2**30


def case(reader, seed, number):
    """The files of one case; the same for the same numbers."""
    rng = np.random.default_rng([zlib.crc32(reader.name.encode()), seed, number])
    whole = reader.whole()
    return mutated(whole[int(rng.integers(len(whole)))], rng)


def read(reader, files, folder):
    """Return whether the files were refused. Any other error than ToynnError is a find."""
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader.read(folder)
        except ToynnError as error:
            assert str(error), "an error without a word"
            return True
    return False


@contextmanager
def little_room():
    """Let the process have little more memory: what allocates by a header's number fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def described(error):
    """The end of what a find raised."""
    return "".join(traceback.format_exception(error))[-3000:]
