"""The vision transformer: a sequence of a picture's patches and a class token, which is classified.

    x += W_o attention(W_qkv n)             n = norm(x)
    x += W_2 f(W_1 n)                       n = norm(x)

There are two variants: timm's (LayerNorm, exact GELU, biases) and the reference program's (RMSNorm,
SiLU, no biases). Source: Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, arXiv:2010.11929,
section 3; ViT-Tiny: Touvron et al. 2020, arXiv:2012.12877, table 1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.errors import ConfigError
from toynn.graph.tape import Tensor
from toynn.models.checks import check_divided, check_flags, check_sizes
from toynn.models.model import Model
from toynn.models.tables import Shapes, Sizes, matrix, norm, table
from toynn.nn import Layers
from toynn.numerics import checks
from toynn.options import RecipeOptions

_NORMS, _ACTIVATIONS = ("layernorm", "rmsnorm"), {"gelu": "gelu_exact", "silu": "silu"}
_STD = 0.02
_PATCHES = "patch_embed.proj.weight"


@dataclass(frozen=True)
class ViTConfig:
    """Shape of a vision transformer; the default is timm's vit_tiny_patch16_224, with 10 classes.

    Raises ConfigError for sizes that make no model.

    Attributes
    ----------
    image, patch
        Width and height of a picture and of a patch, in pixels; patch divides image.
    channels
        Numbers per pixel.
    norm
        "layernorm" or "rmsnorm".
    act
        "gelu" (exact, by erf) or "silu".
    bias
        Whether linear layers have biases: all of them, the patches' and the head included.
    norm_eps
        Epsilon that norms add to the variance.
    """

    image: int = 224
    patch: int = 16
    channels: int = 3
    d_model: int = 192
    n_heads: int = 3
    d_ff: int = 768
    n_layers: int = 12
    classes: int = 10
    norm: str = "layernorm"
    act: str = "gelu"
    bias: bool = True
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_sizes(self, "image", "patch", "channels", "classes")
        check_sizes(self, "d_model", "n_heads", "d_ff", "n_layers")
        if self.image % self.patch:
            raise ConfigError(
                f"ViTConfig: patch must divide image; got patch {self.patch}, image {self.image}"
            )
        check_divided(self)
        for name, words in (("norm", _NORMS), ("act", tuple(_ACTIVATIONS))):
            if getattr(self, name) not in words:
                raise ConfigError(
                    f"ViTConfig: {name} must be {' or '.join(words)}; got {getattr(self, name)!r}"
                )
        check_flags(self, "bias")

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads

    @property
    def n_patches(self) -> int:
        """Patches of a picture."""
        return (self.image // self.patch) ** 2

    @property
    def patch_size(self) -> int:
        """Numbers of a patch: patch * patch * channels."""
        return self.patch * self.patch * self.channels

    def shapes(self) -> Shapes:
        """Return the shape of every weight by timm's name, in the order of the optimizer.

        Three of them have other shapes on a tape: ViT.inward and ViT.outward convert them.
        """
        C, P = self.d_model, self.patch
        return VIT.shapes(self, RecipeOptions()) | {
            "cls_token": (1, 1, C),
            "pos_embed": (1, self.n_patches + 1, C),
            _PATCHES: (C, self.channels, P, P),
        }


class ViT(Model[ViTConfig]):
    """The vision transformer, by timm's names; patch_embed.proj is a matrix on the tape."""

    config_type = ViTConfig

    table = (
        table("cls_token", "C", std=0.0, bare=True),
        table("pos_embed", "T C", std=_STD, bare=True),
        matrix("patch_embed.proj", "C P", std=_STD, bias="bias"),
        norm("blocks.{n}.norm1", "C", bias="norm_bias"),
        matrix("blocks.{n}.attn.qkv", "3C C", std=_STD, bias="bias"),
        matrix("blocks.{n}.attn.proj", "C C", std=_STD, bias="bias"),
        norm("blocks.{n}.norm2", "C", bias="norm_bias"),
        matrix("blocks.{n}.mlp.fc1", "F C", std=_STD, bias="bias"),
        matrix("blocks.{n}.mlp.fc2", "C F", std=_STD, bias="bias"),
        norm("norm", "C", bias="norm_bias"),
        matrix("head", "K C", std=_STD, bias="bias"),
    )

    def sizes(self, cfg: ViTConfig, opts: RecipeOptions, n: int | None) -> Sizes:
        """Return the values of the table's letters and conditions."""
        C = cfg.d_model
        return {
            "C": C, "3C": 3 * C, "F": cfg.d_ff, "T": cfg.n_patches + 1, "P": cfg.patch_size,
            "K": cfg.classes, "bias": cfg.bias, "norm_bias": cfg.norm == "layernorm",
        }  # fmt: skip

    def check(self, cfg: ViTConfig, opts: RecipeOptions) -> None:
        """Refuse a weight_dtype other than f32. Raises ConfigError."""
        if opts.weight_dtype != "f32":
            raise ConfigError(f"ViT: weight_dtype must be f32; got {opts.weight_dtype!r}")

    # -- Shapes of files -----------------------------------------------------------------------

    def outward(
        self, cfg: ViTConfig, name: str, values: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return a weight in timm's shape."""
        if name == _PATCHES:
            pixels = values.reshape(cfg.d_model, cfg.patch, cfg.patch, cfg.channels)
            return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        return values.reshape(cfg.shapes()[name])

    def inward(self, cfg: ViTConfig, name: str, values: ArrayLike) -> ArrayLike:
        """Return a weight in the tape's shape."""
        shape = self.shapes(cfg, RecipeOptions()).get(name)
        if shape is None or shape == (timm := cfg.shapes()[name]):
            return values
        checked = checks.converted(name, values, timm, "f32")
        if name == _PATCHES:
            checked = checked.transpose(0, 2, 3, 1)
        return checked.reshape(shape)

    # -- Forward -------------------------------------------------------------------------------

    def forward(self, layers: Layers, cfg: ViTConfig, image: Tensor, rows: Tensor) -> Tensor:
        """Record the logits (B, classes) of ``rows`` (B,), for patches (B n_patches, patch_size).

        The last block computes keys and values of all rows, and all else for these rows only.
        """
        patches = layers.linear(image, "patch_embed.proj")
        x = layers.class_token(patches, "cls_token", "pos_embed")
        for n, block in enumerate(layers.blocks(cfg.n_layers, "blocks")):
            qkv = block.linear(self._norm(block, cfg, x, "norm1"), "attn.qkv")
            heads = block.attention(qkv, n_heads=cfg.n_heads, causal=False)
            if n == cfg.n_layers - 1:
                heads = block.rows(heads, rows)
            heads = block.linear(heads, "attn.proj")
            if n == cfg.n_layers - 1:
                x = block.rows(x, rows)
            x = block.add(x, heads)
            normed = self._norm(block, cfg, x, "norm2")
            x = block.add(x, block.mlp(normed, "mlp.fc1", "mlp.fc2", _ACTIVATIONS[cfg.act]))
        return layers.linear(self._norm(layers, cfg, x, "norm"), "head")

    def _norm(self, layers: Layers, cfg: ViTConfig, x: Tensor, name: str) -> Tensor:
        record = layers.layernorm if cfg.norm == "layernorm" else layers.rmsnorm
        return record(x, name, cfg.norm_eps)


VIT = ViT()
