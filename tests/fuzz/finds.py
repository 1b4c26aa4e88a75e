"""Cases that were once answered by something else than a ToynnError: finds/<reader>/<name>/."""

import hashlib
from pathlib import Path

FINDS = Path(__file__).parent / "finds"


def past(reader):
    """All past finds of a reader."""
    folders = sorted((FINDS / reader.name).glob("*/"))
    whole = {} if reader.apart else reader.whole()[0]
    return [whole | {p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders]


def keep(reader, files):
    """Keep what differs from the whole files; return where."""
    whole = {} if reader.apart else reader.whole()[0]
    changed = {name: content for name, content in files.items() if content != whole.get(name)}
    name = hashlib.sha256(b"".join(changed.values())).hexdigest()[:12]
    folder = FINDS / reader.name / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in changed.items():
        (folder / file).write_bytes(content)
    return folder
