"""The names of what a kernel is given.

Whoever records a kernel call hands over tensors, sizes and options by name; whoever runs it puts
them in the order in which the kernel reads them. So an op of the tape and a kernel of a backend
are held against each other by their names, and neither knows the other's order.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from toynn.errors import ConfigError

__all__ = ["Entry", "Signature"]


class Signature(NamedTuple):
    """Names of tensors, sizes and options, each in the order of the kernel that has them."""

    tensors: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    nullable: frozenset[str] = frozenset()  # of the tensors

    @classmethod
    def of(cls, tensors: str, sizes: str = "", options: str = "") -> "Signature":
        """Read names with spaces between: ``Signature.of("dx dw? dy x", "N C")``.

        A tensor whose name ends in "?" may be missing; a kernel then gets a null pointer.
        """
        names = tensors.split()
        return cls(
            tuple(name.removesuffix("?") for name in names),
            tuple(sizes.split()),
            tuple(options.split()),
            frozenset(name[:-1] for name in names if name.endswith("?")),
        )

    def check(
        self,
        what: str,
        tensors: Collection[str],
        sizes: Collection[str],
        options: Collection[str],
    ) -> None:
        """Raise ConfigError unless these are the names, in any order."""
        for kind, needed, got in (
            ("tensors", self.tensors, tensors),
            ("sizes", self.sizes, sizes),
            ("options", self.options, options),
        ):
            if set(needed) != set(got):
                wrong = [f"no {name}" for name in needed if name not in got]
                wrong += [f"{name} is not one" for name in got if name not in needed]
                raise ConfigError(
                    f"{what}: its {kind} are {', '.join(needed) or 'none'}; got "
                    f"{', '.join(got) or 'none'}: {', '.join(wrong)}"
                )

    def there(self, tensors: Mapping[str, object]) -> dict[str, int]:
        """Return has_X of each tensor that may be missing: 1 if it is among these, 0 if not."""
        return {f"has_{name}": int(tensors.get(name) is not None) for name in self.nullable}

    def agrees(self, other: "Signature") -> bool:
        """Whether another has the same names, in whatever order, and the same may be missing."""
        return all(set(own) == set(its) for own, its in zip(self, other, strict=True))


class Entry(NamedTuple):
    """What a program calls, and its signature."""

    capsule: Any  # of a kernel_fn (toynn/_kernels/abi.pxd)
    signature: Signature
