"""What jobs of different kinds gain on the same GPUs: training and inference, data parallel, pipelines, tensor-parallel
jobs.

    python -m experiments.step.shared_kinds [--effort SECONDS]

A GPT of 8 layers of 1024 and one of 8 of 512 on two modelled V100, one a machine or both in one. Each pair at the best
ratio that is tried, against running in turn with each job's own overlap, and without. Writes results/shared_kinds.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from experiments.step.share import told
from weft.app.lib.options import SearchOptions
from weft.app.share.search import Question, share_sources
from weft.models.spec.spec import parse_spec

_SPEC = """
name: {name}
model: {{family: gpt, layers: 8, hidden: {hidden}, heads: {heads}, vocabulary: 51200, sequence: {sequence}}}
costs: roofline
cluster: {{gpus: 2, memory: 32 GiB, device: v100, gpus_per_machine: {machine}}}
{run}: {{micro_batches: 8, micro_batch_size: {size}}}
placement: {{shapes: [{shape}]}}
"""
#: By name: GPUs of a machine, how specs that can run data parallel do, and of each job its width, its kind of run, its
#: sequence, its micro-batch size and its shape (where it runs as a pipeline).
Pair = tuple[int, str, tuple[int, str, int, int, str], tuple[int, str, int, int, str]]
PAIRS: dict[str, Pair] = {
    "training, data parallel, and inference, two machines":
        (1, "auto", (1024, "training", 1024, 1, "chain"), (512, "inference", 512, 1, "chain")),
    "training, data parallel, and inference, one machine":
        (2, "auto", (1024, "training", 1024, 1, "chain"), (512, "inference", 512, 1, "chain")),
    "training as a pipeline, and inference, two machines":
        (1, "pipeline", (1024, "training", 1024, 1, "chain"), (512, "inference", 512, 1, "chain")),
    "two inferences, long and short requests, two machines":
        (1, "pipeline", (1024, "inference", 1024, 4, "chain"), (512, "inference", 32, 8, "chain")),
    "two inferences, one tensor-parallel, one machine":
        (2, "pipeline", (1024, "inference", 1024, 1, "tensor"), (512, "inference", 512, 1, "chain")),
    "training, tensor-parallel, and inference, one machine":
        (2, "pipeline", (1024, "training", 1024, 1, "tensor"), (512, "inference", 512, 1, "chain")),
}


def row(name: str, effort: float) -> dict[str, Any]:
    """A pair at the best ratio that is tried."""
    machine, parallel, *jobs = PAIRS[name]
    specs = [parse_spec(_SPEC.format(name=letter, hidden=hidden, heads=hidden // 64, sequence=sequence, machine=machine,
                                     run=run, size=size, shape=shape))
             for letter, (hidden, run, sequence, size, shape) in zip("AB", jobs, strict=True)]
    found = share_sources(specs, Question(None, parallel=parallel), SearchOptions(time_limit=600.0, effort=effort))
    print(name, found, sep="\n", flush=True)
    return {"pair": name, **told(found)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Search all, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--effort", type=float, default=20.0, help="deterministic seconds of each pair")
    parser.add_argument("--only", default="", help="pairs whose name contains this")
    parser.add_argument("--output", type=Path, default=RESULTS / "shared_kinds.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = [row(name, options.effort) for name in PAIRS if options.only in name]
    record.write({"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
