"""The options of ``toynn train vit``."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from toynn.jobs.options import MODEL, SAVING, NewModelOptions, StrPath
from toynn.options import RecipeOptions, option, real, whole

FOLDER_SIDE = 64  # pixels; pictures of a folder are always scaled
TOP = 5  # likeliest classes, for the top-k accuracy of `toynn eval`


@dataclass(kw_only=True, repr=False, eq=False)
class ViTOptions(NewModelOptions):
    """The options of ``toynn train vit``: also the pictures, and how training augments them."""

    GROUP: ClassVar[str] = MODEL

    batch: int = option("pictures per step", 64)
    lr: float = 1e-3
    steps: int = 3000
    d_model: int = 64
    heads: int = option("number of attention heads; must divide --d-model", 4, source="may")
    data: StrPath | None = option(
        "folder of class folders, .npz file, or folder of MNIST or CIFAR-10 files (default: "
        "scikit-learn's handwritten digits)",
        None,
        metavar="PATH",
        once="a run has one data set: put all pictures below one folder",
    )
    flip: bool = option("mirror half of the pictures", False, negated=True)
    crop: bool = option("shift pictures by up to an eighth of their size", True, negated=True)
    mixup: float = option(
        "mix pairs of pictures by shares from Beta(N, N); 0 is off", 0.2, read=real(0)
    )
    label_smoothing: float = option(
        "spread this share of each label over all classes", 0.0, read=real(0, 0.99)
    )
    skip_unreadable: bool = option("skip and count files that cannot be read as pictures", False)
    eval_pictures: int = option(
        "evaluate on at most N held-out pictures", 2000, group=SAVING, read=whole(1)
    )
    image_size: int | None = option(
        f"scale pictures to N x N pixels (default: no scaling; {FOLDER_SIDE} for files)",
        None,
        read=whole(1, 65536),
    )
    patch: int | None = option(
        "patch width in pixels; must divide --image-size (default: about an eighth)",
        None,
        read=whole(1, 65536),
        source="own",
    )
    norm: Literal["layernorm", "rmsnorm"] = option("type of norm", "layernorm", source="own")
    act: Literal["gelu", "silu"] = option("activation function", "gelu", source="may")
    no_bias: bool = option("omit biases of linear layers", False, source="own")
    init_scale: float | None = option(
        "scale of the initial block matrices (default: 50 / sqrt(--d-model))",
        None,
        of=RecipeOptions,
        source="own",
    )
    init_from: StrPath | None = option(
        "start from a .safetensors file with timm's names or from a run folder",
        None,
        metavar="PATH",
        hashed=True,
    )
