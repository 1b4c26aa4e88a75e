"""The vision transformer: a picture's patches as a sequence, and a class token that is classified.

Two variants from one code: timm's (LayerNorm, exact GELU, biases) and the seeds' (RMSNorm, SiLU,
none). Source: Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, arXiv:2010.11929, section 3;
ViT-Tiny: Touvron et al. 2020, arXiv:2012.12877, table 1.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import checks, nn, ops
from toynn.engines._engine import Engine, Recorded, Shapes, check_sizes, counted
from toynn.engines._pictures import as_labels, as_patches, as_tokens
from toynn.engines._timm import check_tensors, class_names, described, metadata_of, resampled
from toynn.errors import ConfigError, DataError, NonFiniteError
from toynn.formats import safetensors
from toynn.formats._hf_files import SafeTensors
from toynn.formats.files import write_atomically
from toynn.options import RecipeOptions
from toynn.tape import Tensor

__all__ = ["ViTConfig", "ViTEngine"]

StrPath = str | os.PathLike[str]

_NORMS, _ACTIVATIONS = ("layernorm", "rmsnorm"), {"gelu": "gelu_exact", "silu": "silu"}
_STD = 0.02
_AT_ONCE = 64  # pictures of one forward pass of logits: more are cut into several


@dataclass(frozen=True)
class ViTConfig:
    """Shape of a vision transformer; the default is timm's vit_tiny_patch16_224, with 10 classes.

    Attributes
    ----------
    image, patch
        Width and height of a picture and of a patch, in pixels; patch divides image.
    channels
        Numbers a pixel has.
    norm
        "layernorm" or "rmsnorm".
    act
        "gelu", the exact one, or "silu".
    bias
        Whether linear layers have biases: all of them, the patches' and the head included.
    norm_eps
        What norms add to the variance.
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
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"ViTConfig: n_heads must divide d_model; got {self.n_heads} and {self.d_model}"
            )
        for name, known in (("norm", _NORMS), ("act", tuple(_ACTIVATIONS))):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"ViTConfig: {name} must be {' or '.join(known)}; got {getattr(self, name)!r}"
                )
        if not isinstance(self.bias, bool):
            raise ConfigError(f"ViTConfig: bias must be True or False; got {self.bias!r}")
        if not isinstance(self.norm_eps, float) or not 0 < self.norm_eps < inf:
            raise ConfigError(
                f"ViTConfig: norm_eps must be a finite float above 0; got {self.norm_eps!r}"
            )

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
        """Return the shape of every weight by timm's name, in the order of the optimizer."""
        C, F, P = self.d_model, self.d_ff, self.patch
        shapes: Shapes = {
            "cls_token": (1, 1, C),
            "pos_embed": (1, self.n_patches + 1, C),
            **self._layer("patch_embed.proj", (C, self.channels, P, P)),
        }
        for n in range(self.n_layers):
            block = f"blocks.{n}"
            shapes |= self._norm(f"{block}.norm1")
            shapes |= self._layer(f"{block}.attn.qkv", (3 * C, C))
            shapes |= self._layer(f"{block}.attn.proj", (C, C))
            shapes |= self._norm(f"{block}.norm2")
            shapes |= self._layer(f"{block}.mlp.fc1", (F, C))
            shapes |= self._layer(f"{block}.mlp.fc2", (C, F))
        return shapes | self._norm("norm") | self._layer("head", (self.classes, C))

    def _layer(self, name: str, shape: tuple[int, ...]) -> Shapes:
        bias: Shapes = {f"{name}.bias": shape[:1]} if self.bias else {}
        return {f"{name}.weight": shape, **bias}

    def _norm(self, name: str) -> Shapes:
        shape = (self.d_model,)
        bias: Shapes = {f"{name}.bias": shape} if self.norm == "layernorm" else {}
        return {f"{name}.weight": shape, **bias}


@dataclass(frozen=True, kw_only=True)
class Pass(Recorded):
    """Handles of one recorded tape, with its inputs."""

    image: Tensor
    rows: Tensor


class ViTEngine(Engine[ViTConfig, Pass]):
    """A vision transformer and its training step.

    Pictures come one or several at a time, in numbers mixed at will:

    pixels   (H, W, C) or (B, H, W, C)
    patches  (n_patches, patch_size) or (B, n_patches, patch_size): rows of patches from the top,
             each from the left; in a patch, rows of pixels, then columns, then channels

    uint8 becomes (x / 255 - 0.5) / 0.5; floats are taken as they are.
    """

    class_names: tuple[str, ...] = ()  # what the classes are called, where that is known
    t_image: Tensor
    t_cls_idx: Tensor

    # -- Weights -------------------------------------------------------------------------------

    def _check(self, cfg: ViTConfig, opts: RecipeOptions) -> None:
        if opts.weight_dtype != "f32":
            raise ConfigError(f"ViT: weight_dtype must be f32; got {opts.weight_dtype!r}")

    def _shapes(self) -> Shapes:
        """Return timm's shapes, those of patches, class token and positions as the ops want them.

        patch_embed.proj.weight is a matrix (d_model, patch_size) on the tape.
        """
        cfg = self.config
        return cfg.shapes() | {
            "cls_token": (cfg.d_model,),
            "pos_embed": (cfg.n_patches + 1, cfg.d_model),
            "patch_embed.proj.weight": (cfg.d_model, cfg.patch_size),
        }

    def _std(self, name: str, shape: tuple[int, ...]) -> float:
        return _STD * self.options.init_scale if name.startswith("blocks.") else _STD

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all weights, by timm's names, in timm's shapes."""
        return {name: self._outward(name, values) for name, values in super().weights().items()}

    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the last step's gradients of the mean loss, before clipping."""
        return {name: self._outward(name, values) for name, values in super().gradients().items()}

    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; names and shapes must be those of ``weights()``."""
        super().load_weights({name: self._inward(name, w) for name, w in weights.items()})

    def _outward(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a weight in timm's shape."""
        cfg = self.config
        if name == "patch_embed.proj.weight":
            pixels = values.reshape(cfg.d_model, cfg.patch, cfg.patch, cfg.channels)
            return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        return values.reshape(cfg.shapes()[name])

    def _inward(self, name: str, values: ArrayLike) -> ArrayLike:
        """Return a weight in the tape's shape."""
        shape = self._shapes().get(name)
        if shape is None or shape == (timm := self.config.shapes()[name]):
            return values
        checked = checks.converted(name, values, timm, "f32")
        if name == "patch_embed.proj.weight":
            checked = checked.transpose(0, 2, 3, 1)
        return checked.reshape(shape)

    # -- Files ---------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        path: StrPath,
        opts: RecipeOptions | None = None,
        *,
        classes: int | None = None,
        image: int | None = None,
        n_heads: int | None = None,
        act: str | None = None,
        norm_eps: float | None = None,
        backend: str = "cpu",
    ) -> Self:
        """Return an engine with the weights of a safetensors file, ready to train.

        The file is one of ``save``, or of timm's: then n_heads is d_model / 64, act "gelu" and
        norm_eps 1e-6 where they are not given. Another ``image`` size resizes the position table;
        another number of ``classes`` brings a new head, drawn with opts.seed.
        """
        file = SafeTensors(Path(path))
        told = {"n_heads": n_heads, "act": act, "norm_eps": norm_eps}
        found = described(file, list(asdict(ViTConfig())), told)
        if found["classes"] is None and classes is None:
            raise DataError(f"{path}: it has no head.weight: say how many classes there are to be")
        try:
            stored = ViTConfig(**(found | {"classes": found["classes"] or classes}))
        except ConfigError as error:
            raise DataError(f"{path}: {error}") from error
        cfg = replace(
            stored,
            image=stored.image if image is None else image,
            classes=stored.classes if classes is None else classes,
        )
        head = {name for name in cfg.shapes() if name.startswith("head.")}
        new_head = head if cfg.classes != found["classes"] else set()
        check_tensors(file, stored.shapes(), new_head)
        engine = cls(backend)
        engine.declare(cfg, opts or RecipeOptions())
        engine.session.finalize_weights()
        weights = {name: file[name] for name in stored.shapes() if name not in new_head}
        weights["pos_embed"] = resampled(weights["pos_embed"], cfg.image // cfg.patch)
        engine.load_weights(weights | {k: v for k, v in engine._draw() if k in new_head})
        engine.class_names = () if new_head else class_names(file, cfg.classes)
        engine.build_training_step()
        return engine

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write weights, configuration and class names as a safetensors file, which timm reads."""
        path = Path(path)
        self._session_for("save()")
        if os.path.lexists(path) and not overwrite:
            raise DataError(f"{path}: already exists; pass overwrite=True to replace it")
        if len(self.class_names) not in (0, self.config.classes):
            raise ConfigError(
                f"save: class_names needs {self.config.classes} names; got {self.class_names!r}"
            )
        metadata = metadata_of(asdict(self.config), self.class_names)
        write_atomically(path, safetensors.encode(self.weights(), metadata), DataError)

    # -- Recording -----------------------------------------------------------------------------

    def build_forward(self) -> None:
        """Record the forward pass, up to the loss: the first part of build_training_step."""
        super().build_forward()
        assert self._step is not None
        self.t_image, self.t_cls_idx = self._step.image, self._step.rows

    def _record_main(self) -> Pass:
        return self._record_loss(self.t_batch, dense=False)

    def _record_inputs(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        s, cfg = self.session, self.config
        image = s.input("image", (batch * cfg.n_patches, cfg.patch_size))
        rows = s.input("cls_idx", (batch,), "i32")
        return image, rows, self._record_forward(image, rows, batch)

    def _record_logits(self, batch: int) -> Pass:
        image, rows, logits = self._record_inputs(batch)
        logits = self.session.output(logits)
        return Pass(tape=self.session.tape, image=image, rows=rows, logits=logits)

    def _record_loss(self, batch: int, *, dense: bool) -> Pass:
        s, classes = self.session, self.config.classes
        image, rows, logits = self._record_inputs(batch)
        shape, dtype = ((batch, classes), "f32") if dense else ((batch,), "i32")
        labels, hp = s.input("labels", shape, dtype), s.input("hp", (7,))
        loss = ops.cross_entropy(s, logits, labels)
        s.set_loss(loss)
        return Pass(
            tape=s.tape, image=image, rows=rows, logits=logits, labels=labels, hp=hp, loss=loss
        )

    def _record_forward(self, image: Tensor, rows: Tensor, batch: int) -> Tensor:
        """Record the forward pass; return the logits (B, classes) of ``rows`` (B,)."""
        s, w = self.session, self.parameters
        patches = ops.linear(s, image, *self._affine("patch_embed.proj"))
        x = ops.class_token(s, patches, w["cls_token"], w["pos_embed"])
        last = self.n_layers - 1
        for n in range(self.n_layers):
            with s.tape.block(f"blocks.{n}"):
                x = self._record_block(x, f"blocks.{n}", batch, rows if n == last else None)
        return ops.linear(s, self._norm(x, "norm"), *self._affine("head"))

    def _record_block(self, x: Tensor, block: str, batch: int, rows: Tensor | None) -> Tensor:
        """Record a block; of the last one only the ``rows`` that the head reads."""
        s = self.session
        attended = nn.self_attention(
            s,
            self._norm(x, f"{block}.norm1"),
            *self._affine(f"{block}.attn.qkv"),
            *self._affine(f"{block}.attn.proj"),
            batch=batch,
            n_heads=self.n_heads,
            causal=False,
            rows=rows,
        )
        x = ops.add(s, x if rows is None else ops.embedding(s, x, rows), attended)
        hidden = nn.mlp(
            s,
            self._norm(x, f"{block}.norm2"),
            *self._affine(f"{block}.mlp.fc1"),
            *self._affine(f"{block}.mlp.fc2"),
            activation=_ACTIVATIONS[self.config.act],
        )
        return ops.add(s, x, hidden)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        gain, bias = self._affine(name)
        if bias is None:
            return ops.rmsnorm(self.session, x, gain, self.config.norm_eps)
        return ops.layernorm(self.session, x, gain, bias, self.config.norm_eps)

    def _affine(self, name: str) -> tuple[Tensor, Tensor | None]:
        return self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")

    # -- Running -------------------------------------------------------------------------------

    def _step_for(self, batch: int, *, dense: bool) -> Pass:
        """Return the training step for this many pictures and this form of labels."""
        main = self._check_built("step")
        if batch == self.t_batch and not dense:
            return main

        def build() -> Pass:
            step = self._record_loss(batch, dense=dense)
            self._record_update(step)
            return step

        return self.session.record(("step", batch, dense), build)

    def _feed(
        self,
        image: ArrayLike,
        cls_idx: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike | None = None,
    ) -> tuple[Pass, float]:
        """Upload a batch; return its tape's handles, and how many pictures of it count."""
        self._check_built("step")
        patches = as_patches(self.config, image)
        tokens = as_tokens(self.config, cls_idx, len(patches))
        answers = as_labels(self.config, labels, len(patches))
        step = self._step_for(len(patches), dense=answers.ndim == 2)
        assert step.labels is not None
        self._upload(step, patches, tokens)
        self.session.upload(step.labels, answers)
        if hp is not None:
            assert step.hp is not None
            self.session.upload(step.hp, hp)
        return step, counted(answers)

    def _upload(self, found: Pass, patches: NDArray[Any], tokens: NDArray[np.int64]) -> None:
        """Upload patches, and the rows of the batch that the tokens of its pictures are."""
        first = np.arange(len(patches)) * (self.config.n_patches + 1)
        self.session.upload(found.image, patches.reshape(found.image.shape))
        self.session.upload(found.rows, first + tokens)

    def step(
        self,
        image: ArrayLike,
        cls_idx: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
    ) -> float:
        """Train on one batch; return its loss before the update.

        image: pixels or patches of B pictures, or of one (see ViTEngine).
        cls_idx: the token that the head reads, 0..n_patches; None means [0], the class token. Or
        one of each picture, (B,).
        labels: int (B,), -100 where a picture does not count, or dense float (B, classes); of one
        picture a number, or dense (classes,).
        hp: the 7-slot row of AdamW. ``is_first`` zeroes the moments first. Batches given to
        ``accumulate`` since the last step count too, each by its pictures.
        """
        return self._train(*self._feed(image, cls_idx, labels, hp), is_first)

    def accumulate(self, image: ArrayLike, cls_idx: ArrayLike | None, labels: ArrayLike) -> float:
        """Add one micro-batch's gradients to the next step's; return its loss."""
        return self._add_gradients(*self._feed(image, cls_idx, labels))

    def evaluate(self, image: ArrayLike, cls_idx: ArrayLike | None, labels: ArrayLike) -> float:
        """Return the loss of one batch; no gradient and no moment is touched."""
        return self._evaluate(self._feed(image, cls_idx, labels)[0])

    def logits(self, images: ArrayLike, cls_idx: ArrayLike | None = None) -> NDArray[np.float32]:
        """Return logits (B, classes) of any number of pictures; of one picture (1, classes)."""
        self._check_built("logits")
        patches = as_patches(self.config, images)
        tokens = as_tokens(self.config, cls_idx, len(patches))
        parts = [slice(at, at + _AT_ONCE) for at in range(0, len(patches), _AT_ONCE)]
        return np.concatenate([self._logits(patches[part], tokens[part]) for part in parts])

    def _logits(self, patches: NDArray[Any], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        s, batch = self.session, len(patches)
        found = s.record(("logits", batch), lambda: self._record_logits(batch))
        self._upload(found, patches, tokens)
        s.run("loss", tape=found.tape)
        assert found.logits is not None
        return s.download(found.logits)

    def probabilities(self, images: ArrayLike) -> NDArray[np.float32]:
        """Return the probability of each class, (B, classes), of any number of pictures.

        Raises NonFiniteError, as ``predict`` does, where weights or pixels are too bad for that.
        """
        logits = self._finite_logits("probabilities", images)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float32)

    def predict(self, images: ArrayLike) -> NDArray[np.int64]:
        """Return the most probable class of each picture, (B,); see ``probabilities``."""
        logits = self._finite_logits("predict", images)
        return np.asarray(logits.argmax(axis=1), np.int64)

    def _finite_logits(self, call: str, images: ArrayLike) -> NDArray[np.float32]:
        logits = self.logits(images)
        bad = ~np.isfinite(logits).all(axis=1)
        if bad.any():
            raise NonFiniteError(
                f"{call}: the logits of {int(bad.sum())} of {bad.size} pictures, the first of them "
                f"number {int(bad.argmax())}, are not finite: the model's weights may be bad"
            )
        return logits
