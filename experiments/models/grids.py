"""Published training runs asked for as uniform grids, and weft's best grid on the same GPUs beside them.

    python -m experiments.models.grids [--only TEXT] [--seconds 30] [--output grids.json]

The runs are ten of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023,
table 5 and figure 1 (GPT on A100s of 80 GB, data parallelism of 1; the seconds of GPT-530B and GPT-1T are quoted from
memory, two have memory only); eleven of H100s and two of B200s (NVIDIA Megatron Bridge's performance summary and its
archive, containers 25.09, 25.11 and 26.02, what else is set from its ``scripts/performance``; of Llama-3-8B's on B200s
the share of the peak is taken that products reach there); and DeepSeek-V3 on 2048 H800 (DeepSeek-AI, "DeepSeek-V3
technical report", 2024: 180,000 hours of GPUs for 1e12 tokens), its stages as recipes for Megatron-LM have them.
*asked*: the published degrees and layout through ``parallel``, whole backwards under Megatron-LM's own order, the end
of the step included; GiB of states and of activations on the fullest GPU, workspace left out, as published, and whether
all of it fits. *same*: weft's best on the published degrees, any cut, chunks and order. *best*: what ``weft solve``
finds with ``parallel: auto`` and what is no degree as published, within the seconds given, and the bound over all grids
listed.
Writes grids.json.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import weft
from experiments.lib.provenance import begun
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError, parse_spec
from weft.solver.feasibility.infeasible import Infeasible

GIB = 1024**3
_GPT = "family: gpt, vocabulary: 51200, sequence: 2048"
_LLAMAS = {"Llama-3-8B": "layers: 32, hidden: 4096, heads: 32, feed_forward: 14336",
           "Llama-3-70B": "layers: 80, hidden: 8192, heads: 64, feed_forward: 28672",
           "Llama-3.1-405B": "layers: 126, hidden: 16384, heads: 128, feed_forward: 53248"}
_LLAMA = ("family: gpt, vocabulary: 128256, sequence: 8192, kv_heads: 8, norm: rms_norm, positions: rotary, "
          "activation: swiglu, bias: false, attention: fused, dropout: false, tied: false")
_DEEPSEEK = ("family: moe, layers: 61, hidden: 7168, heads: 128, feed_forward: 18432, vocabulary: 129280, sequence: "
             "4096, experts: 256, active: 8, expert_feed_forward: 2048, shared: 2048, dense_first: 3, every: 1, "
             "predict: 1, latent: {query_rank: 1536, key_rank: 512, plain: 128, rotary: 64, value: 128}, "
             "norm: rms_norm, positions: rotary, activation: swiglu, bias: false, attention: fused, dropout: false, "
             "tied: false")
_NONE_DROPPED = ("no token is dropped: the host waits for the numbers of tokens and launches products of changing "
                 "sizes; Qwen3-30B-A3B on the same degrees took half the time while tokens beyond an even share were "
                 "dropped, on B200 too, but not on GB200, which has other hosts")
_DEEP_EP = "precision: fp8, overlap_experts: true, expert_machines: 4}"


@dataclass(frozen=True)
class Run:
    """A model on ``gpus`` of a ``device``, what was set, and what was measured: seconds of a step, GiB of states and of
    activations on the fullest GPU. ``free``: what of it is no degree. ``reason``: why the prediction is far from it,
    where that is known."""

    name: str
    model: str
    gpus: int
    device: str
    batch: int
    asked: str
    seconds: float | None
    states: float | None = None
    free: str = "{}"
    activations: float | None = None
    reason: str = ""
    layout: str = ""


def _gpt(name: str, layers: int, hidden: int, heads: int, degrees: tuple[int, int, int], batch: int, size: int,
         seconds: dict[str, float | None], states: float | None = None, activations: dict[str, float] | None = None
         ) -> list[Run]:
    (tensor, pipeline, chunks), kept = degrees, activations or {}
    return [Run(f"{name}, {way} recomputation", f"{_GPT}, layers: {layers}, hidden: {hidden}, heads: {heads}",
                tensor * pipeline, "a100", batch,
                f"{{tensor: {tensor}, pipeline: {pipeline}, virtual: {chunks}, data: 1, recompute: {way}, expert: 1, "
                f"context: 1, zero: 1, micro_batch: {size}, sequence_parallel: {str(way == 'selective').lower()}}}",
                measured, states, "auto", kept.get(way))
            for way, measured in seconds.items()]


RUNS = [
    *_gpt("GPT-22B", 48, 6144, 64, (8, 1, 1), 4, 4, {"full": 1.42, "none": None, "selective": 1.10}, 45.56,
          {"none": 59.25, "selective": 9.56}),
    *_gpt("GPT-175B", 96, 12288, 96, (8, 8, 3), 64, 1, {"full": 18.13, "none": None, "selective": 13.75}, 45.56,
          {"none": 66.84, "selective": 12.35}),
    *_gpt("GPT-530B", 105, 20480, 128, (8, 35, 3), 280, 1, {"full": 49.05, "selective": 37.83}),
    *_gpt("GPT-1T", 128, 25600, 160, (8, 64, 1), 512, 1, {"full": 94.42, "selective": 71.49}),
    *(Run(name, f"{_LLAMA}, {_LLAMAS[name.partition(',')[0]]}", gpus, device, batch, f"{{tensor: {tensor}, pipeline: "
          f"{pipeline}, virtual: {chunks}, data: {data}, recompute: none, expert: 1, context: {context}, zero: {zero}, "
          f"micro_batch: {size}, precision: fp8}}", batch * 8192 / gpus / rate, free="{precision: fp8}", layout=layout)
      for name, gpus, device, batch, (tensor, pipeline, chunks, data, context), zero, size, rate, layout in (
          ("Llama-3-8B", 8, "h100", 128, (1, 1, 1, 8, 1), 3, 1, 14451, ""),
          ("Llama-3-70B", 64, "h100", 128, (4, 8, 5, 2, 1), 1, 1, 1602, "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"),
          ("Llama-3-70B, 26.02", 64, "h100", 256, (4, 8, 5, 2, 1), 1, 1, 1621, ""),
          ("Llama-3.1-405B", 1024, "h100", 512, (8, 8, 8, 8, 2), 1, 1, 292, ""),
          ("Llama-3.1-405B, 26.02", 1024, "h100", 1536, (8, 8, 8, 8, 2), 1, 1, 311, ""),
          ("Llama-3-8B", 8, "b200", 128, (1, 1, 1, 8, 1), 1, 2, 30624, ""),
          ("Llama-3.1-405B", 128, "b200", 64, (4, 8, 8, 2, 2), 1, 1, 661, ""))),
    *(Run(f"Qwen3-30B-A3B, {way}", "family: moe, layers: 48, hidden: 2048, heads: 32, kv_heads: 4, head_size: 128, "
          "vocabulary: 151936, sequence: 4096, experts: 128, active: 8, expert_feed_forward: 768, every: 1, qk_norm: "
          "head, norm: rms_norm, positions: rotary, activation: swiglu, bias: false, attention: fused, dropout: false, "
          "tied: false", 16, "h100", batch, f"{{tensor: 1, pipeline: 2, virtual: {chunks}, data: 8, recompute: none, "
          f"expert: 8, context: 1, zero: 1, micro_batch: {size}, precision: fp8}}", batch * 4096 / 16 / rate,
          free="{precision: fp8}", reason=why)
      for way, batch, chunks, size, rate, why in (
          ("tokens dropped, 25.09", 512, 24, 2, 10494, "routing, permutations and casts of tokens are priced as single "
           "kernels"),
          ("no token dropped, 25.11", 512, 24, 2, 5275, _NONE_DROPPED),
          ("no token dropped, 26.02", 1024, 12, 1, 5113, _NONE_DROPPED))),
    *(Run(f"GPT-OSS-120B, {release}", "family: moe, layers: 36, hidden: 2880, heads: 64, kv_heads: 8, head_size: 64, "
          "vocabulary: 201088, sequence: 4096, experts: 128, active: 4, expert_feed_forward: 2880, every: 1, window: "
          "128, windowed: [true, false], sinks: true, router_bias: true, norm: rms_norm, positions: rotary, "
          "activation: swiglu, attention: fused, dropout: false, tied: false", 64, "h100", batch, "{tensor: 1, "
          f"pipeline: 4, virtual: 1, data: 16, recompute: {again}, expert: 8, context: 1, zero: 1, "
          f"micro_batch: {size}}}",
          batch * 4096 / 64 / rate, reason=why)
      for release, batch, again, size, rate, why in (
          ("25.11", 512, "none", 4, 5630, "the row contradicts itself: it says two micro-batches a step, where its "
           "degrees make eight; the recipe and 26.02 have micro-batches of one sequence"),
          ("26.02", 1280, "light", 1, 5993, _NONE_DROPPED))),
    Run("DeepSeek-V3", _DEEPSEEK, 1024, "h100", 8192, "{tensor: 2, pipeline: 8, virtual: 4, data: 64, recompute: "
        f"light, expert: 64, context: 1, zero: 1, micro_batch: 1, {_DEEP_EP}", 8192 * 4096 / 1024 / 1297,
        free=f"{{{_DEEP_EP}", layout="Et|(tt|)*30mL", reason=_NONE_DROPPED),
    Run("DeepSeek-V3", _DEEPSEEK, 2048, "h800", 15360, "{tensor: 1, pipeline: 16, virtual: 1, data: 128, recompute: "
        f"light, expert: 64, context: 1, zero: 1, micro_batch: 1, {_DEEP_EP}",
        180e3 * 3600 / 1e12 * 15360 * 4096 / 2048, free=f"{{{_DEEP_EP}", layout="Et*4|(t*4|)*14tmL"),
]


def spec_of(run: Run, parallel: str, backward: str = "[full, split]", layout: str = "", room: str = "") -> Spec:
    """The run with these degrees; ``room``: memory of a GPU in place of the device's."""
    return parse_spec(f"name: {run.name}\nmodel: {{{run.model}}}\n"
                      f"cluster: {{gpus: {run.gpus}, device: {run.device}, gpus_per_machine: 8{room}}}\n"
                      f"training: {{global_batch_size: {run.batch}, gradient_bytes: 4}}\n"
                      f"placement: {{backward: {backward}{f', layout: {layout!r}' if layout else ''}}}\n"
                      f"parallel: {parallel}\n")


def asked(run: Run) -> dict[str, Any]:
    """The published degrees on the published cut, or an even one, under the order that the framework runs."""
    fits, roomy = run.seconds is not None, spec_of(run, run.asked, "[full]", run.layout, ", memory: 300 GiB")
    try:  # what was not run did not fit
        spec = spec_of(run, run.asked, "[full]", run.layout) if fits else roomy
        found = weft.solve(spec, effort=1e-6, time_limit=600)
    except (Infeasible, SpecError):
        fits, found = False, weft.solve(roomy, effort=1e-6, time_limit=600)
    told, problem = found.solver["grid"], found.problem
    kept = replace(found, problem=replace(problem, blocks=tuple(
        replace(block, workspace=(0,) * len(block.devices)) for block in problem.blocks)))
    return {"seconds": round(told["step"], 4), "end": round(told["end"]["seconds"], 4),
            "states": round(max(found.solver["static_memory"]) / GIB, 3),
            "activations": round(max(kept.peak_memory) / GIB, 3), "fits": fits}


def best(run: Run, parallel: str, seconds: float) -> dict[str, Any] | None:
    """What is found with ``parallel``; ``None`` where nothing fits."""
    try:
        told = weft.solve(spec_of(run, parallel), time_limit=seconds).solver["grid"]
    except (Infeasible, SpecError):
        return None
    return {"title": told["title"], "seconds": round(told["step"], 4), "bound": round(told["bound_over_grids"], 4),
            "grids": told["listed"], "utilization": round(told["model_flops_utilization"], 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, search, compare, print and write."""
    options, record = begun(__doc__, arguments, "grids.json", only="", seconds=30.0)
    rows = []
    for run in RUNS:
        if options.only not in run.name:
            continue
        ours = asked(run)
        measured = {"seconds": run.seconds, "states": run.states, "activations": run.activations}
        ratios = {key: round(ours[key] / value, 4) for key, value in measured.items() if value is not None}
        searched = {name: best(run, parallel, options.seconds) if options.seconds and run.seconds is not None else None
                    for name, parallel in (("same", re.sub(r"virtual: \w+", "virtual: auto", run.asked)),
                                           ("best", run.free))}
        rows.append({"name": run.name, "gpus": run.gpus, "device": run.device, "asked": ours, "published": measured,
                     "ratios": ratios, "reason": run.reason, "layout": run.layout, **searched})
        print(run.name, ours, ratios, *searched.values(), flush=True)
    record.write({"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
