"""RecipeOptions: defaults, what is accepted, what is refused and how."""

import numpy as np
import pytest

from toynn.engines import AdapterOptions, GPT2Config, LlamaConfig, ViTConfig
from toynn.errors import ConfigError
from toynn.options import RecipeOptions


def test_defaults():
    assert vars(RecipeOptions()) == {
        "t_seq": 0,
        "t_batch": 1,
        "weight_dtype": "f32",
        "untied": False,
        "qkv_bias": False,
        "seed": 0,
        "init_scale": 1.0,
        "checkpointing": False,
        "keep_attention": False,
        "recompute_cheap": False,
        "activations": "float32",
        "packed": False,
        "label_losses": False,
        "decay": "all",
        "optimizer": "adamw",
        "momentum": 0.95,
        "teacher_top_k": 0,
        "teacher_beta": 0.0,
        "teacher_temperature": 1.0,
        "prepack": "never",
        "precision": None,
        "n_threads": None,
    }


@pytest.mark.parametrize(
    ("given", "name"),
    [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), (0, "f32"), (1, "f16"), (30, "bf16")],
)
def test_weight_dtype_by_name_and_by_number(given, name):
    assert RecipeOptions(weight_dtype=given).weight_dtype == name


def test_numbers_of_numpy_become_plain_ones():
    options = RecipeOptions(t_seq=np.int64(32), seed=np.int32(-5), init_scale=np.float32(0.5))
    assert (options.t_seq, options.seed, options.init_scale) == (32, -5, 0.5)
    assert type(options.t_seq) is int
    assert type(options.init_scale) is float


def test_options_are_set_one_by_one():
    options = RecipeOptions()
    options.t_seq = 128
    options.weight_dtype = 30
    assert options == RecipeOptions(t_seq=128, weight_dtype="bf16")


REFUSED = [
    ("activations", "bf16", "activations must be one of float32, bfloat16"),
    ("t_seq", -1, "t_seq must be a whole number from 0 to 2147483647"),
    ("t_seq", 1.5, "t_seq must be a whole number from 0"),
    ("t_seq", True, "t_seq must be a whole number from 0"),
    ("t_batch", 0, "t_batch must be a whole number from 1"),
    ("t_batch", "2", "t_batch must be a whole number from 1"),
    ("weight_dtype", "float32", "weight_dtype must be f32, f16, bf16 or ggml's 0, 1, 30"),
    ("weight_dtype", 2, "weight_dtype must be"),
    ("weight_dtype", True, "weight_dtype must be"),
    ("weight_dtype", None, "weight_dtype must be"),
    ("decay", "none", "decay must be one of all, matrices"),
    ("decay", None, "decay must be"),
    ("precision", "low", "precision must be one of highest, high, medium, int8, auto, or None"),
    ("n_threads", 0, "n_threads must be a whole number from 1 to 2147483647, or None"),
    ("n_threads", True, "n_threads must be"),
    ("untied", 1, "untied must be True or False"),
    ("qkv_bias", "yes", "qkv_bias must be True or False"),
    ("seed", 0.5, "seed must be a whole number"),
    ("seed", None, "seed must be a whole number"),
    ("init_scale", -0.1, "init_scale must be a number of at least 0"),
    ("init_scale", float("inf"), "init_scale must be a number of at least 0"),
    ("init_scale", float("nan"), "init_scale must be a number of at least 0"),
    ("init_scale", "1", "init_scale must be a number of at least 0"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_bad_values_are_refused_at_once(name, value, message):
    options = RecipeOptions()
    for attempt in (
        lambda: RecipeOptions(**{name: value}),
        lambda: setattr(options, name, value),
    ):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert str(caught.value).startswith(f"RecipeOptions: {message}")
        assert str(caught.value).endswith(f"; got {value!r}")
    assert options == RecipeOptions()


def test_a_misspelt_option_is_refused():
    with pytest.raises(ConfigError, match="no option is called t_sequence; there are t_seq, "):
        RecipeOptions().t_sequence = 3


SIZES = {
    GPT2Config: ("vocab", "d_model", "n_heads", "d_ff", "n_layers", "context"),
    LlamaConfig: (
        *("vocab", "d_model", "n_heads", "n_kv_heads", "d_ff", "n_layers", "context"),
        *("head_dim", "donor_d_in"),
    ),
    ViTConfig: (
        *("image", "patch", "channels", "d_model", "n_heads", "d_ff", "n_layers", "classes"),
    ),
    AdapterOptions: ("rank",),
}


@pytest.mark.parametrize("options", SIZES)
def test_sizes_of_numpy_become_plain_ones(options):
    made = options(**{name: np.int64(4) for name in SIZES[options]})
    assert made == options(**dict.fromkeys(SIZES[options], 4))
    for name in SIZES[options]:
        assert type(getattr(made, name)) is int
        for wrong in (np.int32(-1), np.float64(4), 4.0, True, np.True_, "4", np.array([4])):
            with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
                options(**dict.fromkeys(SIZES[options], 4) | {name: wrong})
