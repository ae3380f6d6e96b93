"""How far modelled operator times are from measured ones, and the fit of what kernels reach of a V100's peaks.

Shares are fitted on one model of Aceso's V100 profiles (GPT-1.3B, micro-batches of 1, 2, 4 and 8) and judged on the
other (T5-770M), which has other sizes and a decoder; and the other way round. Errors are modelled over measured time,
minus one: per operator (a profile's row), and per layer, where operators' errors even out. Beside it, how far counted
memory is from the profile's; and how far what one of 2, 4 or 8 GPUs that compute together does is from the profiles of
such GPUs, collectives included, modelled with the shipped shares.
Writes ``roofline.json``.

    python -m experiments.models.roofline
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from experiments.lib.provenance import Record
from experiments.lib.script import script
from weft.models.candidates.build import layer_costs
from weft.models.candidates.stage_split import split_layers
from weft.models.candidates.stages import Stages, peak_bytes
from weft.models.graph.operators import Operator, Work
from weft.models.hardware.devices import DEVICES, KernelClass, Pass, Reach, kernel_class
from weft.models.layers.collectives import collective_time
from weft.models.spec.families import GptModel, T5Model
from weft.models.spec.spec import parse_spec
from weft.models.tensor_parallel.part_times import PartTimes
from weft.models.times.profile_times import ProfileTimes, rows_of, sizes_agree
from weft.models.times.profiles import DEGREES, shipped_profile
from weft.models.times.roofline import Roofline, dtype_of, pass_seconds
from weft.models.zoo.graphs import model_graph

SIZES = (1, 2, 4, 8)
_GPT = """
name: GPT-1.3B
model: {{family: gpt, layers: 24, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}}
costs: {costs}
cluster: {{gpus: 4, memory: 32 GiB, links: nvlink-v100}}
training: {{micro_batches: 8, micro_batch_size: {batch}, recompute: {recompute}}}
"""
MODELS = {
    "gpt-1.3b-v100": GptModel(family="gpt", layers=1, hidden=2048, heads=32, vocabulary=51200, sequence=2048),
    "t5-770m-v100": T5Model(family="t5", encoder_layers=1, decoder_layers=1, hidden=1024, heads=16, feed_forward=4096,
                            vocabulary=30592, sequence=2048, target=512, positions="learned", norm="layer_norm",
                            activation="gelu", bias=True),
}
V100 = DEVICES["v100"]
MATRIX = ("gemm", "bmm")
Shares: TypeAlias = Mapping[tuple[KernelClass, Pass], Reach]
_PASSES: tuple[tuple[Pass, ...], ...] = (("forward",), ("backward",), ("forward", "backward"))
#: Of a row: the micro-batch, its layer and its name; modelled and measured seconds of each pass.
Times: TypeAlias = tuple[tuple[int, str, str], Mapping[Pass, float], Mapping[Pass, float]]


@dataclass(frozen=True)
class Sample:
    """One row of a profile beside the operators it stands for."""

    model: str
    batch: int
    row: str
    layer: str
    operators: tuple[tuple[Operator, str], ...]  # with their dtypes
    seconds: Mapping[Pass, float]


def samples(name: str) -> list[Sample]:
    """All rows of profile ``name`` whose sizes agree with our operators.

    The rows of the final norms and of T5's decoder embedding are those of micro-batch 1 in every file of the artifact.
    """
    found = []
    for batch in SIZES:
        graph = model_graph(MODELS[name], batch)
        profile = shipped_profile(name, batch)
        groups: dict[str, list[Operator]] = {}
        for operator, row in rows_of(graph).items():
            groups.setdefault(row, []).append(graph.by_name[operator])
        if set(profile) - set(groups):
            raise SystemExit(f"{name}, micro-batch {batch}: no operator for {sorted(set(profile) - set(groups))}")
        for row, operators in groups.items():
            if not sizes_agree(operators, profile[row]):
                print(f"{name}, micro-batch {batch}: {row} is of another size, left out", file=sys.stderr)
                continue
            found.append(Sample(name, batch, row, operators[0].layer,
                                tuple((operator, dtype_of(graph, operator)) for operator in operators),
                                {"forward": profile[row].forward, "backward": profile[row].backward}))
    return found


def modelled(sample: Sample, which: Pass, shares: Shares, launch: float) -> float:
    """The row's time under ``shares``, with ``launch`` seconds a pass."""
    total = 0.0
    for operator, dtype in sample.operators:
        works: list[Work] = [operator.forward] if which == "forward" else [
            work for work in (operator.input_grad, operator.weight_grad) if work is not None]
        for i, work in enumerate(works):
            total += pass_seconds(V100, operator.kind, work, dtype, which, launches=False,
                                  reach=shares[kernel_class(operator.kind), which])
            if not i or operator.deferred is not None:
                total += launch
    return total


def fit(known: Sequence[Sample], which: Pass) -> tuple[Shares, float]:
    """Shares and launch time with the least sum of |log(modelled / measured)|, by coordinate descent on grids."""
    classes = sorted({kernel_class(operator.kind) for sample in known for operator, _ in sample.operators})
    grid = [round(0.02 * 1.04**i, 4) for i in range(101) if 0.02 * 1.04**i <= 1.0] + [1.0]
    launches = [i * 1e-6 for i in range(2, 150, 2)]
    grid.reverse()  # of equals the largest: what does not bind is no finding
    shares = {(group, which): Reach(0.6 if group in MATRIX else 1.0, 0.6) for group in classes}
    launch = 40e-6

    def loss() -> float:
        return sum(abs(math.log(modelled(sample, which, shares, launch) / sample.seconds[which])) for sample in known)

    before = math.inf
    while (now := loss()) < before - 1e-6:
        before = now
        for group in classes:
            for field in ("memory", "compute") if group in MATRIX else ("memory",):
                best, kept = math.inf, shares[group, which]
                for value in grid:
                    shares[group, which] = Reach(value if field == "compute" else kept.compute,
                                                 value if field == "memory" else kept.memory)
                    if (found := loss()) < best - 1e-9:
                        best, choice = found, shares[group, which]
                shares[group, which] = choice
        tried = []
        for launch in launches:
            tried.append((loss(), launch))
        launch = min(tried)[1]
    return shares, launch


def errors(times: Iterable[Times]) -> dict[str, object]:
    """The distribution of errors over rows, and over layers, of each pass and of both together."""
    result: dict[str, object] = {}
    times = [*times]
    for level in ("operator", "layer"):
        for passes in _PASSES:
            sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
            for (batch, layer, row), ours, theirs in times:
                total = sums[batch, row if level == "operator" else layer]
                total[0] += sum(ours[which] for which in passes)
                total[1] += sum(theirs[which] for which in passes)
            result[f"{level} {' and '.join(passes)}"] = _distribution({key: a / b - 1 for key, (a, b) in sums.items()})
    return result


def judged(tested: Sequence[Sample], shares: Shares, launch: Mapping[Pass, float]) -> dict[str, object]:
    """The errors of rows under ``shares``."""
    return errors(((s.batch, s.layer, s.row), {which: modelled(s, which, shares, launch[which]) for which in s.seconds},
                   s.seconds) for s in tested)


def parts_of(name: str, batch: int, degree: int) -> list[Times]:
    """The times of rows that ``degree`` GPUs divide; passes of no time are left out."""
    graph = model_graph(MODELS[name], batch)
    found: list[Times] = []
    tables = {1: shipped_profile(name, batch), degree: shipped_profile(name, batch, degree)}
    profile = ProfileTimes({batch: tables[1]}, batch, Roofline(V100), name, {degree: {batch: tables[degree]}})
    parts, rows = PartTimes(graph, Roofline(V100).times(graph), degree, Roofline(V100)), rows_of(graph)
    for measured in profile.rows_together(graph, degree):
        first = graph.by_name[next(iter(measured.dimensions))]
        total: dict[Pass, float] = {"forward": 0.0, "backward": 0.0}
        for operator_name, dimension in measured.dimensions.items():
            operator = graph.by_name[operator_name]
            split = next(split for split in operator.splits if split.dimension == dimension)
            time = parts.of(operator, split)
            ahead, behind = parts.collectives(operator, split, lambda kind, size: collective_time(
                kind, size, degree, V100).seconds)
            total["forward"] += time.forward + ahead
            total["backward"] += time.input_grad + time.weight_grad + behind
        found.append(((batch, first.layer, rows[first.name]), total,
                      {"forward": measured.forward, "backward": measured.backward}))
    return found


def _distribution(found: Mapping[tuple[int, str], float]) -> dict[str, object]:
    sizes = sorted(abs(value) for value in found.values())
    return {"count": len(sizes), "median_absolute": round(statistics.median(sizes), 4),
            "p90_absolute": round(sizes[math.ceil(0.9 * len(sizes)) - 1], 4),
            "bias": round(statistics.mean(found.values()), 4)}


def memory() -> dict[str, object]:
    """Modelled over measured memory, minus one: GPT-1.3B on four GPUs under 1F1B, with the same cuts."""
    result: dict[str, object] = {}
    for recompute in (False, True):
        for batch in SIZES:
            measured, counted = (layer_costs(parse_spec(_GPT.format(batch=batch, recompute=str(recompute).lower(),
                                                                    costs=costs)))
                                 for costs in ("gpt-1.3b-v100", "v100"))
            split = split_layers("chain", measured, [2**50] * 4, [4, 3, 2, 1])
            ours = Stages(counted)
            peaks = []
            for stage, in_flight in zip(split.stages, (4, 3, 2, 1), strict=True):
                other = ours.stage(stage.first, stage.last)
                held = [one.parameters * 16 + peak_bytes([one], [in_flight], "full") for one in (other, stage)]
                peaks.append(round(held[0] / held[1] - 1, 4))
            kept = [a.activation_bytes / b.activation_bytes - 1 for a, b in zip(counted, measured, strict=True)]
            result[f"micro-batch {batch}{', recomputation' if recompute else ''}"] = {
                "kept activations, largest error of a layer": round(max((abs(error), error) for error in kept)[1], 4),
                "peak of each GPU": peaks}
    return result


@script("roofline.json", fit=list(MODELS))
def main(options: Namespace, record: Record) -> None:
    data = {name: samples(name) for name in MODELS}
    report: dict[str, object] = {}
    for name in options.fit:
        shares: dict[tuple[KernelClass, Pass], Reach] = {}
        launch: dict[Pass, float] = {}
        for which in _PASSES[-1]:
            found, launch[which] = fit(data[name], which)
            shares |= found
        report[f"fitted on {name}"] = {
            "launch_us": {which: round(seconds * 1e6, 1) for which, seconds in launch.items()},
            "reach": {f"{group} {which}": [reach.compute, reach.memory] for (group, which), reach in shares.items()},
            **{f"judged on {other}": judged(data[other], shares, launch) for other in MODELS}}
    report["memory, GPT-1.3B on 4 V100"] = memory()
    report["GPUs that compute together"] = {name: {
        f"{degree} GPUs, modelled": errors(row for batch in SIZES for row in parts_of(name, batch, degree))
        for degree in DEGREES} for name in MODELS}
    report["shipped"] = {f"judged on {other}": judged(data[other], V100.reach, V100.launch) for other in MODELS}
    record.write(report)
    print(json.dumps(report, indent=1))
