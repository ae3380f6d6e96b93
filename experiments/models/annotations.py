"""How many operators of models that others wrote say how they split: annotations derived from captured graphs.

Each model of :mod:`experiments.lib.foreign_models`, in fp64 with a batch of 4, is captured; ``known`` are the operators
of its program that have an annotation, ``replicated`` those that every device computes whole, by kind. Writes
``annotations.json``.

    python -m experiments.models.annotations [--only GPT-2 ...]
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter

import torch

from experiments.lib.foreign_models import MODELS, made, precision
from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft import plans

ROWS = 4


def row(name: str) -> Row:
    """One model's operators; which package is missing, or why it is refused."""
    try:
        with precision(name, torch.float64):
            model = made(name, ROWS, torch.float64)
            program = plans.program(model.module, model.args, model.kwargs)
    except (ImportError, ValueError) as refusal:
        return {"model": name, "refused": str(refusal)}
    unknown = Counter(one.kind.removeprefix("aten.") for one in program.operations if one.kind.startswith("aten."))
    count = len(program.operations)
    return {"model": name, "operators": count, "known": count - unknown.total(), "replicated": dict(unknown)}


@script("annotations.json", only=list(MODELS))
def main(options: Namespace, record: Record) -> None:
    record.rows(map(row, options.only))
