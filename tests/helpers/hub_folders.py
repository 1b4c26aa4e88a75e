"""Folders as people download them: transformers writes the model, in shards, and its tokenizer."""

import json

import torch
import transformers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

CORPUS = [
    "Once upon a time there was a little robot called Zork, who lived on the moon.",
    "Zork ate moon dust and 12 345 stars; it's what robots don't tell: caf\u00e9, na\u00efve!",
    "def f(x):\n    return x + 1\n\nThe quick brown fox jumps over the lazy dog.\n",
    "\u0427\u0442\u043e \u0438\u0441\u0442\u0438\u043d\u0430? \u4e2d\u6587\u5b57 \U0001f680",
] * 3
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _byte_level(cut, **more):
    tokenizer = Tokenizer(models.BPE(**more))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def smollm():
    """Digits one by one, and GPT-2's words."""
    cut = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False, use_regex=True)]
    return _byte_level(pre_tokenizers.Sequence(cut))


def llama3():
    """BOS before a text; whole words that are tokens need no merges."""
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    )
    tokenizer = _byte_level(cut, ignore_merges=True)
    bos = "<|im_start|>"
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
            ),
        ]
    )
    return tokenizer


def with_specials(data):
    """A tokenizer of tokenizer.json's data, whose texts begin with <s>, with SPECIALS added."""
    data["added_tokens"] = [each for each in data["added_tokens"] if each["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in SPECIALS[1:]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def sentences(first=False):
    """SentencePiece's kind: spaces are letters, what is no token is spelled as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if first:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    named = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=named, show_progress=False)
    tokenizer.train_from_iterator((word for line in CORPUS for word in line.split(" ")), trainer)
    data = json.loads(tokenizer.to_str())
    return with_specials(data)


def gemma4():
    """Merges over spaces, which are letters; no space is put before a text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    named = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=named, show_progress=False)
    tokenizer.train_from_iterator((part for line in CORPUS for part in line.split("\n")), trainer)
    data = json.loads(tokenizer.to_str())
    merges = data["model"]["merges"]
    used = {text for merge in merges for text in merge}
    last = [merge for merge in merges if "".join(merge) not in used]
    # Tokens that no merge makes: SentencePiece makes them, too.
    data["model"]["merges"] = [merge for merge in merges if merge not in last[::2]]
    return with_specials(data)


TOKENIZERS = {
    "gemma4": (gemma4, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "smollm": (smollm, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}),
    "llama3": (llama3, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
    "sentences": (sentences, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "first": (
        lambda: sentences(True),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
}


def save_tokenizer(folder, kind):
    """Write a tokenizer as transformers does; return transformers' own of the folder."""
    make, named = TOKENIZERS[kind]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make(), **named)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def save_model(folder, name, settings, dtype=torch.float32, shard="50KB"):
    """Write a model with random weights, gains and biases, in shards; return it in float32."""
    torch.manual_seed(0)
    settings = json.loads(json.dumps(settings))  # which the configuration may change
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings)).float()
    with torch.no_grad():
        for w in model.parameters():
            w.add_(torch.randn_like(w), alpha=0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    # Read again: `to` rounds what is no weight, too.
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
