"""AdamW's hyperparameters, as the seven floats that one step of the kernel reads.

    hp = [lr, beta1, beta2, eps, weight_decay, c1, c2]
    w <- w (1 - lr weight_decay) - lr (c1 m) / (sqrt(c2 v) + eps)

There is one kernel and it always multiplies the moments by c1 and c2. Two conventions fill them:

    lora          c1 = 1 / (1 - beta1^t), c2 = 1 / (1 - beta2^t), t = 1, 2, ...: Adam as published.
    from_scratch  c1 = beta1, c2 = beta2 at every step: Adam without bias correction, its rate
                  multiplied by beta1 / sqrt(beta2), which is 0.923 for the default betas.

The two conventions give different training curves, so an object without a mode refuses to fill a
row.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from toynn.errors import ConfigError
from toynn.numerics.adamw_row import check_row
from toynn.options import option, real


@dataclass
class AdamW:
    """Hyperparameters and the convention of the last two slots.

    Use ``AdamW.for_lora(lr=...)``, which computes what PyTorch's AdamW does, or
    ``AdamW.for_from_scratch(lr=...)``; then change ``lr`` per step as a schedule says. A plain
    ``AdamW(lr=...)`` has no convention, unless you set ``mode`` (and, for ``MODE_LORA``,
    ``bias_correct``) yourself.

    Examples
    --------
    >>> adamw = AdamW.for_lora(lr=0.01, weight_decay=0.1)
    >>> adamw.hp_for_step(0).shape
    (7,)
    """

    MODE_UNSET: ClassVar[int] = 0
    MODE_FROM_SCRATCH: ClassVar[int] = 1  # from-scratch, warm-start and ViT recipes
    MODE_LORA: ClassVar[int] = 2  # LoRA and GPT-2 recipes, full fine-tuning

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = option(default=0.0, read=real(0))
    bias_correct: bool = False
    mode: int = MODE_UNSET

    @classmethod
    def for_from_scratch(cls, lr: float = 1e-3, **fields: float) -> Self:
        """Return the from-scratch convention, no bias correction; ``fields`` as the class has."""
        return cls(lr, mode=cls.MODE_FROM_SCRATCH, **fields)  # type: ignore[arg-type]

    @classmethod
    def for_lora(cls, lr: float = 1e-3, *, beta2: float = 0.999, **fields: float) -> Self:
        """Return the lora convention, bias correction by step; ``fields`` as the class has."""
        return cls(lr, beta2=beta2, bias_correct=True, mode=cls.MODE_LORA, **fields)

    def hp(self, step: int) -> NDArray[np.float32]:
        """Return the row for ``step``, which counts from 1; the from-scratch mode ignores it.

        Raises
        ------
        ConfigError
            If the mode is unset or contradicts ``bias_correct``; if a value is not finite or out of
            range (see `check_row`). With bias correction, also for a step below 1 or a beta outside
            0..1.
        """
        self._check_mode()
        row = [self.lr, self.beta1, self.beta2, self.eps, self.weight_decay]
        if self.bias_correct:
            row += [self._correction("beta1", step), self._correction("beta2", step)]
        else:
            row += [self.beta1, self.beta2]
        check_row("AdamW.hp", row)
        return np.array(row, np.float32)

    def hp_for_step(self, step: int) -> NDArray[np.float32]:
        """Return the row for the ``step`` of a loop that counts from 0, whatever the mode."""
        return self.hp(step + 1 if self.mode == self.MODE_LORA else step)

    def _check_mode(self) -> None:
        if self.mode == self.MODE_UNSET:
            names = ("lr", "beta1", "beta2", "eps", "weight_decay")
            values = {name: getattr(self, name) for name in names}
            args = ", ".join(f"{k}={v!r}" for k, v in values.items() if v != getattr(AdamW, k))
            raise ConfigError(
                f"AdamW.hp: mode is unset: use AdamW.for_lora({args}), Adam with bias correction, "
                f"as in PyTorch; or AdamW.for_from_scratch({args}), without; or set mode"
            )
        if self.mode not in (self.MODE_FROM_SCRATCH, self.MODE_LORA):
            raise ConfigError(
                f"AdamW.hp: mode must be MODE_FROM_SCRATCH (1) or MODE_LORA (2); got {self.mode!r}"
            )
        if self.mode == self.MODE_FROM_SCRATCH and self.bias_correct:
            raise ConfigError(
                "AdamW.hp: mode is from_scratch, where slots 5 and 6 are the betas themselves, "
                "but bias_correct is True; unset it or use AdamW.for_lora()"
            )
        if self.mode == self.MODE_LORA and not self.bias_correct:
            raise ConfigError(
                "AdamW.hp: mode is lora, where slots 5 and 6 are 1 / (1 - beta^t), "
                "but bias_correct is False; set it or use AdamW.for_from_scratch()"
            )

    def _correction(self, name: str, step: int) -> float:
        """Return 1 / (1 - beta^step)."""
        beta = getattr(self, name)
        if step < 1:
            raise ConfigError(
                f"AdamW.hp: in the lora mode steps count from 1; got {step} "
                "(hp_for_step takes steps that count from 0)"
            )
        if not 0 <= beta < 1:
            raise ConfigError(f"AdamW.hp: bias correction needs {name} in 0..1; got {beta}")
        return float(1.0 / (1.0 - beta ** float(step)))
