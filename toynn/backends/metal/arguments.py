"""Arguments of the device's kernels: buffers and structs, made from signatures.

    struct RmsnormForward { uint N; uint C; float eps; uint accumulate;
                            enum { y, r, x, w, args, scratch }; };
    #define RMSNORM_FORWARD device float* y [[buffer(RmsnormForward::y)]], ..., \
                            constant RmsnormForward& args [[buffer(RmsnormForward::args)]]

A shader begins with ``kernel void rmsnorm_forward(RMSNORM_FORWARD, ...)``. So its parameters are
the entry's tensors, by their names in the signature, then ``args``, then scratch memory if it has
any. The enumerators number them in this order.

A struct holds, in this order:

- ``seed`` in 64 bits, if it is one of the sizes;
- the other sizes, then the options;
- ``has_X`` for each tensor X that may be missing;
- ``accumulate``.

All but the seed take 4 bytes. The shader's declaration and the bytes that Python packs are made
from the same list.
"""

import struct
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import toynn._kernels as kernels
from toynn._kernels.base.signature import Signature
from toynn.backends.metal.grids import SCRATCH

#: Types of elements in shaders. Weights, whose type is a size, are bytes.
_TYPES = {"f32": "float", "i32": "int", "u8": "uchar", "u16": "ushort"}


class Member(NamedTuple):
    """A member of a struct: its Metal type, its name, and its letter in Python's ``struct``."""

    type: str
    name: str
    letter: str


@cache
def entries(op: str) -> Mapping[str, Signature]:
    """Return the signatures of an op's entries by name."""
    module = getattr(kernels, op, None)
    return {name: entry.signature for name, entry in getattr(module, "entries", {}).items()}


def members(signature: Signature) -> list[Member]:
    """Return the members of an entry's struct, in order."""
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


def buffers(op: str, entry: str) -> dict[str, str]:
    """Return the types of an entry's buffers in shaders, by name, in order.

    ``do`` is called ``do_``.
    """
    tensors = {
        "do_" if spec.name == "do" else spec.name: (
            f"device {'' if spec.written else 'const '}{_TYPES.get(spec.kind, 'uchar')}*"
        )
        for spec in entries(op)[entry].specs
    }
    scratch = {"scratch": "device float*"} if f"{op}.{entry}" in SCRATCH else {}
    return {**tensors, "args": f"constant {struct_name(op, entry)}&", **scratch}


def struct_name(op: str, entry: str) -> str:
    """Return the name of an entry's struct: ``RmsnormForward``."""
    return "".join(part.capitalize() for part in f"{op}_{entry}".split("_"))


def declaration(op: str, entry: str) -> str:
    """Return the declaration of an entry's struct for shaders, and of its kernels' parameters."""
    struct, types = struct_name(op, entry), buffers(op, entry)
    inner = " ".join(f"{m.type} {m.name};" for m in members(entries(op)[entry]))
    parameters = (f"{type_} {name} [[buffer({struct}::{name})]]" for name, type_ in types.items())
    return (
        f"struct {struct} {{ {inner} enum {{ {', '.join(types)} }}; }};\n"
        f"#define {op.upper()}_{entry.upper()} {', '.join(parameters)}\n"
    )


def pack(signature: Signature, values: Mapping[str, float]) -> bytes:
    """Return the bytes of a struct, given its members' values by name.

    Raises OverflowError for a size of 2^32 or more.
    """
    parts = members(signature)
    try:
        data = struct.pack(
            "<" + "".join(m.letter for m in parts),
            *(values[m.name] if m.letter == "f" else int(values[m.name]) for m in parts),
        )
    except struct.error as error:
        raise OverflowError(f"needs sizes below 2^32; got {dict(values)}") from error
    return data + bytes(-len(data) % 8)


def offset(signature: Signature, name: str) -> int:
    """Return the byte offset of a member in the struct."""
    parts = members(signature)
    before = parts[: [m.name for m in parts].index(name)]
    return struct.calcsize("<" + "".join(m.letter for m in before))
