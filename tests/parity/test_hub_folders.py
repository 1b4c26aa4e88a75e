"""Folders as they are downloaded, as bases: mapped, trained over, and their tokenizers.

transformers and PEFT write them, load what comes out, and say which ids and logits are right.
"""

import io
import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the parity group, is not installed")
pytest.importorskip("transformers", reason="transformers, the parity group, is not installed")
pytest.importorskip("tokenizers", reason="tokenizers, of the text extra, is not installed")

import torch
from hub_folders import CORPUS, SPECIALS, TOKENIZERS, save_model, save_tokenizer
from peft import PeftModel
from safetensors import safe_open
from safetensors.numpy import load_file
from some_adapters import draw
from transformers import AutoModelForCausalLM, AutoTokenizer
from vocabs import Judge, nasty_texts

from toynn import AdamW, RecipeOptions
from toynn.cli import main
from toynn.engines import frozen
from toynn.engines.converting import convert
from toynn.errors import AdapterError, ConfigError, DataError
from toynn.formats import adapters, bases, gguf, hf
from toynn.formats.adapters.identity import Identity
from toynn.formats.tokenizer import Tokenizer
from toynn.recipes import LoRA

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SIZES = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-3)
#: By tokenizer: the model that it goes with, and the type of its weights.
MODELS = {
    "smollm": ("LlamaConfig", torch.bfloat16, {"tie_word_embeddings": True}),
    "llama3": ("LlamaConfig", torch.float32, {}),
    "sentences": ("Phi3Config", torch.float16, {"pad_token_id": None}),
    "gemma4": ("LlamaConfig", torch.float32, {}),
    "first": ("Qwen2Config", torch.float16, {}),
}


def load_metadata(path):
    with safe_open(path, "numpy") as file:
        return file.metadata()


@pytest.fixture(scope="module", params=TOKENIZERS)
def folder(request, tmp_path_factory):
    """A folder, and transformers' tokenizer and model of it."""
    path = tmp_path_factory.mktemp("hub") / request.param
    tokenizer = save_tokenizer(path, request.param)
    name, dtype, more = MODELS[request.param]
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    rows = -(-len(tokenizer) // 8) * 8  # more rows than tokens, as many models have
    model = save_model(path, name, SIZES | ids | more | {"vocab_size": rows}, dtype)
    assert len(list(path.glob("model-*.safetensors"))) > 1
    return path, tokenizer, model


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor(ids)[None]).logits[0].double().numpy()


def assert_near(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_ids_are_those_of_autotokenizer(folder):
    path, theirs, _ = folder
    with hf.open(path) as model:
        ours = Tokenizer.of(model)
    specials = [*SPECIALS, "<tool>", "<s>", "</s>"]
    for text in (*CORPUS[:4], *nasty_texts(100, 1, specials)):
        for added in (True, False):
            assert ours.encode(text, added, True) == theirs.encode(
                text, add_special_tokens=added
            ), text
        plain = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert ours.encode(text, False) == plain, text
    for text in CORPUS[:4]:
        assert ours.decode(ours.encode(text)) == text
    assert (ours.bos, ours.eos) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.vocab_size > len(theirs)
    talk = [{"role": "user", "content": "Who is Zork?"}]
    rendered = theirs.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert ours.chat(talk, add_generation_prompt=True) == rendered
    ids = theirs.encode(rendered, add_special_tokens=False)
    begun = ours.add_bos and ids[0] != ours.bos  # which llama.cpp puts in front, too
    assert ours.encode_chat(talk) == [ours.bos] * begun + ids


def test_shards_are_mapped_and_multiplied_by(folder):
    path, _, theirs = folder
    ids = np.random.default_rng(0).integers(0, 300, 40)
    with bases.open(path) as model:
        engine = frozen(model)
        assert model.nbytes > engine.session.memory().mapped > 0.9 * model.nbytes - 2**15
    assert_near(engine.logits(ids), logits_of(theirs, ids))


@pytest.mark.parametrize("folder", ["smollm", "sentences"], indirect=True)
def test_an_adapter_over_a_folder_is_pefts_and_comes_back(folder, tmp_path):
    path, _, theirs = folder
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 300, (2, 24))
    recipe = LoRA()
    recipe.realize(path, None, 4, RecipeOptions(t_seq=24, seed=1), 8.0, "all-linear", init="peft")
    optimizer = AdamW.for_lora()
    optimizer.lr = 1e-2
    for k in range(3):
        recipe.step(ids, None, labels, optimizer.hp_for_step(k), k == 0)
    recipe.export_peft(tmp_path / "peft")
    recipe.export_adapter(tmp_path / "adapter.gguf")
    expected = recipe.engine.logits(ids)
    assert np.abs(expected - logits_of(theirs, ids)).max() > 0.1
    again = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    peft = PeftModel.from_pretrained(again, tmp_path / "peft").eval()
    assert_near(expected, logits_of(peft, ids), 2e-5)
    with bases.open(path) as model:
        for saved in ("peft", "adapter.gguf"):
            engine = frozen(model, adapters.load(tmp_path / saved, model))
            assert_near(engine.logits(ids), expected, 1e-6)


@pytest.mark.parametrize("folder", ["smollm", "first"], indirect=True)
def test_gradients_over_a_folder_are_pefts(folder):
    """Of the first step, where B is zero: B's own, in the order of the folder's rows."""
    from peft import LoraConfig, get_peft_model

    path, _, _ = folder
    ids, labels = np.random.default_rng(3).integers(0, 300, (2, 16))
    recipe = LoRA()
    recipe.realize(path, None, 4, RecipeOptions(t_seq=16, seed=1), 8.0, "attention")
    optimizer = AdamW.for_lora()
    optimizer.lr = 0.0
    recipe.step(ids, None, labels, optimizer.hp_for_step(0), True)
    recipe.export_peft(path / "start", overwrite=True)
    start = load_file(path / "start" / "adapter_model.safetensors")
    again = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    targets = sorted({name.split(".")[-3] for name in start})
    model = get_peft_model(again, LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    names = {name.replace(".default", ""): w for name, w in model.named_parameters()}
    with torch.no_grad():
        for name, values in start.items():
            names[name].copy_(torch.tensor(values))
    logits = model(input_ids=torch.tensor(ids)[None]).logits[0]
    torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
    hf_names = recipe.engine.model.matrices(recipe.engine.adapters)
    for name, gradient in recipe.engine.gradients().items():
        if name.endswith("lora_b"):
            module = hf_names[name.removesuffix(".lora_b")].removesuffix(".weight")
            theirs = names[f"base_model.model.{module}.lora_B.weight"].grad.numpy()
            assert_near(gradient, theirs, 1e-4)


@pytest.mark.parametrize("folder", ["smollm"], indirect=True)
def test_a_template_in_tokenizer_config(folder):
    path, theirs, _ = folder
    with hf.open(path) as model:
        before = Tokenizer.of(model).chat([{"role": "user", "content": "x"}])
    again = AutoTokenizer.from_pretrained(path)
    assert before == again.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert theirs.chat_template == again.chat_template


def judged(library, path, ids, adapter=None):
    """llama.cpp's logits."""
    model = library.Llama(
        str(path), lora_path=adapter and str(adapter), n_ctx=64, n_threads=1, n_threads_batch=1,
        logits_all=True, type_k=0, type_v=0, flash_attn=False, verbose=False,
    )  # fmt: skip
    model.eval([int(id) for id in ids])
    logits = np.array(model.scores[: len(ids)], np.float64)
    model.close()
    return logits


def nmse(got, expected):
    return ((got - expected) ** 2).sum() / (expected**2).sum()


@pytest.mark.llama_cpp
def test_llama_cpp_has_the_same_model_of_a_converted_folder(folder, tmp_path):
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path, tokenizer, theirs = folder
    convert(path, tmp_path / "model.gguf", "f32")
    ids = np.random.default_rng(0).integers(0, 300, 24)
    assert nmse(judged(library, tmp_path / "model.gguf", ids), logits_of(theirs, ids)) < 1e-10
    recipe = LoRA()
    recipe.realize(path, None, 4, RecipeOptions(t_seq=24, seed=1), 8.0, "all-linear", init="peft")
    optimizer = AdamW.for_lora()
    optimizer.lr = 1e-2
    for k in range(2):
        recipe.step(ids, None, np.roll(ids, -1), optimizer.hp_for_step(k), k == 0)
    recipe.export_adapter(tmp_path / "adapter.gguf")
    adapted = judged(library, tmp_path / "model.gguf", ids, tmp_path / "adapter.gguf")
    assert nmse(adapted, recipe.engine.logits(ids)) < 1e-9
    recipe.save(tmp_path / "fused.gguf", "f32")
    assert nmse(judged(library, tmp_path / "fused.gguf", ids), adapted) < 1e-9
    judge = Judge(library, tmp_path / "model.gguf")
    try:
        for text in (*CORPUS[:4], *nasty_texts(60, 5)):
            # Metaspace puts no space before a text that begins with one; llama.cpp does.
            text = text.lstrip(" \u2581") if path.name == "first" else text
            assert judge.encode(text, True, False) == tokenizer.encode(
                text, split_special_tokens=True
            ), text
    finally:
        judge.close()


@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("folder", ["smollm", "sentences"], indirect=True)
def test_types_of_a_converted_folder(folder, outtype, tmp_path, capsys):
    path, theirs, _ = folder
    with bases.open(path) as model:
        before = frozen(model).logits(np.arange(20))
        names = set(model.tensors)
    command = ["convert", str(path), "--outtype", outtype, "--out", str(tmp_path / "m.gguf")]
    assert main(command) == 0
    assert f"{len(names)} tensors" in capsys.readouterr().out
    with gguf.open(tmp_path / "m.gguf") as file:
        assert set(file.tensors) == names
        for name, info in file.tensors.items():
            assert info.type == ("F32" if len(info.shape) == 1 else outtype.upper()), name
        limit = {"f16": 1e-6, "bf16": 1e-4, "q8_0": 1e-3}[outtype]
        assert nmse(frozen(file).logits(np.arange(20)), before) < limit
        ours = Tokenizer.of(file)
        assert file.metadata["tokenizer.chat_template"] == theirs.chat_template
    for text in CORPUS[:4]:
        assert ours.encode(text) == theirs.encode(text)
    assert main(command) == 2
    assert "m.gguf: " in capsys.readouterr().err  # already exists, or is mapped still


@pytest.mark.parametrize("folder", ["smollm", "sentences"], indirect=True)
def test_copies_that_transformers_saves_are_the_model_of_an_adapter(folder, tmp_path):
    """In every type, and converted; a model whose gains differ is another one."""
    path, *_ = folder
    with bases.open(path) as model:
        adapters.write_peft(tmp_path / "peft", draw(model), model)
    told = Identity.read(load_metadata(tmp_path / "peft" / "adapter_model.safetensors"), "peft")
    assert told.count == 5 * SIZES["hidden_size"] and len(told.sums) > 60
    for name, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        copy = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(dtype)
        copy.save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(path).save_pretrained(tmp_path / name)
        convert(tmp_path / name, tmp_path / f"{name}.gguf", outtype="q8_0")
        for each in (tmp_path / name, tmp_path / f"{name}.gguf"):
            with bases.open(each) as model:
                assert model.metadata["general.architecture"] in ("llama", "phi3")
                adapters.load(tmp_path / "peft", model, strict=True)
    with torch.no_grad():
        copy.model.norm.weight.mul_(1.02)
    copy.save_pretrained(tmp_path / "other")
    with (
        bases.open(tmp_path / "other") as model,
        pytest.raises(AdapterError, match=r"made for \w+; .*other: 1\d of 64 compared gains"),
    ):
        adapters.load(tmp_path / "peft", model, strict=True)


@pytest.mark.parametrize("folder", ["smollm"], indirect=True)
def test_the_command_line_takes_folders(folder, tmp_path, capsys, monkeypatch):
    path, _, _ = folder
    monkeypatch.chdir(tmp_path)
    row = {
        "messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Zork."}]
    }
    (tmp_path / "talk.jsonl").write_text("\n".join([json.dumps(row)] * 4))
    model = ["--model", str(path)]
    flags = ["--steps", "2", "--seq", "32", "--warmup", "0", "--out", "run", "--threads", "1"]
    assert main(["train", "lora", *model, "--data", "talk.jsonl", *flags]) == 0
    said = capsys.readouterr().out
    assert f"toynn convert {path} --out model.gguf" in said and "expected  Zork." in said
    adapted = [*model, "--adapter", "run", "--threads", "1"]
    assert main(["generate", *adapted, "--chat", "--prompt", "Who?", "--max-tokens", "3"]) == 0
    assert main(["eval", *adapted, "--data", "talk.jsonl"]) == 0
    assert main(["fuse", *model, "--adapter", "run", "--out", "fused.gguf"]) == 0
    assert "and are BF16 now" not in capsys.readouterr().out
    assert main(["info", str(path)]) == 0
    assert "gpt2 (smollm), " in capsys.readouterr().out
    command = [
        "train",
        "from-scratch",
        "--init-from",
        str(path),
        "--data",
        "talk.jsonl",
        "--out",
        "own",
    ]
    assert main([*command, "--steps", "1", "--warmup", "0", "--seq", "32", "--batch", "1"]) == 0
    with gguf.open("own/model.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == "smollm"


def test_sentencepiece_without_tokenizer_json(tmp_path):
    """tokenizer.model alone: the ids of SentencePiece's own library, BOS in front."""
    library = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4), model_writer=model, model_type="bpe", vocab_size=420,
        byte_fallback=True, normalization_rule_name="identity", minloglevel=2,
        remove_extra_whitespaces=False, hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    config = {"added_tokens_decoder": {"420": {"content": "<|im_end|>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<s>"}))
    ours = Tokenizer.of(tmp_path, 424)
    theirs = library.SentencePieceProcessor(model_proto=model.getvalue())
    for text in (*CORPUS[:4], *nasty_texts(60, 2)):
        text = text.replace("\0", "")
        assert ours.encode(text, add_special=False) == theirs.EncodeAsIds(text), text
    assert ours.encode("Zork<|im_end|>", parse_special=True)[0::99] == [theirs.bos_id()]
    assert ours.encode("Zork<|im_end|>", parse_special=True)[-1] == 420
    unigram = model.getvalue().replace(b"\x18\x02", b"\x18\x01")
    (tmp_path / "tokenizer.model").write_bytes(unigram)
    with pytest.raises(DataError, match="expected a model of BPE"):
        Tokenizer.of(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"pickled")
    with pytest.raises(DataError, match="not a SentencePiece model"):
        Tokenizer.of(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    with pytest.raises(DataError, match=r"expected tokenizer\.json or tokenizer\.model"):
        Tokenizer.of(tmp_path)


WRONG = {
    "words only": ({"model": {"type": "WordLevel"}}, "model: expected BPE.*; got 'WordLevel'"),
    "no vocabulary": ({"model": {"type": "BPE", "vocab": [1]}}, "model.vocab: expected ids"),
    "merges": ({"model": {"vocab": {"a": 0}, "merges": [["a"]]}}, "model.merges: expected pairs"),
    "added": ({"added_tokens": [{"id": -1, "content": "x"}]}, "added_tokens: expected id"),
    "far": ({"added_tokens": [{"id": 2**30, "content": "x"}]}, "ids up to 1073741824, the model"),
    "around": ({"post_processor": {"type": "Wreath"}}, "Wreath is not known"),
    "beside": ({"post_processor": {"type": "BertProcessing"}}, "cls: expected text and id"),
    "step": ({"pre_tokenizer": {"type": "Nobody"}}, "does not make a tokenizer|expected GPT-2"),
    "words": ({"pre_tokenizer": None, "decoder": None}, "expected GPT-2's kind"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_tokenizer_that_is_wrong_is_refused(case, tmp_path):
    changes, message = WRONG[case]
    data = json.loads(TOKENIZERS["smollm"][0]().to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(data | changes))
    with pytest.raises(DataError, match=message) as error:
        Tokenizer.of(tmp_path, 408)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("folder", ["smollm"], indirect=True)
def test_a_cut_without_a_name_is_used_and_not_converted(folder, tmp_path):
    """Ids are right all the same; a GGUF file would give others."""
    path, _, _ = folder
    for file in path.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    data = json.loads((path / "tokenizer.json").read_text())
    data["pre_tokenizer"]["pretokenizers"].insert(
        0, {"type": "Punctuation", "behavior": "Isolated"}
    )
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    with hf.open(tmp_path) as model:
        ours = Tokenizer.of(model)
    for text in CORPUS[:4]:
        assert ours.encode(text) == theirs.encode(text)
    with pytest.raises(DataError, match=r"llama\.cpp does not know the way in which it cuts"):
        convert(tmp_path, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
    with pytest.raises(ConfigError, match="outtype must be f32"):
        convert(path, tmp_path / "m.gguf", "q9_9")
