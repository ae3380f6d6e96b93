"""A training in a user's file, and functions beside it that give none."""

from __future__ import annotations

#: ``stages`` gives one, ``other`` something else, ``broken`` an error.
TRAINING = """
import torch
from torch import nn
from weft.runtime import Training

def stages():
    return Training({0: nn.Linear(4, 2)}, [], lambda s, m: torch.randn(3, 4), lambda s, m: torch.randn(3, 2),
                    nn.functional.mse_loss)

def other():
    return 3

def broken():
    return {}["weights"]
"""
