"""Backends that do what they should not, each registered when this file is imported, as a user's file would be."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

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


@backend("crashes", patterns=LINEAR)
def crashes(part: GraphPart) -> Run:
    """Ends its process."""
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


@backend("hangs", patterns=LINEAR)
def hangs(part: GraphPart) -> Run:
    """Never ends."""
    while True:
        time.sleep(1)


@backend("wrong", patterns=LINEAR)
def wrong(part: GraphPart) -> Run:
    """A tenth too much."""
    return lambda *given: tuple(1.1 * y for y in part.module.forward(*given))


@backend("other-shape", patterns=LINEAR)
def other_shape(part: GraphPart) -> Run:
    """Flat."""
    return lambda *given: tuple(y.flatten() for y in part.module.forward(*given))


@backend("no-numbers", patterns=LINEAR)
def no_numbers(part: GraphPart) -> Run:
    """NaN."""
    return lambda *given: tuple(y * torch.nan for y in part.module.forward(*given))


@backend("raises", patterns=LINEAR)
def raises(part: GraphPart) -> Run:
    """Says why."""
    raise RuntimeError("no kernel\nfor this")


@backend("exits", patterns=LINEAR)
def exits(part: GraphPart) -> Run:
    """Without a word."""
    os._exit(3)


@backend("absent", patterns=LINEAR, missing=lambda: "needs a library that is not installed")
def absent(part: GraphPart) -> Run:
    """Never called."""
    raise AssertionError


@backend("torn", patterns=lambda graph: [(0, 2)])
def torn(part: GraphPart) -> Run:
    """Of parts that are none."""
    raise AssertionError
