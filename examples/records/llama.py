"""A Llama-like model instead of GPT-2, in the precision medium; all else as in tokens.py."""

import tokens

tokens.MODEL = "from-scratch --d-model 128 --precision medium"
tokens.STEPS = {3: 4600, 5: 7700, 10: 15400}
train = tokens.train
