"""Every way to realize a recipe, each of them small, and a step of what is realized."""

import numpy as np
import vits
from llamas import SIZES, draw

import toynn
from toynn import GPT2Config, LlamaConfig, RecipeOptions
from toynn.recipes import GPT2, FromScratch, LoRA, VitTiny, WarmStart

OPTIONS = RecipeOptions(t_seq=8)
LLAMA = LlamaConfig(**SIZES)
GPT = GPT2Config(SIZES["vocab"], 16, 2, 32, 2, 16)


def warm(recipe, base):
    cfg = LlamaConfig(**SIZES, donor_d_in=8)
    if recipe.engine.is_built or not recipe.engine.is_declared:
        recipe.realize_scratch(cfg, RecipeOptions(t_seq=8, untied=True))
    recipe.build()


RECIPES = {
    "from_scratch": (FromScratch, lambda recipe, base: recipe.realize(LLAMA, OPTIONS)),
    "from_file": (FromScratch, lambda recipe, base: recipe.realize_from(base, t_seq=8)),
    "gpt2": (GPT2, lambda recipe, base: recipe.realize(GPT, OPTIONS)),
    "lora": (LoRA, lambda recipe, base: recipe.realize(base, None, 2, OPTIONS)),
    "warm_start": (WarmStart, warm),
    "vit": (VitTiny, lambda recipe, base: recipe.realize(vits.config(), RecipeOptions())),
}


def one_step(recipe):
    hp = toynn.AdamW.for_lora().hp_for_step(0)
    if isinstance(recipe, VitTiny):
        pictures, labels = vits.pictures(np.random.default_rng(0), 1)
        return recipe.step(pictures, None, labels, hp, True)
    ids, labels = draw(np.random.default_rng(0), length=8)
    return recipe.step(ids, None, labels, hp, True)
