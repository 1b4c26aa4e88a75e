"""docs/seed-names.md: every upstream name has a row, and every name that a row gives exists.

With TOYNN_SEEDS set to the folder of the upstream API pages, the names here are compared with them.
"""

import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from toynn.engines import GPT2Config

PAGE = Path(__file__).parents[2] / "docs" / "seed-names.md"

SEED_NAMES = {
    "AdamW": """
        AdamW initialize MODE_UNSET MODE_FROM_SCRATCH MODE_LORA lr beta1 beta2 eps
        weight_decay bias_correct mode for_from_scratch for_lora hp hp_for_step
    """,
    "RecipeOptions": """
        RecipeOptions t_seq t_batch weight_dtype untied qkv_bias seed init_scale
    """,
    "Mat": """
        Mat flat
    """,
    "GPT2SeqEngine": """
        GPT2SeqEngine initialize LN_EPS sess g_vocab g_d_model g_n_heads g_d_head g_d_ff
        g_n_layers g_context g_t_tok g_t_pos g_t_labels g_t_hp g_t_loss g_t_logits g_wte
        g_wpe g_ln1_g g_ln1_b g_w_q g_b_q g_w_k g_b_k g_w_v g_b_v g_w_o g_b_o g_ln2_g
        g_ln2_b g_fc_w g_fc_b g_pr_w g_pr_b g_lnf_g g_lnf_b g_weights g_opt_m g_opt_v
        g_rng g_rb_rc g_cb_rc rand_unit random_mat const_mat alloc_w1 alloc_w2 realize!
        build_forward! build_train_step! step!
    """,
    "TinyNN": """
        TinyNN TinyNNMetal tnn_session_new tnn_session_set_graph_capacity tnn_null_ptr
        tnn_input_1d_f32_persistent tnn_input_2d_f32_persistent tnn_set_param
        tnn_finalize_weights tnn_zero_tensor tnn_input_1d_f32 tnn_input_2d_f32
        tnn_input_1d_i32 upload_row_major upload_int_array tnn_upload_from_float_array
        tnn_add tnn_matmul tnn_get_rows tnn_layer_norm tnn_gelu tnn_scale tnn_softmax
        tnn_diag_mask_inf tnn_transpose tnn_cont_2d tnn_concat tnn_cross_entropy_loss
        tnn_set_output tnn_set_loss tnn_build_forward_only tnn_build_backward
        tnn_tensor_grad tnn_opt_step_adamw tnn_extend_backward_graph tnn_realize_backward
        tnn_graph_reset tnn_graph_reset_grads_only tnn_compute_backward tnn_download
        download_row_major tnn_scratch_get tnn_gguf_load tnn_gguf_get_u32
        tnn_gguf_find_index tnn_gguf_read_f32_to_doubles tnn_gguf_free
    """,
    "WarmStartMetal": """
        WarmStartMetal initialize ws_cache ws_step_index ws_t_loss ws_t_labels ws_t_hp
        donor_embed_width realize_scratch! realize_warm! upload_donor! build! step!
    """,
    "LlamaSeqEngineMetal": """
        LlamaSeqEngineMetal realize_for_random_init build_training_step sess
        t_seq_token_ids t_seq_positions t_seq_token_embed vocab donor_d_in enable_lora_q!
        enable_lora_q_adamw! realize_for_mmap upload_lora_q_init!
    """,
    "LoRAMetal": """
        LoRAMetal initialize lora_cache lora_step_index lora_t_loss lora_t_labels
        lora_t_hp realize! step!
    """,
    "Only mentioned": """
        FromScratch LoRA LlamaSeqEngine Trainer W_proj full_finetune train_embeddings
    """,
    "VitTiny": """
        VitTiny initialize vt_cache vt_t_loss realize! step! realize_for_random_init
        build_training_step sess t_image t_cls_idx t_labels t_hp
    """,
}

# A row of the table, a path in it, the key of a weight.
ROW = re.compile(r"^\| `([^`]+)` \| (.+) \|$")
PATH = re.compile(r"`(toynn\.[\w.]+)`( \(attribute\))?")
KEY = re.compile(r"`((?:blk\.N\.)?\w+\.(?:weight|bias))`")

RUBY = {"new", "rb"}  # what the patterns below find beside names: Ruby's constructor, file names


def read_page():
    rows, section = {}, ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif match := ROW.match(line):
            key = (section, match[1])
            assert key not in rows, f"{key} has two rows"
            rows[key] = match[2]
    return rows


ROWS = read_page()


def resolve(path):
    """Import the longest module of a dotted path; return its parent object and the last name."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        try:
            found = import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(f"{error.name}"):
                raise
            continue
        rest = parts[end:]
        break
    if not rest:
        return found, None
    for part in rest[:-1]:
        found = getattr(found, part)
    return found, rest[-1]


def declares(cls, name):
    """Whether instances of cls have the attribute: on the class, annotated, or set when made."""
    annotated = any(name in vars(base).get("__annotations__", {}) for base in cls.__mro__)
    return annotated or hasattr(cls, name) or hasattr(cls(), name)


def test_every_name_of_the_seeds_has_a_row_and_no_row_is_left_over():
    expected = {(section, name) for section, names in SEED_NAMES.items() for name in names.split()}
    assert expected - ROWS.keys() == set()
    assert ROWS.keys() - expected == set()


@pytest.mark.parametrize(("section", "name"), ROWS, ids=lambda part: part)
def test_the_name_in_toynn_exists(section, name):
    here = ROWS[section, name]
    paths = PATH.findall(here)
    assert paths or here.startswith(("gone: ", "later: "))
    for path, attribute in paths:
        parent, last = resolve(path)
        if attribute:
            assert isinstance(parent, type) and declares(parent, last), path
        elif last is not None:
            assert hasattr(parent, last), path


def test_weights_are_called_what_the_engine_calls_them():
    shapes = GPT2Config(vocab=3, d_model=4, n_heads=2, d_ff=8, n_layers=1, context=5).shapes()
    named = {key for here in ROWS.values() if ".parameters`" in here for key in KEY.findall(here)}
    assert {key.replace("blk.N.", "blk.0.") for key in named} == set(shapes)


@pytest.mark.skipif("TOYNN_SEEDS" not in os.environ, reason="TOYNN_SEEDS does not name a folder")
def test_the_list_of_names_is_that_of_the_seeds():
    files = sorted(Path(os.environ["TOYNN_SEEDS"]).glob("*.txt"))
    assert len(files) == 5
    text = "\n".join(file.read_text("utf-8") for file in files)
    patterns = (
        r"@(\w+)",  # attributes
        r"\bdef (?:self\.)?([\w]+[!?]?)",
        r"#(\w+!?) ?⇒",
        r"#(\w+)Object\b",
        r"(?:TinyNN|TinyNNMetal)\.(\w+)",
        r"(?:_cache|opts|cfg|adamw|mat|hp)\.([a-z]\w*!?)",
        r"\b(tnn_\w+)",
        r"^([A-Z][A-Z_0-9]+) =$",
        r"(?:Toy::(?:\w+::)*)(\w+)",
        r"\b(TinyNN|TinyNNMetal|Mat)\b",
    )
    found = {name for pattern in patterns for name in re.findall(pattern, text, re.MULTILINE)}
    listed = {name for names in SEED_NAMES.values() for name in names.split()}
    assert found - listed - RUBY == set()
    assert {name for name in listed if name not in text} == set()
