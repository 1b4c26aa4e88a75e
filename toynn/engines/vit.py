"""The engine of the vision transformer (toynn/models/vit.py): pictures in, classes out."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.data.batch import Batch
from toynn.engines.engine import Engine, Inputs, Recorded, of_step
from toynn.engines.files import StrPath
from toynn.errors import ConfigError, DataError, LabelError, NonFiniteError, ShapeError
from toynn.formats import safetensors
from toynn.formats.files import write_atomically
from toynn.formats.safetensors import SafeTensors
from toynn.graph.tape import Tensor
from toynn.models import VIT, ViTConfig, timm
from toynn.models.timm import check_tensors, described, metadata_of, resampled
from toynn.options import RecipeOptions

__all__ = ["ViTConfig", "ViTEngine"]


#: (x / 255 - 0.5) / 0.5 for each byte x: what most vision transformers are trained on.
_NORMALIZED = ((np.arange(256) / 255 - 0.5) / 0.5).astype(np.float32)

_AT_ONCE = 64  # the most pictures in one forward pass of logits


class ViTEngine(Engine[ViTConfig]):
    """A vision transformer and its training step.

    A call takes one or several pictures; their number may change from call to call:

        pixels   (H, W, C) or (B, H, W, C)
        patches  (n_patches, patch_size) or (B, n_patches, patch_size): rows of patches from the
                 top, each from the left; in a patch, rows of pixels, then columns, then channels

    uint8 becomes (x / 255 - 0.5) / 0.5; floats are used as they are.
    """

    class_names: tuple[str, ...] = ()  # the names of the classes, if known
    kept_classes: tuple[str, ...] = ()  # the classes whose rows of the head were loaded by name
    t_image, t_cls_idx = of_step("image"), of_step("cls_idx")
    model = VIT

    # -- Files ---------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, path: StrPath, opts: RecipeOptions | None = None, *, backend: str = "cpu", **told: Any
    ) -> Self:
        """Return an engine with the weights of a safetensors file, ready to train; see ``read``."""
        engine = cls(backend)
        engine.read(path, opts, **told)
        return engine

    def declare_from(self, path: StrPath, opts: RecipeOptions | None = None, **told: Any) -> None:
        """Declare what ``read`` makes of a file, before memory is allocated.

        ``told``: classes, image, n_heads, act, norm_eps. Raises DataError for a file that is not
        such a model.
        """
        _, cfg, _ = _shapes_of(SafeTensors(Path(path)), **told)
        self.declare(cfg, opts or RecipeOptions())

    def read(
        self,
        path: StrPath,
        opts: RecipeOptions | None = None,
        *,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        **told: Any,
    ) -> None:
        """Take the weights of a safetensors file, and compile the training step.

        The file comes from ``save`` or from timm. ``told``: image, n_heads, act, norm_eps. For
        timm's the defaults are d_model / 64 heads, act "gelu" and norm_eps 1e-6. Another ``image``
        size resizes the position table. Another number of ``classes`` makes a new head, drawn with
        opts.seed. With ``class_names`` a class that the file names too keeps its row of the head;
        all other rows are new.

        Raises DataError for a file that is not such a model.
        """
        file = SafeTensors(Path(path))
        count = classes if class_names is None else len(class_names)
        stored, cfg, new_head = _shapes_of(file, count, **told)
        rows = {}  # of the new head, and the file's rows that they keep
        if class_names is not None:
            names = timm.class_names(file, stored.classes) if "head.weight" in file.tensors else ()
            rows = {k: names.index(name) for k, name in enumerate(class_names) if name in names}
            if rows:
                check_tensors(file, stored.shapes())
            new_head = {name for name in cfg.shapes() if name.startswith("head.")}
        self.declare(cfg, opts or RecipeOptions())
        self.session.finalize_weights()
        weights = {name: file[name] for name in stored.shapes() if name not in new_head}
        weights["pos_embed"] = resampled(weights["pos_embed"], cfg.image // cfg.patch)
        for name, values in VIT.start(cfg, self.options):
            if name in new_head:
                weights[name] = np.array(values)
                if rows:
                    weights[name][list(rows)] = file[name][list(rows.values())]
        if class_names is None and not new_head:
            class_names = timm.class_names(file, cfg.classes)
        self.class_names = tuple(class_names or ())
        self.kept_classes = tuple(self.class_names[k] for k in rows)
        self.load_weights(weights)
        file.watched.check()
        self.build_training_step()

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write weights, configuration and class names as a safetensors file that timm reads.

        Raises DataError if the file cannot be written, or exists and ``overwrite`` is False.
        Raises ConfigError unless there are as many class_names as classes, or none.
        """
        path = Path(path)
        self._session_for("save()")
        if os.path.lexists(path) and not overwrite:
            raise DataError(
                f"{path}: already exists; pass overwrite=True|--overwrite to replace it"
            )
        if len(self.class_names) not in (0, self.config.classes):
            raise ConfigError(
                f"save: class_names needs {self.config.classes} names; got {self.class_names!r}"
            )
        metadata = metadata_of(asdict(self.config), self.class_names)
        write_atomically(path, safetensors.encode(self.weights(), metadata), DataError)

    def write_run(self, folder: Path) -> None:
        """Write the model to a run folder, as model.safetensors."""
        self.save(folder / "model.safetensors", overwrite=True)

    # -- Recording -----------------------------------------------------------------------------

    @property
    def _usual(self) -> tuple[int, bool]:
        return self.t_batch, False

    def _record_inputs(self, batch: int) -> Tensor:
        """Record the inputs and the logits of some pictures; return the logits."""
        s, cfg = self.session, self.config
        image = s.input("image", (batch * cfg.n_patches, cfg.patch_size))
        rows = s.input("cls_idx", (batch,), "i32")
        return VIT.forward(self.layers(batch), cfg, image, rows)

    def _record_loss(self, *kind: Any, **_: Any) -> Recorded:
        """Record the loss of a number of pictures, with dense labels or not."""
        (batch, dense), s = kind, self.session
        logits = self._record_inputs(batch)
        shape, dtype = ((batch, self.config.classes), "f32") if dense else ((batch,), "i32")
        labels, _hp = s.input("labels", shape, dtype), s.input("hp", (7,))
        loss = ops.cross_entropy(s, logits, labels)
        s.set_loss(loss)
        return Recorded(tape=s.tape, logits=logits, loss=loss)

    # -- Running -------------------------------------------------------------------------------

    def _fitted(self, batch: Batch) -> tuple[Recorded, Batch, Inputs]:
        patches = as_patches(self.config, batch.inputs)
        tokens = as_tokens(self.config, batch.positions, len(patches))
        labels = as_labels(self.config, batch.labels, len(patches))
        step = self._step_for(len(patches), labels.ndim == 2)
        values = self._inputs(patches, tokens) | {"labels": labels}
        return step, Batch(patches, tokens, labels), values

    def _inputs(self, patches: NDArray[Any], tokens: NDArray[np.int64]) -> Inputs:
        """Return the inputs: patches, and the batch's row of each picture's token."""
        first = np.arange(len(patches)) * (self.config.n_patches + 1)
        return {"image": patches.reshape(-1, self.config.patch_size), "cls_idx": first + tokens}

    def step(
        self,
        image: ArrayLike,
        cls_idx: ArrayLike | None,
        labels: ArrayLike,
        hp: ArrayLike,
        is_first: bool,
    ) -> float:
        """Train on one batch, array by array; return its loss before the update. See ``train``.

        Parameters
        ----------
        image
            Pixels or patches of B pictures, or of one (see ViTEngine).
        cls_idx
            The token that the head reads, 0..n_patches, one for all or one each, (B,); None means
            0, the class token.
        labels
            int (B,), -100 for a picture without loss, or dense float (B, classes). For one picture
            also a number, or dense (classes,).
        hp, is_first
            See ``train``.
        """
        return self.train(Batch(image, cls_idx, labels), hp, is_first)

    def logits(self, images: ArrayLike, cls_idx: ArrayLike | None = None) -> NDArray[np.float32]:
        """Return the logits (B, classes) of any number of pictures; (1, classes) for one."""
        self._built("logits")
        patches = as_patches(self.config, images)
        tokens = as_tokens(self.config, cls_idx, len(patches))
        parts = [slice(at, at + _AT_ONCE) for at in range(0, len(patches), _AT_ONCE)]
        with self.exclusively("logits()", signals=True):
            return np.concatenate([self._logits(patches[part], tokens[part]) for part in parts])

    def _logits(self, patches: NDArray[Any], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        s, batch = self.session, len(patches)

        def record() -> Recorded:
            return Recorded(tape=s.tape, logits=s.output(self._record_inputs(batch)))

        return self.compute(s.record(("logits", batch), record), self._inputs(patches, tokens))

    def probabilities(self, images: ArrayLike) -> NDArray[np.float32]:
        """Return the probabilities of the classes, (B, classes), for any number of pictures.

        Raises NonFiniteError if a logit is not finite.
        """
        logits = self._finite_logits("probabilities", images)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float32)

    def predict(self, images: ArrayLike) -> NDArray[np.int64]:
        """Return the most probable class of each picture, (B,); see ``probabilities``.

        Raises NonFiniteError if a logit is not finite.
        """
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


def _shapes_of(
    file: SafeTensors, classes: int | None = None, image: int | None = None, **told: Any
) -> tuple[ViTConfig, ViTConfig, set[str]]:
    """Return a file's model, the model to make of it, and the names of a new head's tensors.

    Raises DataError for a file that is not such a model.
    """
    fields = described(file, list(asdict(ViTConfig())), told)
    if fields["classes"] is None and classes is None:
        raise DataError(f"{file.path}: it has no head.weight: give the number of classes")
    try:
        stored = ViTConfig(**(fields | {"classes": fields["classes"] or classes}))
    except ConfigError as error:
        raise DataError(f"{file.path}: {error}") from error
    sizes: dict[str, Any] = {"image": image, "classes": classes}
    cfg = replace(stored, **{name: n for name, n in sizes.items() if n is not None})
    head = {name for name in cfg.shapes() if name.startswith("head.")}
    new_head = head if cfg.classes != fields["classes"] else set()
    check_tensors(file, stored.shapes(), new_head)
    return stored, cfg, new_head


# -- Users' pictures, token indices and labels, as inputs -----------------------------------------


def as_patches(grid: ViTConfig, image: ArrayLike) -> NDArray[Any]:
    """Return patches (B, n_patches, patch_size) from pixels or patches of one or more pictures.

    A patch is flat, in the order (row, column, channel). uint8 becomes (x / 255 - 0.5) / 0.5.

    Raises ShapeError.
    """
    array = np.asarray(image)
    pixels = (grid.image, grid.image, grid.channels)
    patches = (grid.n_patches, grid.patch_size)
    are_patches = array.ndim in (2, 3) and array.shape[-2:] == patches
    are_pixels = array.ndim in (3, 4) and array.shape[-3:] == pixels
    if not array.size or not (are_patches or are_pixels):
        raise ShapeError(
            f"image: expected pixels {pixels} or patches {patches}, or several "
            f"such pictures; got {array.shape}"
        )
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise ShapeError(f"image: expected uint8 (0..255) or floats; got {array.dtype}")
    if not are_patches:
        side, P = grid.image // grid.patch, grid.patch
        cut = array.reshape(-1, side, P, side, P, grid.channels)
        array = cut.transpose(0, 1, 3, 2, 4, 5)  # (B, row, column, row and column in it, channel)
    array = array.reshape(-1, *patches)
    return _NORMALIZED[array] if array.dtype == np.uint8 else array


def as_tokens(grid: ViTConfig, cls_idx: ArrayLike | None, batch: int) -> NDArray[np.int64]:
    """Return the token that the head reads for each picture, (B,), from one index or B.

    Raises ShapeError, or LabelError for a token that does not exist.
    """
    tokens = np.asarray([0] if cls_idx is None else cls_idx)
    if tokens.dtype.kind not in "iu" or tokens.shape not in ((), (1,), (batch,)):
        raise ShapeError(
            f"cls_idx: expected one whole number, or one of each of {batch} pictures; got "
            f"{tokens.dtype} {tokens.shape}"
        )
    if tokens.min() < 0 or tokens.max() > grid.n_patches:
        raise LabelError(
            f"cls_idx: a token is 0 (the class token) or 1..{grid.n_patches} (a patch); got "
            f"{tokens.tolist()}"
        )
    return np.broadcast_to(tokens.astype(np.int64), (batch,))


def as_labels(grid: ViTConfig, labels: ArrayLike, batch: int) -> NDArray[Any]:
    """Return labels as whole numbers (B,), or dense (B, classes). Raises LabelError."""
    array = np.asarray(labels)
    shape, dense = array.shape, (batch, grid.classes)
    if array.dtype.kind in "iu" and (shape == (batch,) or (batch == 1 and shape == ())):
        return array.reshape(batch)
    if array.dtype.kind in "fiu" and (shape == dense or (batch == 1 and shape == dense[1:])):
        return array.reshape(dense).astype(np.float32)
    raise LabelError(
        f"labels: {batch} picture(s) need whole numbers ({batch},) or dense labels {dense}; got "
        f"{array.dtype} {array.shape}"
    )
