"""What co-shard saves in a run: the memory that a captured transformer needs, whole, recomputed, and in parts in turn.

Layers of width 128 with 4 heads and a hidden width of 512, 16 sequences of 256 tokens in fp32, forward and backward on
one process of the executor. In each layer the hidden width runs in 2, 4 or 8 parts, one after the other, each computed
again just before its backward. Parts of the second product are terms of a sum, as large as the whole, and wait for each
other: more parts are not always less memory. ``measured``: the most bytes
that torch's allocator had beyond the inputs and weights (:func:`weft.runtime.measure.measure.memory_of`);
``predicted``: :attr:`weft.models.transform.plan.Preserved.peaks`, which counts what operators make, but not what a
kernel needs inside. ``difference``: of any gradient from autograd's on the module, relative to its largest element (at
least 1). Writes ``co_shard_run.json``.

    python -m experiments.runtime.co_shard_run [--layers 2] [--parts 2 4 8]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from experiments.lib.provenance import RESULTS, Record
from weft import plans
from weft.app.plans.run import PlanOnRank
from weft.runtime.measure.measure import memory_of, single_threaded

WIDTH, HEADS, HIDDEN, TOKENS, SEQUENCES = 128, 4, 512, 256, 16


class Layer(nn.Module):
    """A pre-norm layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        found: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return found


class Layers(nn.Module):
    """Some of them, and the mean of the squares of what comes out."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def planned(program: plans.Program, layers: int, parts: int, *, in_parts: bool) -> plans.Plan:
    """The plan: all on one device; the hidden width of each layer recomputed, or in parts too."""
    plan = plans.Plan(program)
    for i in range(layers):
        first = 6 * i + 4  # behind queries, keys, values and the projection behind them
        gelu = "gelu" if i == 0 else f"gelu_{i}"
        hidden = f"linear_{first}.product linear_{first} {gelu} linear_{first + 1}.product"
        if in_parts:
            plan.co_shard(hidden, plan.along(f"linear_{first}.product", -1), parts)
        elif parts:
            plan.recompute(hidden)
    return plan.assign("*", 0)


def row(module: nn.Module, x: Tensor, program: plans.Program, plan: plans.Plan) -> dict[str, Any]:
    """Run a plan once to warm up, once measured."""
    done = plan.preserve()
    running = PlanOnRank(done)
    given: dict[str, Tensor] = {name: one.detach() for name, one in module.named_parameters()} | {"x": x}
    given[f"d({program.outputs[0]}) given"] = torch.ones(())
    running.run(given)
    pieces, memory = memory_of(lambda: running.run(given), torch.device("cpu"))
    return {"measured": memory.peak, "predicted": done.peaks[0], "difference": difference(module, program, pieces)}


def difference(module: nn.Module, program: plans.Program, pieces: Mapping[str, Any]) -> float:
    """The largest of any gradient from what autograd gives."""
    most = 0.0
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        found = torch.zeros_like(parameter)
        for term in program.terms(f"d({name})"):
            for piece in pieces[term]:
                found[tuple(slice(*ends) for ends in piece.span)] += piece.data
        largest = max(1.0, float(parameter.grad.abs().max()))
        most = max(most, float((found - parameter.grad).detach().abs().max()) / largest)
    return most


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write all plans."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--parts", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--output", type=Path, default=RESULTS / "co_shard_run.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    report: list[dict[str, Any]] = []
    torch.manual_seed(0)
    module, x = Layers(options.layers), torch.randn(SEQUENCES, TOKENS, WIDTH)
    torch.autograd.backward(module(x))
    program = plans.with_backward(plans.program(module, (x,)))
    cases = [("whole", 0, False), ("recomputed", 1, False),
             *((f"{parts} parts", parts, True) for parts in options.parts)]
    with tempfile.TemporaryDirectory() as folder, single_threaded():
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        try:
            for name, parts, in_parts in cases:
                found = row(module, x, program, planned(program, options.layers, parts, in_parts=in_parts))
                first = report[0] if report else found
                report.append({"plan": name, **found, "measured_of_whole": found["measured"] / first["measured"],
                               "predicted_of_whole": found["predicted"] / first["predicted"]})
                print(json.dumps(report[-1]), flush=True)
        finally:
            dist.destroy_process_group()
    record.write({"layers": options.layers, "rows": report})
    return 0


if __name__ == "__main__":
    main()
