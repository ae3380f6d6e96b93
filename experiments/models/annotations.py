"""How many operators of models that others wrote say how they split: annotations derived from captured graphs.

Each model of :mod:`experiments.lib.foreign_models`, in fp64 with a batch of 4, is captured; ``known`` are the operators
of its program that have an annotation, ``replicated`` those that every device computes whole, by kind. Writes
``annotations.json``.

    python -m experiments.models.annotations [--only GPT-2 ...]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from experiments.lib.foreign_models import MODELS, made, precision
from experiments.lib.provenance import begun
from weft import plans

ROWS = 4


def row(name: str) -> dict[str, Any]:
    """One model's operators."""
    with precision(name, torch.float64):
        model = made(name, ROWS, torch.float64)
        try:
            program = plans.program(model.module, model.args, model.kwargs)
        except ValueError as refusal:
            return {"model": name, "refused": str(refusal)}
    unknown = Counter(one.kind.removeprefix("aten.") for one in program.operations if one.kind.startswith("aten."))
    count = len(program.operations)
    return {"model": name, "operators": count, "known": count - unknown.total(), "replicated": dict(unknown)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print and write all models; those whose package is missing are left out, and said."""
    options, record = begun(__doc__, arguments, "annotations.json", only=list(MODELS))
    report: list[dict[str, Any]] = []
    for name in options.only:
        try:
            report.append(row(name))
        except ImportError as missing:
            report.append({"model": name, "missing": missing.name})
        print(json.dumps(report[-1]), flush=True)
    record.write({"rows": report})
    return 0


if __name__ == "__main__":
    main()
