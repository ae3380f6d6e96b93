"""Published training runs asked for as uniform grids, and weft's best grid on the same GPUs beside them.

    python -m experiments.models.grids [--only TEXT] [--seconds 30] [--output grids.json]

The runs are those of :mod:`experiments.models.published` (Korthikanti et al., MLSys 2023), with data parallelism of 1,
and two of H100s (NVIDIA Megatron Bridge's performance summary, container 25.11: current scaling in 8 bits) with
replicas. *asked*: the published degrees through ``parallel``, whole backwards under Megatron-LM's own order, the end of
the step included; GiB of states and of activations with workspace on the fullest GPU. *best*: what ``weft solve`` finds
with ``parallel: auto`` and the same precision, within the seconds given, and the bound over all grids listed. Writes
grids.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft
from experiments.lib.provenance import RESULTS, Record
from weft.models.spec.sections import Spec
from weft.models.spec.spec import parse_spec

GIB = 1024**3
_GPT = "family: gpt, vocabulary: 51200, sequence: 2048"
_LLAMA = ("family: gpt, vocabulary: 128256, sequence: 8192, kv_heads: 8, norm: rms_norm, positions: rotary, "
          "activation: swiglu, bias: false, attention: fused, dropout: false, tied: false")


@dataclass(frozen=True)
class Run:
    """A model on ``gpus`` of a ``device``, what was set, and what was measured in seconds a step and GiB of states."""

    name: str
    model: str
    gpus: int
    device: str
    batch: int
    asked: str
    seconds: float | None
    states: float | None = None
    free: str = "{}"


def _gpt(name: str, layers: int, hidden: int, heads: int, degrees: tuple[int, int, int], batch: int, size: int,
         seconds: dict[str, float], states: float | None = None) -> list[Run]:
    tensor, pipeline, chunks = degrees
    return [Run(f"{name}, {way} recomputation", f"{_GPT}, layers: {layers}, hidden: {hidden}, heads: {heads}",
                tensor * pipeline, "a100", batch,
                f"{{tensor: {tensor}, pipeline: {pipeline}, virtual: {chunks}, data: 1, recompute: {way}, expert: 1, "
                f"context: 1, zero: 1, micro_batch: {size}, sequence_parallel: {str(way == 'selective').lower()}}}",
                measured, states, "auto")
            for way, measured in seconds.items()]


RUNS = [
    *_gpt("GPT-22B", 48, 6144, 64, (8, 1, 1), 4, 4, {"full": 1.42, "selective": 1.10}, 45.56),
    *_gpt("GPT-175B", 96, 12288, 96, (8, 8, 3), 64, 1, {"full": 18.13, "selective": 13.75}, 45.56),
    *_gpt("GPT-530B", 105, 20480, 128, (8, 35, 3), 280, 1, {"full": 49.05, "selective": 37.83}),
    *_gpt("GPT-1T", 128, 25600, 160, (8, 64, 1), 512, 1, {"full": 94.42, "selective": 71.49}),
    Run("Llama-3-8B", f"{_LLAMA}, layers: 32, hidden: 4096, heads: 32, feed_forward: 14336", 8, "h100", 128,
        "{tensor: 1, pipeline: 1, virtual: 1, data: 8, recompute: none, expert: 1, context: 1, zero: 3, "
        "micro_batch: 1, precision: fp8}", 128 * 8192 / 8 / 14451, free="{precision: fp8}"),
    Run("Llama-3-70B", f"{_LLAMA}, layers: 80, hidden: 8192, heads: 64, feed_forward: 28672", 64, "h100", 128,
        "{tensor: 4, pipeline: 8, virtual: 5, data: 2, recompute: none, expert: 1, context: 1, zero: 1, "
        "micro_batch: 1, precision: fp8}", 128 * 8192 / 64 / 1602, free="{precision: fp8}"),
]


def spec_of(run: Run, parallel: str, backward: str = "[full, split]") -> Spec:
    """The run with these degrees."""
    return parse_spec(f"name: {run.name}\nmodel: {{{run.model}}}\n"
                      f"cluster: {{gpus: {run.gpus}, device: {run.device}, gpus_per_machine: 8}}\n"
                      f"training: {{global_batch_size: {run.batch}, gradient_bytes: 4}}\n"
                      f"placement: {{backward: {backward}}}\nparallel: {parallel}\n")


def asked(run: Run) -> dict[str, Any]:
    """The published degrees on an even cut, under the order that the framework runs."""
    found = weft.solve(spec_of(run, run.asked, "[full]"), effort=1e-6, time_limit=600)
    told = found.solver["grid"]
    return {"seconds": round(told["step"], 4), "end": round(told["end"]["seconds"], 4),
            "states": round(max(found.solver["static_memory"]) / GIB, 3),
            "activations": round(max(found.peak_memory) / GIB, 3)}


def best(run: Run, seconds: float) -> dict[str, Any]:
    """What is found where all is open."""
    told = weft.solve(spec_of(run, run.free), time_limit=seconds).solver["grid"]
    return {"title": told["title"], "seconds": round(told["step"], 4), "bound": round(told["bound_over_grids"], 4),
            "grids": told["listed"], "utilization": round(told["model_flops_utilization"], 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, search, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each search; 0: none")
    parser.add_argument("--output", type=Path, default=RESULTS / "grids.json")
    options = parser.parse_args(arguments)
    record, rows = Record(options.output), []
    for run in RUNS:
        if options.only not in run.name:
            continue
        ours = asked(run)
        ratios = {key: round(ours[key] / value, 4) for key, value in (("seconds", run.seconds), ("states", run.states))
                  if value is not None}
        rows.append({"name": run.name, "gpus": run.gpus, "device": run.device, "asked": ours,
                     "published": {"seconds": run.seconds, "states": run.states}, "ratios": ratios,
                     "best": best(run, options.seconds) if options.seconds else None})
        print(run.name, ours, ratios, rows[-1]["best"], flush=True)
    record.write({"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
