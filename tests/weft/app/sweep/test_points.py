"""Sweeps: rows against single solves, the front, what is refused, the command line and the picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.models.grid.test_pipeline import spec_of
from tests.support.builders import TINY_SPEC, chain, pipeline, together_spec, v
from tests.support.sweeps import EFFORT, sweep, uniform
from weft.app.lib.case import case_of
from weft.app.sweep.points import Axes, variants_of
from weft.app.sweep.run import tightened
from weft.models.spec.spec import Spec, SpecError, demo_spec, parse_spec
from weft.solver import Infeasible, baseline, violations
from weft.text.units import memory_text

SPEC = (TINY_SPEC.replace("micro_batch_size: 1", "micro_batch_size: 2")
        + "placement: {shapes: [chain], backward: [full]}\n")
#: Three caps, the least of which no split fits.
CAPS = ("1.1 GiB", "1.5 GiB", "2 GiB")


def spec() -> Spec:
    return parse_spec(SPEC)


# -- rows -----------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_single_solves() -> None:
    found = sweep(memory=[1, 2, 3], micro_batches=[3, 5], refine=False)
    assert [(row.point.memory, row.point.micro_batches) for row in found.rows] == [
        ((cap, cap), n) for cap in (1, 2, 3) for n in (3, 5)]
    for row in found.rows:
        problem = pipeline(chain(2), memory=row.point.memory[0])
        alone = weft.solve(problem, micro_batches=row.point.micro_batches, effort=EFFORT)
        assert (row.makespan, row.bound, row.gap, row.peak) == (
            alone.makespan, alone.makespan_bound, alone.gap, max(alone.peak_memory))
        assert row.throughput == pytest.approx(row.point.micro_batches / alone.makespan)
        known = weft.compare(problem, micro_batches=row.point.micro_batches, effort=EFFORT)
        assert {(k.name, k.makespan, k.peak) for k in row.known} == {
            (r.name, r.makespan, max(r.peak)) for r in known.rows if r.fits and r.name != "weft"}


def test_a_specs_points_are_its_variants_and_count_their_work() -> None:
    found = sweep(spec(), memory=CAPS, micro_batches=[2, 4], recompute=[True], refine=False)
    assert {entry.point.memory[0] for entry in found.left_out} == {round(1.1 * 2**30)}
    assert all("lacks" in entry.reason for entry in found.left_out)
    assert found.work == "samples"
    for row in found.rows:
        size = memory_text(row.point.memory[0] or 0, "B")[0]
        text = SPEC.replace("memory: 2 GiB", f"memory: {size} GiB").replace(
            "micro_batches: 4", f"micro_batches: {row.point.micro_batches}, recompute: true")
        alone = weft.solve(parse_spec(text), effort=EFFORT)
        static = alone.solver["static_memory"]
        assert (row.makespan, row.peak) == (alone.makespan, max(
            base + peak for base, peak in zip(static, alone.peak_memory, strict=True)))
        assert row.throughput == pytest.approx(2 * row.point.micro_batches / alone.makespan)
        assert row.work == 2 * row.point.micro_batches


def test_throughput_counts_tokens_and_a_size_without_costs_is_left_out() -> None:
    small = demo_spec().model_copy(update={"placement": demo_spec().placement.model_copy(
        update={"shapes": ("chain",), "backward": ("full",)})})
    found = sweep(small, memory=["32 GiB"], micro_batches=[4], micro_batch_sizes=[1, 3, 4], recompute=[True],
                  refine=False)
    assert found.work == "tokens"
    assert [row.work for row in found.rows] == [4 * 2048, 16 * 2048]
    (left_out,) = found.left_out
    assert left_out.point.micro_batch_size == 3
    assert "micro_batch_size" in left_out.reason
    assert f"left out: 3 a micro-batch: {left_out.reason[:40]}" in str(found)


def test_memory_can_be_scaled() -> None:
    uneven = replace(uniform(), devices=tuple(replace(device, memory=amount) for device, amount in zip(
        uniform().devices, (2, 4), strict=True)))
    assert [row.point.memory for row in sweep(uneven, memory=["0.5x", "1.5x"], refine=False).rows] == [(1, 2), (3, 6)]
    found = sweep(spec(), memory=["0.75x"], refine=False)
    assert found.rows[0].point.memory == (1536 * 2**20, 1536 * 2**20)


def test_plain_memory_of_a_problem_is_in_its_unit() -> None:
    rows = {unit: sweep(replace(uniform(), memory_unit=unit), memory=["2", 3], micro_batches=[3], refine=False).rows
            for unit in ("B", "units")}
    assert [row.point.memory for row in rows["B"]] == [row.point.memory for row in rows["units"]] == [(2, 2), (3, 3)]


def test_chunks_and_shapes_are_solved_by_themselves() -> None:
    source = parse_spec(SPEC.replace("[chain]", "[chain, v, loop]"))
    by_chunks = sweep(source, chunks=[1, 2], refine=False)
    assert [row.point.shapes for row in by_chunks.rows] == [("chain",), ("v", "loop")]
    made = [variant.source for variant in variants_of(source, Axes(chunks=[1, 2]))[0]]
    assert [one.placement.chunks for one in made if isinstance(one, Spec)] == [1, 2]  # no loop of three among those
    by_shape = sweep(source, shapes=["v", "loop"], refine=False)
    assert [row.placement.split(",")[0] for row in by_shape.rows] == ["V", "loop"]


def test_refinement_leaves_no_known_schedule_ahead() -> None:
    source = pipeline(v(3), memory=6, split=(1, 1))
    coarse, fine = (sweep(source, micro_batches=[6], refine=refine) for refine in (False, True))
    assert coarse.ahead
    assert not fine.ahead
    assert fine.rows[:1] == coarse.rows
    added = fine.rows[1:]
    assert added and all(row.added for row in added)
    for known in coarse.ahead:
        assert any(row.peak <= known.peak and row.throughput >= known.throughput for row in fine.rows)
    for row in added:  # at that cap, and not only for the known schedule
        assert row.peak <= (row.point.memory[0] or 0)


def test_refinement_counts_what_a_spec_reserves_and_holds() -> None:
    source = parse_spec(SPEC.replace("micro_batches: 4", "micro_batches: 8"))
    found = sweep(source, memory=["2 GiB"], micro_batches=[8])
    assert not found.ahead
    for row in found.rows:
        assert row.peak + 2**30 <= (row.point.memory[0] or 0)


def test_refinement_takes_a_known_schedule_on_gpus_that_compute_together() -> None:
    """Such a schedule is on every GPU, its placement on groups of them."""
    gpt = parse_spec(together_spec("groups, m"))
    case = case_of(gpt)
    placement = next(one for one in case.placements if any(len(group) > 1 for group in one.gpus))
    known = placement.label(baseline("1f1b", placement.problem, 4))
    variant = next(iter(variants_of(gpt, Axes())[0]))
    tighter, found = tightened(variant, case, known)
    own = next(one for one in found.placements if one.gpus == placement.gpus)
    assert tighter.point.memory == (max(known.peak_with_static) + 2**30,) * 4
    assert not violations(own.label(baseline("1f1b", own.problem, 4)))


LENGTHS = """\
model: {family: gpt, layers: 4, hidden: 256, heads: 4, vocabulary: 1000, sequence: 512}
cluster: {gpus: 2, device: a100}
training: {lengths: [512, 256, 256]}
"""
GRID = ("{tensor: 2, pipeline: 4, virtual: 1, data: 4, expert: 1, context: 1, zero: 1, recompute: none, "
        "micro_batch: 1}")


def test_refinement_takes_a_known_schedule_of_a_grid_on_one_gpu_of_each_stage() -> None:
    grid = spec_of(GRID)
    case = case_of(grid)
    placement = case.placements[0]
    known = placement.label(baseline("1f1b", placement.problem, case.micro_batches))
    _, found = tightened(next(iter(variants_of(grid, Axes())[0])), case, known)
    own = next(one for one in found.placements if one.title == placement.title)
    assert own.details["gpu_memory"] == [max(known.peak_with_static)] * 4
    assert not violations(own.label(baseline("1f1b", own.problem, case.micro_batches)))


@pytest.mark.parametrize("axes", [{"recompute": [True]}, {"micro_batch_sizes": [2]}, {"shapes": ["v"]}])
def test_what_a_grid_states_cannot_vary(axes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot vary on a uniform grid"):
        variants_of(spec_of(GRID), Axes(**axes))


def test_lengths_are_the_tokens_of_a_step_and_their_number_is_fixed() -> None:
    listed = parse_spec(LENGTHS)
    (variant,) = variants_of(listed, Axes())[0]
    assert variant.work * variant.point.micro_batches == pytest.approx(512 + 256 + 256)
    with pytest.raises(ValueError, match=r"training\.lengths lists each"):
        variants_of(listed, Axes(micro_batches=[2, 3]))


def test_known_schedules_that_tie_add_one_point() -> None:
    found = sweep(pipeline(v(2), memory=6, split=(1, 1)), micro_batches=[6, 8])
    points = [row.point for row in found.rows]
    assert len(set(points)) == len(points) > 1


# -- the front ------------------------------------------------------------------------------------------------------


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, message", [
    ({"memory": []}, r"memory is \[\], it must be a list with at least one value, or left out"),
    ({"memory": "24 GiB"}, "memory is '24 GiB', it must be a list"),
    ({"memory": ["24 GO"]}, "memory: '24 GO' is no amount, it must be text like '32 GiB'"),
    ({"memory": [0]}, "memory: 0 is no amount, it must be greater than 0"),
    ({"memory": ["-1x"]}, "memory: '-1x' is no amount"),
    ({"memory": ["nanx"]}, "memory: 'nanx' is no amount"),
    ({"micro_batches": [0]}, "micro_batches: 0 is not possible, it must be a whole number from 1 to"),
    ({"micro_batches": [2.0]}, "micro_batches: 2.0 is not possible"),
    ({"micro_batch_sizes": [4]}, "micro_batch_sizes cannot vary for a model that lists its layers"),
    ({"recompute": ["yes"]}, "recompute: 'yes' is not possible, it must be True or False"),
    ({"shapes": ["w"]}, "shapes: 'w' is none of chain, v, loop"),
    ({"shapes": ["v"], "chunks": [2]}, "give either shapes or chunks"),
    ({"shapes": ["tensor"], "chunks": [1]}, "give either shapes or chunks"),
    ({"chunks": [3]}, r"chunks: 3 stages a GPU has no shape that the spec allows, it must be of 1 \(chain\)"),
    ({"micro_batches": list(range(1, 102)), "memory": [f"{m} GiB" for m in range(2, 12)]},
     r"the sweep has 1,010 points \(10 x 1 x 1 x 1 x 101\), at most 1,000"),
    ({"time_limit": 0}, "time_limit is 0, it must be greater than 0"),
    ({"workers": -1}, "workers is -1, it must be at least 1"),
])
def test_a_bad_argument_is_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        sweep(spec(), **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("options, message", [
    ({"recompute": [True]}, "recompute cannot vary in a block problem"),
    ({"chunks": [1]}, "chunks cannot vary in a block problem"),
    ({"micro_batches": None}, "a block problem does not say how many micro-batches run"),
    ({"memory": ["2 GiB"]}, "memory: '2 GiB' is no amount, it must be a number greater than 0"),
])
def test_a_block_problem_has_memory_and_micro_batches_only(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(replace(uniform(), memory_unit="units"), **options)


def test_unlimited_memory_cannot_be_scaled() -> None:
    with pytest.raises(ValueError, match=r"memory: '2x' scales .* all of them are unlimited"):
        sweep(pipeline(chain(2)), memory=["2x"])


def test_a_sweep_without_any_point_says_why(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match="lacks"):
        sweep(spec(), memory=["1.05 GiB", "1.1 GiB"])
    with pytest.raises(SpecError, match="micro_batch_size"):
        sweep(demo_spec(), micro_batch_sizes=[3, 5])


# -- the command line -------------------------------------------------------------------------------------------------


# -- the picture -----------------------------------------------------------------------------------------------------


def test_a_sweep_without_rows_or_of_one_point_is_drawn_or_refused(tmp_path: Path) -> None:
    sweep().save(tmp_path / "one.svg")
    assert "micro-batches per s" in (tmp_path / "one.svg").read_text()
    with pytest.raises(ValueError, match="the sweep has no solved points"):
        replace(sweep(), rows=()).save(tmp_path / "none.svg")
    with pytest.raises(ValueError, match=r"front\.pdf: the ending is .pdf"):
        sweep().save(tmp_path / "front.pdf")
