"""Backends that do what they should not, each registered when this file is imported, as a user's file would be."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.registry import backend

Run = Callable[..., Sequence[Tensor]]
LINEAR = [("linear",)]


@backend("good", patterns=[("linear",), ("linear", "relu")], trains=True)
def good(part: GraphPart) -> Run:
    """What torch computes."""
    found: Run = part.module.forward
    return found


def _hangs(part: GraphPart) -> Run:
    while True:
        time.sleep(1)


def _raises(part: GraphPart) -> Run:
    raise RuntimeError("no kernel\nfor this")


#: What never gives anything, and how it ends.
ENDS: dict[str, Callable[[GraphPart], Any]] = {
    "crashes": lambda part: os.kill(os.getpid(), signal.SIGSEGV), "hangs": _hangs, "raises": _raises,
    "exits": lambda part: os._exit(3)}
#: What is done to a good result.
SPOILT: dict[str, Callable[[Tensor], Tensor]] = {
    "wrong": lambda y: 1.1 * y, "other-shape": Tensor.flatten, "no-numbers": lambda y: y * torch.nan}


def _spoilt(change: Callable[[Tensor], Tensor]) -> Callable[[GraphPart], Run]:
    return lambda part: lambda *given: tuple(map(change, part.module.forward(*given)))


for name, made in [*ENDS.items(), *((name, _spoilt(change)) for name, change in SPOILT.items())]:
    backend(name, patterns=LINEAR)(made)


@backend("absent", patterns=LINEAR, missing=lambda: "needs a library that is not installed")
def absent(part: GraphPart) -> Run:
    """Never called."""
    raise AssertionError


@backend("torn", patterns=lambda graph: [(0, 2)])
def torn(part: GraphPart) -> Run:
    """Of parts that are none."""
    raise AssertionError
