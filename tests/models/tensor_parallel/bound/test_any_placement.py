"""The bound over all placements on groups of GPUs: against every way to share out layers, and against schedules."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from weft.app.lib.case import case_of
from weft.models.candidates.gpu_costs import family_costs
from weft.models.spec.spec import parse_spec
from weft.models.tensor_parallel.bound.any_placement import HeldArea, least_step
from weft.models.tensor_parallel.bound.group_cover import LayerTerms
from weft.models.tensor_parallel.parts import LayersPart, part_problem, stage_cost, static_memory
from weft.models.tensor_parallel.space import Space, space_of
from weft.solver.bounds.load import load_bound
from weft.solver.step.search import Infeasible, solve

#: Of each layer its group: GPUs, or "all".
Home = tuple[int, ...]


def groups_of(gpus: Sequence[int], degrees: Sequence[int]) -> Iterator[list[Home]]:
    """Every division of ``gpus`` into neighbours of these sizes."""
    if not gpus:
        yield []
    for degree in degrees:
        if degree <= len(gpus):
            for rest in groups_of(gpus[degree:], degrees):
                yield [tuple(gpus[:degree]), *rest]


def homes(layers: int, gpus: int, degrees: Sequence[int]) -> set[tuple[Home, ...]]:
    """Every way to give each layer a group of its own division, or all GPUs."""
    found = set()
    for groups in groups_of(range(gpus), degrees):
        choices = list(dict.fromkeys([*groups, *([tuple(range(gpus))] if gpus in degrees else [])]))
        found |= set(itertools.product(choices, repeat=layers))
    return found


def random_terms(draw: random.Random, layers: int, degrees: tuple[int, ...]) -> LayerTerms:
    """Layers of one to three kinds; what they keep is not counted."""
    kinds = [[draw.randint(10, 40) for _ in range(2)] for _ in range(draw.randint(1, 3))]
    rows = [draw.choice(kinds) for _ in range(layers)]
    load = np.array([[row[0] // degree + draw.choice((0, 3)) * (degree > 1) for degree in degrees] for row in rows])
    static = np.array([[-(-row[1] // degree) for degree in degrees] for row in rows])
    zero = np.zeros_like(load)
    return LayerTerms(degrees, load, static, zero, zero, zero, is_row=False, is_split=False)


def test_what_groups_can_hold_and_do_is_exact() -> None:
    """The least of the most loaded GPU over every way to share layers out, under memory from tight to ample."""
    draw = random.Random(5)
    tight = 0
    for _ in range(60):
        gpus, degrees = draw.choice(((2, (1, 2)), (3, (1, 3)), (4, (1, 2, 4)), (4, (1, 2))))
        terms = random_terms(draw, draw.randint(2, 4), degrees)
        room = draw.choice((30, 45, 70, 500))
        best = math.inf
        for placed in homes(terms.layers, gpus, degrees):
            at = [terms.degrees.index(len(home)) for home in placed]
            held = [sum(int(terms.static[i, c]) for i, c in enumerate(at) if gpu in placed[i]) for gpu in range(gpus)]
            if max(held) <= room:
                best = min(best, max(sum(int(terms.load[i, c]) for i, c in enumerate(at) if gpu in placed[i])
                                     for gpu in range(gpus)))
        tight += room < 500 and best > least_step(terms, gpus, 500, 1, fills=False, close=0)
        assert least_step(terms, gpus, room, 1, fills=False, close=0) == best
        assert least_step(terms, gpus, room, 7, fills=False, close=0) == 7 * best
    assert tight > 5


GPT = "{family: gpt, layers: 2, hidden: 1024, heads: 8, vocabulary: 4096, sequence: 512}"


def small_space(memory: str, run: str, modes: str = "[full, split]") -> Space:
    spec = parse_spec(f"name: test\nmodel: {GPT}\ncosts: roofline\ncluster: {{gpus: 2, memory: {memory}, reserve: 0, "
                      f"device: v100}}\n{run}\nplacement: {{backward: {modes}}}")
    space = space_of(spec, family_costs(spec))
    assert space is not None
    return space


@pytest.mark.slow
@pytest.mark.parametrize("memory, run, modes", [
    ("8 GiB", "training: {micro_batches: 2}", ("full", "split")),
    ("300 MiB", "training: {micro_batches: 3, micro_batch_size: 4, optimizer_bytes_per_parameter: 0}", ("split",)),
    ("8 GiB", "inference: {micro_batches: 4}", ("none",))])
def test_no_schedule_of_any_placement_is_below(memory: str, run: str, modes: tuple[str, ...]) -> None:
    """The best schedule of every placement, each layer on any group, chunks as they come, against the bound."""
    space = small_space(memory, run, f"[{', '.join(mode for mode in modes if mode != 'none') or 'full'}]")
    count = space.micro_batches
    best = math.inf
    for placed in sorted(homes(len(space.layers), 2, space.degrees), key=lambda placed: -len(set(placed))):
        runs = [[i for i, _ in group] for _, group in itertools.groupby(enumerate(placed), key=lambda pair: pair[1])]
        parts = tuple(LayersPart(str(number), tuple(run), placed[run[0]],
                                 stage_cost(space.costs[len(placed[run[0]])], run))
                      for number, run in enumerate(runs))
        static = static_memory(parts, space.sharded, space.layers, space.bytes_per_parameter)
        if max(static.values()) > space.capacity:
            continue
        for mode in space.modes(modes):
            problem, _ = part_problem("test", space.graph, space.layers, parts, space.capacity,
                                      {gpu: static.get(gpu, 0) for gpu in range(2)}, mode, space.network)
            if load_bound(problem, count) >= best:
                continue
            try:
                best = min(best, solve(problem, count, effort=0.01, time_limit=3000).makespan)
            except Infeasible:
                continue
    bound = space.least_makespan(count)
    assert count * space.least_period <= bound * (1 + 1e-3)
    assert 0.6 * best < bound <= best < math.inf


def test_what_is_kept_leaves_a_choice_wherever_there_is_one() -> None:
    """The relaxed area against every choice of degrees; it finds most of the times when there is none."""
    draw = random.Random(3)
    degrees, missed, none = (1, 2, 4), 0, 0
    for _ in range(60):
        layers = draw.randint(2, 5)
        load, kept, static = (np.array([[-(-draw.randint(20, 60) // degree) + draw.randint(0, 5) for degree in degrees]
                                        for _ in range(layers)]) for _ in range(3))
        terms = LayerTerms(degrees, load, static, kept, load // 3, load // 2, is_row=True, is_split=True)
        gpus, count = 4, draw.randint(1, 6)
        room, most = draw.randint(40, 150), draw.randint(1, 3) * count * int(load.min(axis=1).sum()) // 2
        exists = False
        for columns in itertools.product(range(3), repeat=layers):
            way = [int(terms.forward[i, c] + terms.back[i, c]) for i, c in enumerate(columns)]
            work = sum(degrees[c] * int(load[i, c]) for i, c in enumerate(columns))
            area = sum(degrees[c] * (int(static[i, c]) * most + count * int(kept[i, c]) * sum(way[i:]))
                       for i, c in enumerate(columns))
            exists |= count * work <= gpus * most and area <= gpus * room * most
        fits = HeldArea(terms, gpus, room, count).fits(most)
        assert fits or not exists
        none += not exists
        missed += fits and not exists
    assert none > 15 and missed < none / 4


def test_weights_that_fit_nowhere_leave_no_step() -> None:
    assert small_space("20 MiB", "training: {micro_batches: 2}").least_makespan(2) == math.inf


def test_more_gpus_than_layers_leave_groups() -> None:
    """A GPU a stage is refused with the reason; groups of several are searched."""
    spec = parse_spec("name: wide\nmodel: {family: gpt, layers: 2, hidden: 256, heads: 4, vocabulary: 4096, sequence: "
                      "128}\ncosts: roofline\ncluster: {gpus: 8, memory: 4 GiB, device: v100}\n"
                      "training: {micro_batches: 8}")
    case = case_of(spec)
    assert case.placements and ("chain", "4 layers are too few for one stage on each of 8 GPUs") in case.refused
    assert case.least_period is not None and case.least_period > 0
