"""What parts that run in turn on one GPU (co-shard) buy where activations are tight: GPTs with long sequences.

Each case is solved with and without ``placement.co_shard``, on the same modelled costs: 12 layers of width 2048 with 32
heads and a vocabulary of 51200 in fp16 on V100s, one a machine (12.5 GB/s between them), attention not fused. Writes
``co_shard.json``.

    python -m experiments.models.co_shard [--tokens 2048 8192 16384] [--effort 3]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from weft.app.lib.case import case_of
from weft.app.lib.options import SearchOptions
from weft.app.solve import solve_case
from weft.models.spec.spec import parse_spec
from weft.solver.step.search import Infeasible

#: Tokens of a sequence, sequences of a micro-batch, GPUs, memory of each in GiB, recomputation of layers.
CASES = ((2048, 2, 4, 12, False), (2048, 2, 4, 12, True), (8192, 1, 2, 16, True), (16384, 1, 2, 32, True))
SPEC = """
name: GPT with long sequences
model: {{family: gpt, layers: 12, hidden: 2048, heads: 32, vocabulary: 51200, sequence: {tokens}}}
costs: v100
cluster: {{gpus: {gpus}, memory: {memory} GiB, device: v100, bandwidth: 12.5 GB/s, latency: 30 us, gpus_per_machine: 1}}
training: {{micro_batches: 8, micro_batch_size: {batch}, recompute: {recompute}}}
placement: {{co_shard: {parts}}}
"""


def row(tokens: int, batch: int, gpus: int, memory: int, recompute: bool, parts: list[int],
        effort: float) -> dict[str, Any]:
    """The best placement of one case, or why there is none."""
    spec = parse_spec(SPEC.format(tokens=tokens, batch=batch, gpus=gpus, memory=memory, parts=parts,
                                  recompute=str(recompute).lower()))
    try:
        found = solve_case(case_of(spec), SearchOptions(600.0, effort))
    except Infeasible as refusal:
        return {"refused": str(refusal)}
    return {"seconds": found.makespan, "placement": found.solver.get("placement"),
            "bound": found.solver.get("bound_over_placements", found.makespan_bound),
            "co_shard": found.solver.get("co_shard")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, nargs="*", default=sorted({case[0] for case in CASES}))
    parser.add_argument("--effort", type=float, default=3.0, help="deterministic seconds of each search")
    parser.add_argument("--output", type=Path, default=RESULTS / "co_shard.json")
    options = parser.parse_args(arguments)
    record, report = Record(options.output), []
    for tokens, batch, gpus, memory, recompute in (case for case in CASES if case[0] in options.tokens):
        without, in_parts = (row(tokens, batch, gpus, memory, recompute, parts, options.effort)
                             for parts in ([], [2, 4, 8]))
        ratio = without["seconds"] / in_parts["seconds"] if "seconds" in without and "seconds" in in_parts else None
        report.append({"tokens": tokens, "micro_batch_size": batch, "gpus": gpus, "gib": memory,
                       "recompute": recompute, "whole": without, "in_parts": in_parts, "speedup": ratio})
        print(json.dumps(report[-1], indent=1), flush=True)
    record.write({"rows": report})
    return 0


if __name__ == "__main__":
    main()
