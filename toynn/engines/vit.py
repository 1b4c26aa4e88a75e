"""The engine of the vision transformer (toynn/models/vit.py): pictures in, classes out."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.data.batch import Batch
from toynn.engines.engine import Engine, Recorded
from toynn.engines.pictures import as_labels, as_patches, as_tokens
from toynn.errors import ConfigError, DataError, NonFiniteError
from toynn.formats import safetensors
from toynn.formats.files import write_atomically
from toynn.formats.safetensors import SafeTensors
from toynn.graph.tape import Tensor
from toynn.models import VIT, Model, ViTConfig, timm
from toynn.models.timm import check_tensors, described, metadata_of, resampled
from toynn.options import RecipeOptions

__all__ = ["ViTConfig", "ViTEngine"]

StrPath = str | os.PathLike[str]

_AT_ONCE = 64  # the most pictures in one forward pass of logits


@dataclass(frozen=True, kw_only=True)
class Pass(Recorded):
    """Handles of one recorded tape, with its inputs."""

    image: Tensor
    rows: Tensor


class ViTEngine(Engine[ViTConfig, Pass]):
    """A vision transformer and its training step.

    A call takes one or several pictures; their number may change from call to call:

        pixels   (H, W, C) or (B, H, W, C)
        patches  (n_patches, patch_size) or (B, n_patches, patch_size): rows of patches from the
                 top, each from the left; in a patch, rows of pixels, then columns, then channels

    uint8 becomes (x / 255 - 0.5) / 0.5; floats are used as they are.
    """

    class_names: tuple[str, ...] = ()  # the names of the classes, if known
    kept_classes: tuple[str, ...] = ()  # the classes whose rows of the head were loaded by name
    t_image: Tensor
    t_cls_idx: Tensor

    # -- Weights -------------------------------------------------------------------------------

    def _model_of(self, cfg: ViTConfig) -> Model[ViTConfig]:
        return VIT

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all weights, by timm's names, in timm's shapes."""
        return {
            name: VIT.outward(self.config, name, values)
            for name, values in super().weights().items()
        }

    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the last step's gradients of the mean loss, before clipping."""
        return {
            name: VIT.outward(self.config, name, values)
            for name, values in super().gradients().items()
        }

    def load_weights(self, weights: Mapping[str, ArrayLike]) -> None:
        """Replace all weights; names and shapes must match ``weights()``."""
        super().load_weights(
            {name: VIT.inward(self.config, name, w) for name, w in weights.items()}
        )

    # -- Files ---------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, path: StrPath, opts: RecipeOptions | None = None, *, backend: str = "cpu", **told: Any
    ) -> Self:
        """Return an engine with the weights of a safetensors file, ready to train; see ``read``."""
        engine = cls(backend)
        engine.read(path, opts, **told)
        return engine

    def declare_from(
        self,
        path: StrPath,
        opts: RecipeOptions | None = None,
        *,
        classes: int | None = None,
        image: int | None = None,
        **told: Any,
    ) -> None:
        """Declare what ``read`` makes of a file, before memory is allocated.

        ``told``: n_heads, act, norm_eps. Raises DataError for a file that is not such a model.
        """
        told = {"n_heads": None, "act": None, "norm_eps": None} | told
        cfg = _shapes_of(SafeTensors(Path(path)), classes, image, told)[1]
        self.declare(cfg, opts or RecipeOptions())

    def read(
        self,
        path: StrPath,
        opts: RecipeOptions | None = None,
        *,
        classes: int | None = None,
        image: int | None = None,
        n_heads: int | None = None,
        act: str | None = None,
        norm_eps: float | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        """Take the weights of a safetensors file, and compile the training step.

        The file comes from ``save`` or from timm. For timm's the defaults are d_model / 64 heads,
        act "gelu" and norm_eps 1e-6. Another ``image`` size resizes the position table. Another
        number of ``classes`` makes a new head, drawn with opts.seed. With ``class_names`` a class
        that the file names too keeps its row of the head; all other rows are new.

        Raises DataError for a file that is not such a model.
        """
        file = SafeTensors(Path(path))
        told = {"n_heads": n_heads, "act": act, "norm_eps": norm_eps}
        count = classes if class_names is None else len(class_names)
        stored, cfg, new_head = _shapes_of(file, count, image, told)
        if class_names is not None:
            names = timm.class_names(file, stored.classes) if "head.weight" in file.tensors else ()
            rows = {k: names.index(name) for k, name in enumerate(class_names) if name in names}
            if rows:
                check_tensors(file, stored.shapes())
            head = {name: file[name] for name in cfg.shapes() if name.startswith("head.") and rows}
            new_head = {name for name in cfg.shapes() if name.startswith("head.")}
        self.declare(cfg, opts or RecipeOptions())
        self.session.finalize_weights()
        weights = {name: file[name] for name in stored.shapes() if name not in new_head}
        weights["pos_embed"] = resampled(weights["pos_embed"], cfg.image // cfg.patch)
        weights |= {k: v for k, v in VIT.start(cfg, self.options) if k in new_head}
        if class_names is None:
            self.class_names = () if new_head else timm.class_names(file, cfg.classes)
        else:
            for name, values in head.items():
                weights[name] = np.array(weights[name])
                weights[name][list(rows)] = values[list(rows.values())]
            self.class_names = tuple(class_names)
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

    def build_forward(self) -> None:
        """Record the forward pass up to the loss: the first half of build_training_step."""
        super().build_forward()
        assert self._step is not None
        self.t_image, self.t_cls_idx = self._step.image, self._step.rows

    def _record_main(self) -> Pass:
        return self._record_loss(self.t_batch, dense=False)

    def _record_inputs(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        s, cfg = self.session, self.config
        image = s.input("image", (batch * cfg.n_patches, cfg.patch_size))
        rows = s.input("cls_idx", (batch,), "i32")
        return image, rows, VIT.forward(self.layers(batch), cfg, image, rows)

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

    # -- Running -------------------------------------------------------------------------------

    def _step_for(self, batch: int, *, dense: bool) -> Pass:
        """Return the training step for ``batch`` pictures, with dense labels or not."""
        if batch == self.t_batch and not dense:
            return self._check_built("step")
        key = ("step", batch, dense)
        return self._recorded(key, lambda: self._record_loss(batch, dense=dense))

    def _fitted(self, batch: Batch) -> tuple[Pass, Batch, dict[Tensor, ArrayLike]]:
        patches = as_patches(self.config, batch.inputs)
        tokens = as_tokens(self.config, batch.positions, len(patches))
        answers = as_labels(self.config, batch.labels, len(patches))
        step = self._step_for(len(patches), dense=answers.ndim == 2)
        assert step.labels is not None
        inputs = self._inputs(step, patches, tokens) | {step.labels: answers}
        return step, Batch(patches, tokens, answers), inputs

    def _inputs(
        self, found: Pass, patches: NDArray[Any], tokens: NDArray[np.int64]
    ) -> dict[Tensor, ArrayLike]:
        """Return the inputs: patches, and the batch's row of each picture's token."""
        first = np.arange(len(patches)) * (self.config.n_patches + 1)
        return {found.image: patches.reshape(found.image.shape), found.rows: first + tokens}

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
        self._check_built("logits")
        patches = as_patches(self.config, images)
        tokens = as_tokens(self.config, cls_idx, len(patches))
        parts = [slice(at, at + _AT_ONCE) for at in range(0, len(patches), _AT_ONCE)]
        with self.exclusively("logits()", signals=True):
            return np.concatenate([self._logits(patches[part], tokens[part]) for part in parts])

    def _logits(self, patches: NDArray[Any], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        s, batch = self.session, len(patches)
        found = s.record(("logits", batch), lambda: self._record_logits(batch))
        s.feed(self._inputs(found, patches, tokens), found.tape)
        s.run("loss", tape=found.tape)
        assert found.logits is not None
        return s.download(found.logits)

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
    file: SafeTensors, classes: int | None, image: int | None, told: dict[str, Any]
) -> tuple[ViTConfig, ViTConfig, set[str]]:
    """Return a file's model, the model to make of it, and the names of a new head's tensors.

    Raises DataError for a file that is not such a model.
    """
    found = described(file, list(asdict(ViTConfig())), told)
    if found["classes"] is None and classes is None:
        raise DataError(f"{file.path}: it has no head.weight: give the number of classes")
    try:
        stored = ViTConfig(**(found | {"classes": found["classes"] or classes}))
    except ConfigError as error:
        raise DataError(f"{file.path}: {error}") from error
    cfg = replace(
        stored,
        image=stored.image if image is None else image,
        classes=stored.classes if classes is None else classes,
    )
    head = {name for name in cfg.shapes() if name.startswith("head.")}
    new_head = head if cfg.classes != found["classes"] else set()
    check_tensors(file, stored.shapes(), new_head)
    return stored, cfg, new_head
