"""``toynn train vit``: from labelled pictures to a classifier in a run folder."""

import math
from argparse import BooleanOptionalAction
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.cli._flags import Flag, Once
from toynn.cli._numbers import real, whole
from toynn.cli._run_flags import DECAY, run_flags, shape_flags
from toynn.cli._text import fact, harmless
from toynn.cli._training import Training
from toynn.data.augment import Augment
from toynn.data.digest import digest, listing
from toynn.data.image_batches import Fitted, HeldOut, ImageBatch, RandomImages
from toynn.data.images import ImageData, Part
from toynn.data.png import png
from toynn.engines import ViTConfig, ViTEngine
from toynn.errors import ConfigError
from toynn.options import RecipeOptions
from toynn.recipes import VitTiny
from toynn.train import classify
from toynn.train.folder import RunFolder, Value
from toynn.train.options import Result
from toynn.train.protocols import Recipe

__all__ = ["ViTTraining"]

FOLDER_SIDE = 64  # pixels; pictures of a folder are scaled anyway
INIT_SCALE = 50  # over the root of the width: blocks then start with a std of 1 / that root
EVAL_BATCH = 64
SHOWN = 12  # pictures of a report
SHOWN_SIDE = 64  # their largest side, in pixels

_MODEL_FLAGS = (
    Flag(
        "image_size",
        f"width and height that pictures are scaled to (default: theirs; {FOLDER_SIDE} of files)",
        read=whole(1, 65536),
    ),
    Flag(
        "patch",
        "width and height of a patch; it must divide the image size (default: about an eighth)",
        read=whole(1, 65536),
        source="own",
    ),
    Flag(
        "norm",
        "the norms (default {default})",
        "layernorm",
        choices=("layernorm", "rmsnorm"),
        source="own",
    ),
    Flag(
        "act",
        "the activation (default {default})",
        "gelu",
        choices=("gelu", "silu"),
        source="may",
    ),
    Flag(
        "no_bias",
        "leave out the biases of linear layers",
        False,
        action="store_true",
        source="own",
    ),
    Flag(
        "init_scale",
        "factor of the standard deviation of the blocks' matrices, 0.02 (default 50 / sqrt(width))",
        read=real(0),
        to={RecipeOptions: "init_scale"},
        source="own",
    ),
    Flag(
        "init_from",
        "start from a .safetensors file with timm's names, or from the folder of a run",
        metavar="PATH",
    ),
)
_PICTURE_FLAGS = (
    Flag("flip", "mirror half of the pictures", False, action=BooleanOptionalAction),
    Flag(
        "crop",
        "move pictures by up to an eighth of their size",
        True,
        action=BooleanOptionalAction,
    ),
    Flag(
        "mixup",
        "mix pairs of pictures, by shares from Beta(N, N); 0 does not (default {default:g})",
        0.2,
        real(0),
    ),
    Flag(
        "label_smoothing",
        "spread so much of each label over all classes (default {default:g})",
        0.0,
        real(0, 0.99),
    ),
    Flag(
        "skip_unreadable",
        "pass over files that are no pictures, and count them",
        False,
        action="store_true",
    ),
    Flag(
        "eval_pictures",
        "evaluate on at most so many of the pictures held out (default {default})",
        2000,
        whole(1),
    ),
)


class OneFolder(Once):
    """Stores where the pictures are."""

    advice = "a run learns from one: put the pictures of both below one folder"


class ViTTraining(Training):
    """``toynn train vit``."""

    name = "vit"
    help = "a small vision transformer, on labelled pictures"
    flags = (
        Flag(
            "data",
            "a folder with one folder of pictures per class, or with train and valid folders of "
            "such; or a .npz file of images and labels; or a folder of MNIST's or CIFAR-10's "
            "binary files; without it, the handwritten digits of scikit-learn",
            metavar="PATH",
            action=OneFolder,
        ),
        *run_flags(name, "pictures", ("loss", "accuracy"), batch=64, lr=1e-3, steps=3000),
        DECAY,
        *shape_flags(64, heads="may"),
        *_MODEL_FLAGS,
        *_PICTURE_FLAGS,
    )
    unit, items = "images", "pictures"
    _commonest = 0.0  # accuracy of who always says the commonest class

    @property
    def mixes(self) -> bool:  # type: ignore[override]
        """Whether pictures or labels are mixed while training."""
        return bool(self.arguments.mixup or self.arguments.label_smoothing)

    def resolve(self) -> None:
        """Fill in what was not given; refuse what contradicts itself."""
        self.starts_from_source()

    def read(self) -> None:
        """Read the pictures."""
        arguments = self.arguments
        if arguments.data is None:
            self.data = ImageData.digits(arguments.seed)
        else:
            skip = arguments.skip_unreadable
            if Path(arguments.data).suffix in (".jsonl", ".json", ".txt", ".csv", ".parquet"):
                raise ConfigError(
                    f"--data {arguments.data}: these are texts, and vit learns pictures: a folder "
                    "with one of them for each class, .npz, MNIST's or CIFAR-10's files"
                )
            self.data = ImageData.read(arguments.data, arguments.seed, skip_unreadable=skip)

    def declared(self) -> tuple[Any, int]:
        """Return an engine of the model, before it takes memory; rows of a batch."""
        arguments = self.arguments
        if arguments.init_from is None:
            engine = VitTiny(arguments.backend).engine
            engine.declare(self._config(), self.options())
        else:
            engine = ViTEngine.declared_from(
                self._source(),
                self.options(),
                classes=len(self.data.classes),
                image=arguments.image_size,
                n_heads=arguments.heads,
                act=arguments.act,
                backend=arguments.backend,
            )
        return engine, engine.t_batch * (engine.config.n_patches + 1)

    def _source(self) -> Path:
        """Return the file that --init-from means."""
        path = Path(self.arguments.init_from)
        return path / "model.safetensors" if path.is_dir() else path

    def realize(self) -> Recipe:
        """Return the recipe, ready to step."""
        arguments, data = self.arguments, self.data
        recipe = VitTiny(arguments.backend)
        if arguments.init_from is None:
            scale = arguments.init_scale
            if scale is None:
                scale = INIT_SCALE / math.sqrt(arguments.d_model)
            recipe.realize(self._config(), self.options(init_scale=scale))
        else:
            recipe.realize_from(
                self._source(),
                self.options(),
                class_names=data.classes,
                image=arguments.image_size,
                n_heads=arguments.heads,
                act=arguments.act,
            )
        recipe.engine.class_names = data.classes
        return recipe

    def _config(self) -> ViTConfig:
        """Return the shape of a new model."""
        arguments, data = self.arguments, self.data
        image = arguments.image_size or data.side or FOLDER_SIDE
        return ViTConfig(
            image=image,
            patch=arguments.patch or _default_patch(image),
            channels=data.channels,
            d_model=arguments.d_model,
            n_heads=arguments.heads,
            d_ff=4 * arguments.d_model,
            n_layers=arguments.layers,
            classes=len(data.classes),
            norm=arguments.norm,
            act=arguments.act,
            bias=not arguments.no_bias,
        )

    def announce(self) -> None:
        """Print the pictures and the model."""
        data, config = self.data, self.recipe.engine.config
        count = len(data.train) + len(data.valid)
        print(fact("pictures", f"{data.name}: {count:,} of {len(data.classes)} classes"))
        print(f"            {len(data.train):,} to train on, {len(data.valid):,} held out")
        if data.animated:
            print(f"            {data.animated} files have several frames: the first is used")
        if self.arguments.init_from is not None:
            print(fact("", _head_said(self.recipe.engine)))
        side, grid = config.image, config.image // config.patch
        print(f"            as {side} x {side} x {config.channels}, in {grid} x {grid} patches")
        commonest = Counter(data.valid.labels.tolist()).most_common(1)[0][1]
        share = self._commonest = commonest / len(data.valid)
        print(f"baseline    always the commonest class: accuracy {share:.2%}")
        super().announce()

    def tables(self) -> dict[str, Mapping[str, Value]]:
        """Return what config.toml says of the pictures and the model."""
        data = self.data
        pictures: dict[str, Value] = {
            "name": data.name,
            "sha256": self._digest(),
            "train": len(data.train),
            "held_out": len(data.valid),
            "mean": 0.5,  # x / 255, less the mean, divided by the std
            "std": 0.5,
            "classes": data.classes,
        }
        return {"data": pictures, "model": asdict(self.recipe.engine.config)}

    def notes(self) -> dict[str, Any]:
        """Return the accuracy to compare with, too."""
        return {**super().notes(), "commonest": self._commonest}

    def _digest(self) -> str | None:
        """Return what tells one file or folder of pictures from another: of these, the listing."""
        path = self.arguments.data
        return None if path is None else (listing if Path(path).is_dir() else digest)(path)

    def batches(self) -> RandomImages:
        """Return random pictures, changed at random."""
        arguments, data = self.arguments, self.data
        augment = Augment(
            crop=-(-self.recipe.engine.config.image // 8) if arguments.crop else 0,
            flip=arguments.flip,
            mixup=arguments.mixup,
            smoothing=arguments.label_smoothing,
        )
        pictures, classes = self._fitted(data.train), len(data.classes)
        return RandomImages(pictures, classes, arguments.batch, arguments.seed, augment)

    def per_epoch(self) -> float:
        """Return how many batches have every picture once."""
        return len(self.data.train) / self.arguments.batch  # type: ignore[no-any-return]

    def valid(self) -> HeldOut:
        """Return pictures that are held out."""
        return self._held_out

    @cached_property
    def _held_out(self) -> HeldOut:  # which keeps what it has read
        return HeldOut(self._fitted(self.data.valid), EVAL_BATCH, self.arguments.eval_pictures)

    def _fitted(self, part: Part) -> Fitted:
        config = self.recipe.engine.config
        return Fitted(part, config.image, config.channels, self.data.unreadable)

    def measure(self, batch: ImageBatch) -> Mapping[str, float]:
        """Return the loss and the accuracy of a batch."""
        return classify.loss_and_accuracy(self.recipe.engine.logits(batch.image), batch.labels)

    def show(self, folder: RunFolder, result: Result) -> str:
        """Show which classes are taken for which; return how many pictures are right."""
        data = self.data
        matrix, pictures = _judged(self.recipe.engine, self.valid(), data.classes)
        right, shown = int(np.trace(matrix)), int(matrix.sum())
        folder.notes["confusion"] = {"classes": list(data.classes), "counts": matrix.tolist()}
        folder.notes["pictures"] = pictures
        _show_confusion(matrix, data.classes, folder)
        if data.unreadable:
            count, first = len(data.unreadable), data.unreadable[0]
            print(fact("skipped", f"{count} unreadable files; first: {first}"))
        return f"accuracy {right / shown:.2%}, {right:,} of {shown:,} right"


def _head_said(engine: ViTEngine) -> str:
    """Say what became of the head of the model that is started from."""
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
    """Return the smallest divisor of a picture's side from an eighth of it (2 to 16) on."""
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
    """Return the confusion matrix of the pictures held out, and some of them, judged.

    Half of those are the first mistakes, if there are so many.
    """
    labels, predicted = [], []
    wrong: list[dict[str, str]] = []
    right: list[dict[str, str]] = []
    for batch in valid:
        found = engine.predict(batch.image)
        labels.append(batch.labels)
        predicted.append(found)
        for picture, label, taken in zip(batch.image, batch.labels, found, strict=True):
            shown = right if label == taken else wrong
            if len(shown) < SHOWN:
                names = {"class": classes[label], "taken_for": classes[taken]}
                shown.append({"png": b64encode(_small(picture)).decode(), **names})
    matrix = classify.confusion(np.concatenate(labels), np.concatenate(predicted), len(classes))
    kept = wrong[: max(SHOWN // 2, SHOWN - len(right))]
    return matrix, [*kept, *right[: SHOWN - len(kept)]]


def _small(picture: NDArray[np.uint8]) -> bytes:
    """Return the PNG of a picture, of each pixel so many that its side is at most SHOWN_SIDE."""
    step = -(-picture.shape[0] // SHOWN_SIDE)
    return png(picture[::step, ::step])


def _show_confusion(matrix: NDArray[np.int64], classes: tuple[str, ...], folder: RunFolder) -> None:
    """Draw the confusion matrix into the folder; without matplotlib, print it."""
    if classify.plot_confusion(matrix, classes, folder.confusion):
        print(f"confusion   {folder.confusion}")
        return
    print(f"no picture  {folder.confusion.name} needs matplotlib: pip install matplotlib")
    print("--- confusion: a row for each class ---")
    print(harmless(classify.confusion_text(matrix, classes)))
    print("---")
