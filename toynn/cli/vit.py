"""``toynn train vit``: from labelled pictures to a classifier in a run folder."""

import math
import time
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toynn.adamw import AdamW
from toynn.cli._numbers import real, whole
from toynn.cli._run import (
    add_run_arguments,
    add_shape_arguments,
    apply_settings,
    cosine,
    print_model,
    print_result,
    resolve_run,
    run_folder,
    run_loop,
)
from toynn.cli._text import harmless
from toynn.data.augment import Augment
from toynn.data.image_batches import Fitted, HeldOut, ImageBatch, RandomImages
from toynn.data.images import ImageData
from toynn.engines import ViTConfig
from toynn.errors import ConfigError
from toynn.options import RecipeOptions
from toynn.recipes import VitTiny
from toynn.train import classify
from toynn.train.folder import RunFolder, Value
from toynn.train.metrics import plot_losses

__all__ = ["add_parser"]

RECIPE = "vit"
FOLDER_SIDE = 64  # pixels; pictures of a folder are scaled anyway
#: What --init-from leaves no choice about, and the defaults without it.
FRESH = {
    "d_model": 64,
    "layers": 4,
    "heads": 4,
    "norm": "layernorm",
    "act": "gelu",
    "no_bias": False,
    "patch": None,
    "init_scale": None,
}
#: What the shapes in a file of timm's do not say, so that --init-from may need to be told.
NOT_IN_SHAPES = {"heads", "act"}
INIT_SCALE = 50  # over the root of the width: blocks then start with a std of 1 / that root
EVAL_BATCH = 64


def add_parser(recipes: Any) -> None:
    """Add the recipe to those of ``toynn train``."""
    help_ = "a small vision transformer, on labelled pictures"
    parser = recipes.add_parser(RECIPE, help=help_, description=help_, allow_abbrev=False)
    data = (
        "a folder with one folder of pictures per class, or with train and valid folders of such; "
        "or a .npz file of images and labels; or a folder of MNIST's or CIFAR-10's binary files; "
        "without it, the handwritten digits of scikit-learn"
    )
    parser.add_argument("--data", metavar="PATH", help=data)
    add_run_arguments(parser, RECIPE, "pictures", batch=64, lr=1e-3, steps=3000)
    add_shape_arguments(parser, FRESH)
    _add_model_arguments(parser)
    _add_picture_arguments(parser)
    parser.set_defaults(run=train_vit)


def _add_model_arguments(parser: ArgumentParser) -> None:
    side = f"width and height that pictures are scaled to (default: theirs; {FOLDER_SIDE} of files)"
    parser.add_argument("--image-size", type=whole(1, 65536), metavar="N", help=side)
    patch = "width and height of a patch; it must divide the image size (default: about an eighth)"
    parser.add_argument("--patch", type=whole(1, 65536), metavar="N", help=patch)
    norm, act = "the norms (default layernorm)", "the activation (default gelu)"
    parser.add_argument("--norm", choices=("layernorm", "rmsnorm"), help=norm)
    parser.add_argument("--act", choices=("gelu", "silu"), help=act)
    bias = "leave out the biases of linear layers"
    parser.add_argument("--no-bias", action="store_true", default=None, help=bias)
    scale = (
        "factor of the standard deviation of the blocks' matrices, 0.02 (default 50 / sqrt(width))"
    )
    parser.add_argument("--init-scale", type=real(0), metavar="N", help=scale)
    source = "start from a .safetensors file with timm's names, or from the folder of a run"
    parser.add_argument("--init-from", metavar="PATH", help=source)


def _add_picture_arguments(parser: ArgumentParser) -> None:
    flip, crop = "mirror half of the pictures", "move pictures by up to an eighth of their size"
    parser.add_argument("--flip", action=BooleanOptionalAction, default=False, help=flip)
    parser.add_argument("--crop", action=BooleanOptionalAction, default=True, help=crop)
    for option, kind, default, meaning in (
        ("--mixup", real(0), 0.2, "mix pairs of pictures, by shares from Beta(N, N); 0 does not"),
        ("--label-smoothing", real(0, 0.99), 0.0, "spread so much of each label over all classes"),
    ):
        help_ = f"{meaning} (default {default:g})"
        parser.add_argument(option, type=kind, default=default, metavar="N", help=help_)
    skip = "pass over files that are no pictures, and count them"
    parser.add_argument("--skip-unreadable", action="store_true", help=skip)
    limit = "evaluate on at most so many of the pictures held out (default 2000)"
    parser.add_argument("--eval-pictures", type=whole(1), default=2000, metavar="N", help=limit)


def train_vit(arguments: Namespace) -> int:
    """Train a classifier as the arguments say; return the exit code."""
    start = time.perf_counter()
    _resolve(arguments)
    RunFolder.check_absent(Path(arguments.out))
    data = _read(arguments)
    apply_settings(arguments)
    recipe, optimizer, schedule = build(arguments, data)
    config = recipe.engine.config
    _print_data(data, config)
    print_model(recipe.engine)

    shape = (config.image, config.channels, data.unreadable)
    augment = Augment(
        crop=-(-config.image // 8) if arguments.crop else 0,
        flip=arguments.flip,
        mixup=arguments.mixup,
        smoothing=arguments.label_smoothing,
    )
    batches = RandomImages(
        Fitted(data.train, *shape), len(data.classes), arguments.batch, arguments.seed, augment
    )
    valid = HeldOut(Fitted(data.valid, *shape), EVAL_BATCH, arguments.eval_pictures)

    def measure(batch: ImageBatch) -> dict[str, float]:
        return classify.loss_and_accuracy(recipe.engine.logits(batch.image), batch.labels)

    elsewhere = {"image_size", *FRESH}
    with run_folder(arguments, elsewhere, data=_described(data), model=asdict(config)) as folder:
        result = run_loop(
            arguments, recipe, batches, valid, optimizer, schedule, folder, unit="images",
            measure=measure, on_best=lambda: recipe.save(folder.model, overwrite=True),
        )  # fmt: skip

        recipe.engine.load_weights(folder.load_weights())
        matrix = _confusion(recipe.engine, valid, len(data.classes))
        right, shown = int(np.trace(matrix)), int(matrix.sum())
        if not result.interrupted:
            plot_losses(result.reports, folder.plot, {}, "picture")
            _show_confusion(matrix, data.classes, folder)
        if data.unreadable:
            count, first = len(data.unreadable), data.unreadable[0]
            print(f"skipped     {count} unreadable files; first: {first}")
        more = f"accuracy {right / shown:.2%}, {right:,} of {shown:,} right"
        print_result(result, more, folder, time.perf_counter() - start, "pictures")
    return 130 if result.interrupted else 0


def build(arguments: Namespace, data: ImageData) -> tuple[Any, AdamW, Any]:
    """Return the recipe, ready to step, its optimizer and its learning rates."""
    optimizer = AdamW.for_lora()
    optimizer.weight_decay = arguments.weight_decay
    recipe = VitTiny()
    if arguments.init_from is None:
        scale = arguments.init_scale
        if scale is None:
            scale = INIT_SCALE / math.sqrt(arguments.d_model)
        options = RecipeOptions(t_batch=arguments.batch, seed=arguments.seed, init_scale=scale)
        recipe.realize(_config(arguments, data), options)
    else:
        path = Path(arguments.init_from)
        recipe.realize_from(
            path / "model.safetensors" if path.is_dir() else path,
            RecipeOptions(t_batch=arguments.batch, seed=arguments.seed),
            classes=len(data.classes),
            image=arguments.image_size,
            n_heads=arguments.heads,
            act=arguments.act,
        )
    recipe.engine.class_names = data.classes
    return recipe, optimizer, cosine(arguments)


def _resolve(arguments: Namespace) -> None:
    """Fill in what was not given; refuse what contradicts itself."""
    resolve_run(arguments)
    if arguments.init_from is None:
        for name, value in FRESH.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, value)
        return
    for name in FRESH.keys() - NOT_IN_SHAPES:
        if getattr(arguments, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option}: the model that --init-from names has its own")


def _read(arguments: Namespace) -> ImageData:
    if arguments.data is None:
        return ImageData.digits(arguments.seed)
    skip = arguments.skip_unreadable
    return ImageData.read(arguments.data, arguments.seed, skip_unreadable=skip)


def _config(arguments: Namespace, data: ImageData) -> ViTConfig:
    """Return the shape of a new model."""
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


def _described(data: ImageData) -> dict[str, Value]:
    """Return what config.toml says of the pictures."""
    return {
        "name": data.name,
        "train": len(data.train),
        "held_out": len(data.valid),
        "mean": 0.5,  # x / 255, less the mean, divided by the std
        "std": 0.5,
        "classes": data.classes,
    }


def _print_data(data: ImageData, config: ViTConfig) -> None:
    count = len(data.train) + len(data.valid)
    print(f"pictures    {data.name}: {count:,} of {len(data.classes)} classes")
    print(f"            {len(data.train):,} to train on, {len(data.valid):,} held out")
    if data.animated:
        print(f"            {data.animated} files have several frames: the first is used")
    side, grid = config.image, config.image // config.patch
    print(f"            as {side} x {side} x {config.channels}, in {grid} x {grid} patches")
    commonest = Counter(data.valid.labels.tolist()).most_common(1)[0][1]
    print(f"baseline    always the commonest class: accuracy {commonest / len(data.valid):.2%}")


def _confusion(engine: Any, valid: HeldOut, classes: int) -> NDArray[np.int64]:
    """Return the confusion matrix of the pictures held out."""
    pairs = [(batch.labels, engine.predict(batch.image)) for batch in valid]
    labels, predicted = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return classify.confusion(labels, predicted, classes)


def _show_confusion(matrix: NDArray[np.int64], classes: tuple[str, ...], folder: RunFolder) -> None:
    """Draw the confusion matrix into the folder; without matplotlib, print it."""
    if classify.plot_confusion(matrix, classes, folder.confusion):
        print(f"confusion   {folder.confusion}")
        return
    print("--- confusion: a row for each class ---")
    print(harmless(classify.confusion_text(matrix, classes)))
    print("---")
