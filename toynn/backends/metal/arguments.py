"""Arguments of the device's kernels: buffers and structs, made from signatures.

    struct RmsnormForward { uint N; uint C; float eps; uint accumulate;
                            enum { y, r, x, w, args, scratch }; };

A shader says ``[[buffer(RmsnormForward::x)]]``: the enumerators number the buffers of the entry.
They are its tensors in the order of the signature, then the struct itself, then scratch memory.

A struct holds, in this order: ``seed``, if that is one of the sizes, as 64 bits; the other sizes;
the options; for each tensor that may be missing, whether it is there; and whether to accumulate.
All but the seed take 4 bytes. Python packs what Metal's text declares, from the same list.
"""

import struct
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import toynn._kernels as kernels
from toynn._kernels.signature import Signature

__all__ = [
    "Member",
    "buffers",
    "declaration",
    "entries",
    "members",
    "offset",
    "pack",
    "struct_name",
]


class Member(NamedTuple):
    """One of a struct: its type in Metal, its name, and its letter in Python's ``struct``."""

    type: str
    name: str
    letter: str


@cache
def entries(op: str) -> Mapping[str, Signature]:
    """Return the signatures of an op's entries by name."""
    module = getattr(kernels, op, None)
    return {name: entry.signature for name, entry in getattr(module, "entries", {}).items()}


def members(signature: Signature) -> list[Member]:
    """Return what the struct of an entry holds, in order."""
    sizes = sorted(signature.sizes, key=lambda name: name != "seed")
    return [
        *(
            Member("ulong" if name == "seed" else "uint", name, "QI"[name != "seed"])
            for name in sizes
        ),
        *(Member("float", name, "f") for name in signature.options),
        *(
            Member("uint", f"has_{name}", "I")
            for name in signature.tensors
            if name in signature.nullable
        ),
        Member("uint", "accumulate", "I"),
    ]


def buffers(signature: Signature) -> list[str]:
    """Return the names of an entry's buffers as shaders say them, in order: do_ for do."""
    tensors = ("do_" if name == "do" else name for name in signature.tensors)
    return [*tensors, "args", "scratch"]


def struct_name(op: str, entry: str) -> str:
    """Return the name of an entry's struct: ``RmsnormForward``."""
    return "".join(part.capitalize() for part in f"{op}_{entry}".split("_"))


def declaration(op: str, entry: str) -> str:
    """Return the struct of an entry in Metal's language, with the numbers of its buffers."""
    signature = entries(op)[entry]
    inner = " ".join(f"{m.type} {m.name};" for m in members(signature))
    numbers = ", ".join(buffers(signature))
    return f"struct {struct_name(op, entry)} {{ {inner} enum {{ {numbers} }}; }};\n"


def pack(signature: Signature, values: Mapping[str, float]) -> bytes:
    """Return the bytes of a struct from its members' values by name.

    Raises OverflowError for a size of 2^32 and more.
    """
    parts = members(signature)
    try:
        data = struct.pack(
            "<" + "".join(m.letter for m in parts),
            *(values[m.name] if m.letter == "f" else int(values[m.name]) for m in parts),
        )
    except struct.error as error:
        raise OverflowError(f"sizes of 2^32 and more: {dict(values)}") from error
    return data + bytes(-len(data) % 8)


def offset(signature: Signature, name: str) -> int:
    """Return at which byte of the struct a member is stored."""
    parts = members(signature)
    before = parts[: [m.name for m in parts].index(name)]
    return struct.calcsize("<" + "".join(m.letter for m in before))
