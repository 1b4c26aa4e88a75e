"""Whole files made bad: cut, flipped, with huge numbers, with parts of themselves elsewhere."""

import re

NUMBERS = [0, 1, 2, 7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
TEXTS = [b"-1", b"1e999", b"NaN", b"null", b"{}", b"[]", b'"', b"[" * 2000, b"\xff", b"\\ud800"]
DIGITS = re.compile(rb"-?\d+(?:\.\d+)?")
NEAR = 3000  # bytes in front of a file, where its headers are


def mutated(files, rng):
    """Return files of which one has a few damages."""
    name = str(rng.choice(list(files)))
    content = bytearray(files[name])
    for _ in range(int(rng.integers(1, 4))):
        content = KINDS[int(rng.integers(len(KINDS)))](content, rng)
    return files | {name: bytes(content)}


def _place(content, rng):
    """A place in the file: in the front of it, three times of four."""
    end = min(len(content), NEAR) if rng.random() < 0.75 else len(content)
    return int(rng.integers(end + 1))


def cut(content, rng):
    return content[: _place(content, rng)]


def flip(content, rng):
    if content:
        content[_place(content, rng) % len(content)] ^= 1 << int(rng.integers(8))
    return content


def set_byte(content, rng):
    if content:
        byte = int(rng.choice([0, 1, 34, 48, 127, 128, 255]))
        content[_place(content, rng) % len(content)] = byte
    return content


def set_number(content, rng):
    at, size = _place(content, rng), int(rng.choice([2, 4, 8]))
    number = NUMBERS[int(rng.integers(len(NUMBERS)))] % 2 ** (8 * size)
    order = "little" if rng.random() < 0.8 else "big"
    content[at : at + size] = number.to_bytes(size, order)
    return content


def move(content, rng):
    """A stretch of the file put elsewhere, over what is there or in between."""
    begin, size, at = _place(content, rng), int(rng.integers(1, 65)), _place(content, rng)
    part = content[begin : begin + size]
    content[at : at + (len(part) if rng.random() < 0.5 else 0)] = part
    return content


def remove(content, rng):
    at = _place(content, rng)
    del content[at : at + int(rng.integers(1, 33))]
    return content


def insert(content, rng):
    at = _place(content, rng)
    content[at:at] = TEXTS[int(rng.integers(len(TEXTS)))]
    return content


def change_digits(content, rng):
    """A number that is written in text, as in JSON."""
    found = list(DIGITS.finditer(bytes(content[:NEAR])))
    if found:
        begin, end = found[int(rng.integers(len(found)))].span()
        others = [str(n).encode() for n in NUMBERS] + TEXTS
        content[begin:end] = others[int(rng.integers(len(others)))]
    return content


KINDS = (cut, flip, set_byte, set_number, move, remove, insert, change_digits)
