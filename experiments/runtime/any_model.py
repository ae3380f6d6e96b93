"""Foreign models captured, cut between operators and run back stage by stage: how exact their gradients are.

    python -m experiments.runtime.any_model [--only NAME ...]

Each model is tiny, with random weights. It is exported and cut into two and three stages at operators (thirds of the
row, moved to the next place where a cut may be). One micro-batch then goes forward and back through the stages in one
process, with nothing between two stages but the values of their ports; whole backwards, split ones, and split ones in
which all weight gradients wait that can (those of norms, scales and biases too). Told are the operators, the values
that cross, the largest relative error of a gradient in fp64 (of models with experts also in fp32, where they multiply
by groups), and the share of parameters whose gradient waits for W. Models of transformers are left out where it is not
installed, with that reason. Writes ``any_model.json``; exits with 1 where a gradient is not the model's.
``any_model_ranks`` trains the same models on ranks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from experiments.lib.foreign_models import MODELS, made, precision
from experiments.lib.provenance import RESULTS, Record
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import BATCH, Cut, crossings
from weft.runtime.captured.loss import LOSS, LossStage, loss_of
from weft.runtime.captured.purity import Purity
from weft.runtime.train.stage import StageRunner, deferred_parameters

__all__ = ["Result", "main", "measured"]

ROWS = 4
#: Models whose experts are products by groups in fp32, and others in fp64.
GROUPED = ("Mixtral", "Qwen2-MoE")

#: Largest relative errors of a gradient that count as none, in fp64 and in fp32.
EXACT, CLOSE = 1e-12, 1e-5


class Result(NamedTuple):
    """What was found of one cut of one model."""

    dtype: str
    operators: int
    stages: int
    backward: str
    crossing: tuple[int, ...]
    error: float
    loss_error: float
    waits: float
    seconds: float


def measured(name: str, dtype: torch.dtype = torch.float64) -> list[Result]:
    """What stages of the model called ``name`` give, in two and three stages, with whole and split backwards, in
    numbers of ``dtype``.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` where it cannot be captured, ``ImportError`` where its
    package is missing.
    """
    with precision(name, dtype):
        model = made(name, ROWS, dtype)
        module, args, kwargs = model.module, model.args, model.kwargs
        buffers = {buffer: buffer.clone() for buffer in module.buffers()}
        loss = loss_of(module(*args, **kwargs))
        begun = time.perf_counter()
        captured = Captured.of(module, args, kwargs)
        seconds = time.perf_counter() - begun
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    purity = Purity(captured)
    found = []
    for count in (2, 3):
        for backward in ("whole", "split", "split all"):
            split = backward != "whole"
            cut = Cut(captured, _places(captured, purity, count), Purity(captured, light=backward == "split all"))
            module.zero_grad()
            with torch.no_grad():
                for buffer, value in buffers.items():
                    buffer.copy_(value)
            its_loss, waits = _through(cut, [*args, *kwargs.values()], split)
            gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            error = float("inf")  # where a gradient is missing
            if gradients.keys() >= wanted.keys():
                error = max(float((gradients[n] - g).norm() / g.norm()) for n, g in wanted.items()
                            if float(g.norm()) > 1e-12)
            found.append(Result(str(dtype).removeprefix("torch."), len(captured.calls), count, backward,
                                tuple(len(cut.takes[s]) for s in range(1, count)), error,
                                float((its_loss - loss).detach().abs() / loss.detach().abs()), waits, seconds))
    return found


def _places(captured: Captured, purity: Purity, count: int) -> list[int]:
    between = crossings(captured, purity)
    first = next(i for i, node in enumerate(captured.calls) if any(
        arg.op == "get_attr" and isinstance(captured.attribute(arg), nn.Parameter) for arg in node.all_input_nodes))
    allowed = [i for i, crossing in enumerate(between) if i > first and crossing.refused is None and crossing.values]
    return sorted({min((i for i in allowed if i >= len(between) * k // count), default=allowed[-1])
                   for k in range(1, count)})


def _through(cut: Cut, leaves: Sequence[Any], split: bool) -> tuple[Tensor, float]:
    """One micro-batch through the stages and back: its loss, and the share of parameters whose gradient waited."""
    stages, last = cut.stages(), cut.count - 1
    modules: dict[int, nn.Module] = dict(stages.modules)
    modules[last] = LossStage(modules[last], cut.captured.out_spec, stages.results, None)
    values = {BATCH + node.name: leaf for node, leaf in zip(cut.captured.inputs, leaves, strict=True)}
    runners = {s: StageRunner(module, split=split, constant=[
        i for i, n in enumerate(stages.ports[s].takes) if n.startswith(BATCH)]) for s, module in modules.items()}
    for s, runner in runners.items():
        gives = (LOSS,) if s == last else stages.ports[s].gives
        values.update(zip(gives, runner.forward(0, *(values[n] for n in stages.ports[s].takes)), strict=True))
    gradients: dict[str, Tensor] = {LOSS: torch.ones_like(values[LOSS])}
    for s, runner in reversed(runners.items()):
        gives = (LOSS,) if s == last else stages.ports[s].gives
        run = runner.input_grad if split else runner.backward
        for n, gradient in zip(stages.ports[s].takes, run(0, *(gradients.get(n) for n in gives)), strict=True):
            if gradient is not None:
                gradients[n] = gradients[n] + gradient if n in gradients else gradient
    for runner in runners.values():
        if split:
            runner.weight_grad(0)
        runner.close()
    every = {p for module in modules.values() for p in module.parameters() if p.requires_grad}
    waiting = {p for module in modules.values() for p in deferred_parameters(module)}
    return values[LOSS], sum(p.numel() for p in every & waiting) / sum(p.numel() for p in every)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model and cut, and write them; 1 if a gradient is not the model's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=MODELS, help="these models")
    parser.add_argument("--output", type=Path, default=RESULTS / "any_model.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    print("model                operators  export s  stages  backward  crossing   gradient error  loss error  "
          "waits for W")
    for name in options.only or MODELS:
        try:
            found = [*measured(name), *(measured(name, torch.float32) if name in GROUPED else ())]
        except (CaptureError, ImportError) as error:
            left_out.append({"model": name, "why": str(error).splitlines()[0]})
            print(f"{name:19}  left out: {left_out[-1]['why']:.200}", flush=True)
            continue
        for result in found:
            rows.append({"model": name, **result._asdict()})
            print(f"{name:19}  {result.operators:9d}  {result.seconds:8.2f}  {result.stages:6d}  {result.backward:8}  "
                  f"{'+'.join(map(str, result.crossing)):9}  {result.error:14.1e}  {result.loss_error:10.1e}  "
                  f"{result.waits:11.0%}", flush=True)
    record.write({"rows": rows, "left_out": left_out}, part=bool(options.only))
    return int(any(row["error"] > (EXACT if row["dtype"] == "float64" else CLOSE) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
