"""AdamW with its tuned rate, warm-up and batch instead of Muon; all else as in tokens.py."""

import tokens

tokens.STEPS = {1: 1250}
tokens.OPTIMIZER = "--batch 4 --lr 0.004 --warmup 500"
train = tokens.train
