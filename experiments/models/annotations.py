"""How many operators of models that others wrote say how they split: annotations derived from captured graphs.

Each model of :mod:`experiments.lib.foreign_models`, in fp64 with a batch of 4, is captured; ``known`` are the operators
of its program that have an annotation, ``replicated`` those that every device computes whole, by kind. ``difference``:
of the loss, or of any parameter's gradient, that the program's operators compute, from torch's on the module,
relative to the largest element (at least 1). ``cut`` are the operators that :func:`weft.plans.tensor_parallel` cuts
over 2 devices, ``weights_cut`` how many of those that read weights of two dimensions or more (``of_weights``),
``communications`` what that plan sends in a step, and ``parallel_difference`` how far what 2 virtual devices compute is
from what one does. Writes ``annotations.json``.

    python -m experiments.models.annotations [--only GPT-2 ...] [--no-values]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.lib.foreign_models import MODELS, Model, made, precision
from experiments.lib.provenance import begun
from weft import plans
from weft.app.plans.checking import error, run_dense

ROWS = 4


def row(name: str, *, values: bool) -> dict[str, Any]:
    """One model's operators."""
    with precision(name, torch.float64):
        model = made(name, ROWS, torch.float64)
        try:
            program = plans.program(model.module, model.args, model.kwargs)
        except ValueError as refusal:
            return {"model": name, "refused": str(refusal)}
        loss = model.module(*model.args, **model.kwargs)
    loss = loss if isinstance(loss, Tensor) else loss.loss
    unknown = Counter(one.kind.removeprefix("aten.") for one in program.operations if one.kind.startswith("aten."))
    count = len(program.operations)
    found = {"model": name, "operators": count, "known": count - unknown.total(), "replicated": dict(unknown)}
    if not unknown:
        output = next(name for name in program.outputs if program.tensors[name].shape == ())
        whole = plans.with_backward(program, [output])
        plan = plans.tensor_parallel(plans.Plan(whole), range(2))
        done = plan.preserve()
        of_weights = [one.name for one in program.operations if any(
            program.tensors[name].source == "parameter" and len(program.tensors[name].shape) > 1
            for name in one.inputs)]
        cut = {one.name for one in program.operations if any(cut.along for cut in plan.planned.cuts_of(one.name))}
        found |= {"cut": len(cut), "of_weights": len(of_weights), "weights_cut": len(cut & set(of_weights)),
                  "communications": len(done.communications)}
        if values:
            given = arrays(model, program) | {f"d({output}) given": np.ones(())}
            found |= {"difference": difference(model, run_dense(whole, given), output, loss),
                      "parallel_difference": error(done, given)}
    return found


def arrays(model: Model, program: plans.Program) -> dict[str, Any]:
    """Parameters, buffers, constants and inputs by the program's names."""
    given = {name: tensor.detach().numpy() for name, tensor in (
        *model.module.named_parameters(remove_duplicate=False), *model.module.named_buffers(remove_duplicate=False))}
    exported = torch.export.export(model.module, model.args, model.kwargs)
    given |= {name: one.detach().numpy() for name, one in exported.constants.items() if isinstance(one, Tensor)}
    inputs = [name for name, tensor in program.tensors.items() if tensor.source == "input"]
    given |= {name: model.kwargs[name].numpy() for name in inputs if name in model.kwargs}
    rest = [name for name in inputs if name not in given]
    return given | dict(zip(rest, [one.numpy() for one in model.args], strict=True))


def difference(model: Model, found: dict[str, Any], output: str, loss: Tensor) -> float:
    """Of loss and gradients from torch's."""
    torch.autograd.backward(loss)
    most = abs(float(found[output]) - float(loss.detach()))
    for parameter in model.module.parameters():
        names = [name for name, one in model.module.named_parameters(remove_duplicate=False) if one is parameter]
        total = sum((found[f"d({name})"] for name in names if f"d({name})" in found), np.zeros(parameter.shape))
        wanted = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        most = max(most, float(np.abs(total - wanted).max()) / max(1.0, float(np.abs(wanted).max())))
    return most


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print and write all models; those whose package is missing are left out, and said."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--values", action=argparse.BooleanOptionalAction, default=True)
    options, record = begun(parser, arguments, "annotations.json")
    report: list[dict[str, Any]] = []
    for name in options.only:
        try:
            report.append(row(name, values=options.values))
        except ImportError as missing:
            report.append({"model": name, "missing": missing.name})
        print(json.dumps(report[-1]), flush=True)
    record.write({"rows": report})
    return 0


if __name__ == "__main__":
    main()
