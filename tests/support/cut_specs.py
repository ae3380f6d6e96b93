"""Small specs with layers that differ, whose cuts can all be tried one by one."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal

from tests.oracles.whole import least_makespan
from weft.models.cuts.space import CutSpace
from weft.models.cuts.spaces import cut_spaces
from weft.models.spec.spec import Spec, parse_spec
from weft.solver.problem import Problem, ProblemError

Mode = Literal["full", "split", "none"]
MODES: tuple[Mode, ...] = ("full", "split", "none")
#: Seconds and bytes of the units in which layers are drawn.
_MS, _KB = 1e-3, 1000


def spec_of(layers: list[dict[str, Any]], mode: Mode, *, gpus: int = 2, micro_batches: int = 3,
            memory: int | list[int] = 1_000_000, bandwidth: float = 1e6, speed: list[float] | None = None,
            **placement: Any) -> Spec:
    """A spec of ``layers`` (entries of a spec) on GPUs with ``memory`` kB and a link of ``bandwidth`` bytes a ms."""
    run = {"micro_batches": micro_batches, "parameter_bytes": 1}
    training = {**run, "gradient_bytes": 0, "optimizer_bytes_per_parameter": 0}
    sizes = memory if isinstance(memory, list) else [memory] * gpus
    document = {
        "name": "small", "model": {"layers": layers},
        "cluster": {"gpus": gpus, "memory": [size * _KB for size in sizes], "reserve": 0, "bandwidth": bandwidth * 1e3,
                    **({} if speed is None else {"speed": speed})},
        **({"inference": run} if mode == "none" else {"training": training}),
        "placement": {**({} if mode == "none" else {"backward": [mode]}), **placement}}
    return parse_spec(json.dumps(document), "a.yaml")


def drawn_spec(number: int, mode: Mode, *, count: int = 6, gpus: int = 2, micro_batches: int = 3,
               unequal: bool = False, **placement: Any) -> Spec:
    """Spec ``number``: whole milliseconds, sizes in kB, links that take up to some ms, memory from tight to ample.

    The first layer has no input gradient in two of three, another no weight gradient in every other one; what is kept
    for a weight gradient is less or more than what is kept for the whole backward.
    """
    dice = random.Random(number)
    layers, most = [], 0
    for i in range(count):
        kept, workspace = dice.randint(1, 6), dice.choice((0, 0, 1, 3))
        gradient, weight = dice.randint(1, 5), dice.randint(1, 4)
        if i == 0 and number % 3:
            gradient = 0
        elif i == count // 2 and number % 2:
            weight = 0
        layers.append({
            "name": f"l{i}", "forward": dice.randint(1, 5) * _MS, "activation_memory": kept * _KB,
            "workspace": workspace * _KB, "weights": dice.randint(0, 4) * _KB, "output": dice.choice((0, 1, 2)) * 1000,
            **({"input_grad": gradient * _MS, "weight_grad": weight * _MS,
                "weight_grad_memory": dice.randint(0, kept + 2) * _KB} if mode != "none" else {})})
        most += kept + 5
    room = [round(most / gpus * dice.uniform(0.3, 2.0)) + 4 for _ in range(gpus)]
    return spec_of(layers, mode, gpus=gpus, micro_batches=micro_batches, memory=room if unequal else room[0],
                   bandwidth=1000 * dice.choice((0.5, 1, 4)),
                   speed=[dice.choice((1, 2, 4)) for _ in range(gpus)] if unequal else None, **placement)


def space_of(number: int, mode: Mode, shape: str = "chain", chunks: int = 1, **options: Any) -> CutSpace:
    """The space of :func:`drawn_spec` with so many stages a GPU, not opened."""
    spec = drawn_spec(number, mode, shapes=[shape], chunks=chunks, **options)
    return next(space for space in cut_spaces(spec, spec.run.micro_batches) if space.ground.layout.chunks == chunks)


def all_cuts(space: CutSpace) -> Iterator[tuple[int, ...]]:
    """The borders of every cut, whether it fits or not."""
    layers, stages = space.ground.layers, space.ground.layout.stages
    for inner in combinations(range(1, layers), stages - 1):
        yield (0, *inner, layers)


def problems_of(space: CutSpace) -> dict[tuple[int, ...], Problem]:
    """The problem of every cut whose weights leave no GPU with less than nothing."""
    found = {}
    for cut in all_cuts(space):
        with contextlib.suppress(ProblemError):
            found[cut] = space.candidate(cut).problem
    return found


def best_of_all_cuts(spec: Spec, most_labels: int = 4_000) -> Fraction | None:
    """The least makespan over all cuts, by brute force."""
    n = spec.run.micro_batches
    found = [least_makespan(problem, n, most_labels) for space in cut_spaces(spec, n)
             for problem in problems_of(space).values()]
    return min((makespan for makespan in found if makespan is not None), default=None)
