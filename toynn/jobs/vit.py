"""``toynn train vit``: from labelled pictures to a classifier in a run folder."""

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.data.augment import Augment
from toynn.data.batch import Batch
from toynn.data.digest import digest, listing
from toynn.data.image_batches import Fitted, HeldOut, RandomImages
from toynn.data.images import Files, ImageData, Labelled
from toynn.data.png import png
from toynn.engines import ViTConfig, ViTEngine
from toynn.engines.engine import Engine
from toynn.errors import ConfigError
from toynn.jobs.job import Job
from toynn.jobs.vit_options import FOLDER_SIDE, ViTOptions
from toynn.options import RecipeOptions
from toynn.recipes import VitTiny
from toynn.system.platform import in_shell
from toynn.system.printing import fact, harmless
from toynn.train import classify
from toynn.train.folder import RunFolder, Value
from toynn.train.state import Result

INIT_SCALE = 50  # times 0.02 / sqrt(d_model): the std of new block matrices is 1 / sqrt(d_model)
EVAL_BATCH = 64
SHOWN = 12  # most pictures in a report
SHOWN_SIDE = 64  # their largest side, in pixels


class ViTJob(Job):
    """``toynn train vit``."""

    name = "vit"
    kind = ViTOptions
    options: ViTOptions
    unit, items = "images", "pictures"
    _commonest = 0.0  # accuracy of always predicting the commonest class

    def resolve(self) -> None:
        """Do nothing: the defaults of options suffice."""

    def read(self) -> None:
        """Read the pictures."""
        path, seed = self.options.data, self.recipe_options().seed
        if path is None:
            self.data = ImageData.digits(seed)
            return
        skip = self.options.skip_unreadable
        self.data = ImageData.read(path, seed, skip_unreadable=skip)

    def declared_with(self, options: RecipeOptions) -> VitTiny:
        """Return an engine of the model, before it takes memory.

        Raises ConfigError for pictures that cannot be cut into patches.
        """
        engine = VitTiny(self.options.backend)
        if self.starts_from_source:
            classes = len(self.data.classes)
            engine.declare_from(self._source(), options, classes=classes, **self._told())
        else:
            engine.declare(self._config(), options)
        return engine

    def declared(self) -> tuple[Any, int]:
        """Return such an engine, and the number of rows of a batch: patches and class tokens."""
        engine = self.declared_with(self.all_options())
        return engine, engine.t_batch * (engine.config.n_patches + 1)

    def _source(self) -> Path:
        """Return the file that --init-from names."""
        path = Path(str(self.options.init_from))
        return path / "model.safetensors" if path.is_dir() else path

    def _told(self) -> dict[str, Any]:
        """Return the options that complete or override the file that training starts from."""
        options = self.options
        return {"image": options.image_size, "n_heads": options.heads, "act": options.act}

    def realize(self) -> Engine[Any]:
        """Return the recipe, ready to step.

        Raises ConfigError for pictures that cannot be cut into patches.
        """
        recipe, classes = VitTiny(self.options.backend), self.data.classes
        if self.starts_from_source:
            path, options = self._source(), self.recipe_options()
            recipe.realize_from(path, options, class_names=classes, **self._told())
        else:
            config, scale = self._config(), self.options.init_scale
            if scale is None:
                scale = INIT_SCALE / math.sqrt(config.d_model)
            recipe.realize(config, self.recipe_options(init_scale=scale))
        recipe.class_names = classes
        return recipe

    def _config(self) -> ViTConfig:
        """Return the shape of a new model."""
        options, data = self.options, self.data
        image = options.image_size or data.side or FOLDER_SIDE
        return ViTConfig(
            image=image,
            patch=options.patch or _default_patch(image),
            channels=data.channels,
            d_model=options.d_model,
            n_heads=options.heads,
            d_ff=4 * options.d_model,
            n_layers=options.layers,
            classes=len(data.classes),
            norm=options.norm,
            act=options.act,
            bias=not options.no_bias,
        )

    def announce(self) -> None:
        """Print the pictures and the model."""
        data, config = self.data, self.recipe.config
        count = len(data.train) + len(data.valid)
        print(fact("pictures", f"{data.name}: {count:,} of {len(data.classes)} classes"))
        print(f"            {len(data.train):,} to train on, {len(data.valid):,} held out")
        if data.animated:
            print(f"            {data.animated} files have several frames: the first is used")
        if self.starts_from_source:
            print(fact("", _head_said(self.recipe)))
        side, grid = config.image, config.image // config.patch
        print(f"            as {side} x {side} x {config.channels}, in {grid} x {grid} patches")
        commonest = Counter(data.valid.labels.tolist()).most_common(1)[0][1]
        share = self._commonest = commonest / len(data.valid)
        print(f"baseline    always the commonest class: accuracy {share:.2%}")
        super().announce()

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return config.toml's tables of the pictures and the model."""
        data = self.data
        pictures: dict[str, Value] = {
            "name": self.directory.word(data.name),
            "sha256": self._digest(),
            "train": len(data.train),
            "held_out": len(data.valid),
            "mean": 0.5,  # inputs are (x / 255 - mean) / std
            "std": 0.5,
            "classes": data.classes,
        }
        return {"data": pictures, "model": asdict(self.recipe.config)}

    def notes(self) -> dict[str, Any]:
        """Add the accuracy of the commonest class."""
        return {**super().notes(), "commonest": self._commonest}

    def _digest(self) -> str | None:
        """Return the digest of a file of pictures; for a folder, the digest of its listing."""
        path = self.options.data
        return None if path is None else (listing if Path(path).is_dir() else digest)(path)

    def batches(self) -> RandomImages:
        """Return random pictures, augmented at random."""
        job_options, data, options = self.options, self.data, self.recipe_options()
        augment = Augment(
            crop=-(-self.recipe.config.image // 8) if job_options.crop else 0,
            flip=job_options.flip,
            mixup=job_options.mixup,
            smoothing=job_options.label_smoothing,
        )
        pictures, classes = self._fitted(data.train), len(data.classes)
        return RandomImages(pictures, classes, options.t_batch, options.seed, augment)

    def per_epoch(self) -> float:
        """Return the number of batches that hold every picture once."""
        return len(self.data.train) / self.recipe_options().t_batch

    def valid(self) -> HeldOut:
        """Return the held-out pictures."""
        return self._held_out

    @cached_property
    def _held_out(self) -> HeldOut:  # cached, because it keeps the pictures that it has read
        return HeldOut(self._fitted(self.data.valid), EVAL_BATCH, self.options.eval_pictures)

    def _fitted(self, part: Labelled) -> Fitted:
        config = self.recipe.config
        return Fitted(part, config.image, config.channels, self.data.unreadable)

    def measure(self, batch: Batch) -> Mapping[str, float]:
        """Return the loss and the accuracy of a batch."""
        return classify.loss_and_accuracy(self.recipe.logits(batch.inputs), batch.labels)

    def epilogue(self, folder: RunFolder, result: Result) -> Iterator[str]:
        """Yield a command to try the model, on a held-out file or on the data's arrays."""
        run, pictures = in_shell(folder.path), self.data.valid.pictures
        if isinstance(pictures, Files):
            yield f"try it      toynn predict --model {run} {in_shell(pictures.paths[0])}"
            return
        path = self.options.data
        data = "" if path is None else f" --data {in_shell(path)}"
        yield f"try it      toynn eval --model {run}{data}"

    def show(self, folder: RunFolder, result: Result) -> str:
        """Show the confusion matrix; return the accuracy."""
        data = self.data
        matrix, pictures = _judged(self.recipe, self.valid(), data.classes)
        right, shown = int(np.trace(matrix)), int(matrix.sum())
        folder.notes["confusion"] = {"classes": list(data.classes), "counts": matrix.tolist()}
        folder.notes["pictures"] = pictures
        print("--- confusion: a row for each class ---")
        print(harmless(classify.confusion_text(matrix, data.classes)))
        print("---")
        if data.unreadable:
            count, first = len(data.unreadable), data.unreadable[0]
            print(fact("skipped", f"{count} unreadable files; first: {first}"))
        return f"accuracy {right / shown:.2%}, {right:,} of {shown:,} right"


def _head_said(engine: ViTEngine) -> str:
    """Say whether the source's head is kept, kept in part, or new."""
    kept, names = engine.kept_classes, engine.class_names
    if len(kept) == len(names):
        return "the head is kept: the model has classes of the same names"
    if not kept:
        return "the head is new: the model has no class of these names"
    new = [name for name in names if name not in kept]
    more = f" and {len(new) - 3} more" if len(new) > 3 else ""
    return (
        f"the head keeps {len(kept)} of {len(names)} classes, by their names; new: "
        f"{', '.join(new[:3])}{more}"
    )


def _default_patch(image: int) -> int:
    """Return the least divisor of a picture's side that is at least an eighth of it (2 to 16)."""
    least = min(max(2, -(-image // 8)), 16)
    patch = next((p for p in range(least, image // 2 + 1) if image % p == 0), None)
    if patch is None:
        raise ConfigError(
            f"pictures of {image} x {image} cannot be cut into patches of {least} or more: choose "
            "another --image-size, or --patch"
        )
    return patch


def _judged(
    engine: Any, valid: HeldOut, classes: tuple[str, ...]
) -> tuple[NDArray[np.int64], list[dict[str, str]]]:
    """Return the confusion matrix of the held-out pictures, and SHOWN pictures with their classes.

    Half of the shown pictures are the first mistakes, if there are so many.
    """
    labels, predicted = [], []
    wrong: list[dict[str, str]] = []
    right: list[dict[str, str]] = []
    for batch in valid:
        probabilities = engine.predict(batch.inputs)
        labels.append(batch.labels)
        predicted.append(probabilities)
        for picture, label, taken in zip(batch.inputs, batch.labels, probabilities, strict=True):
            shown = right if label == taken else wrong
            if len(shown) < SHOWN:
                names = {"class": classes[label], "taken_for": classes[taken]}
                shown.append({"png": b64encode(_small(picture)).decode(), **names})
    matrix = classify.confusion(np.concatenate(labels), np.concatenate(predicted), len(classes))
    kept = wrong[: max(SHOWN // 2, SHOWN - len(right))]
    return matrix, [*kept, *right[: SHOWN - len(kept)]]


def _small(picture: NDArray[np.uint8]) -> bytes:
    """Return the PNG of a picture; pixels are skipped so that its side is at most SHOWN_SIDE."""
    step = -(-picture.shape[0] // SHOWN_SIDE)
    return png(picture[::step, ::step])
