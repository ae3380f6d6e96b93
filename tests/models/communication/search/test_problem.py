"""Programs as wide problems: the known best numbers of chunks, variants, and what is left out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.communication import chunked_collective, error, pipelined, random_program, tensor_parallel
from tests.support.examples import slow
from weft.communication import Builder, Prices, add_adam, data_parallel, fuse, overlap, random_values
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.models.communication.search.problem import CHUNKS, VARIANT, choices_of, tune
from weft.models.communication.search.schedules import ProgramSchedule, schedules
from weft.solver.choices.solve import solve_run

COUNTS = (1, 2, 4, 8, 16)
KNOWN = [((1000, 1000, 100, 20), 1297.5, 8), ((1000, 500, 50, 20), 1054.375, 16), ((500, 1000, 50, 20), 1217.5, 4)]


@pytest.mark.parametrize(("times", "best", "count"), KNOWN)
def test_the_best_number_is_chosen_and_proven(times: tuple[int, int, int, int], best: float, count: int) -> None:
    program, prices = chunked_collective(*times)
    choices = choices_of(program, prices, COUNTS, variants=[ProgramSchedule(program, ())], every_chain=False,
                         leave_out=False)
    assert choices.problem.choices == {CHUNKS: ("1", "2", "4", "8", "16")}
    found = solve_run(choices.problem, 1, effort=4.0)
    assert found.makespan == pytest.approx(best) == found.makespan_bound
    assert found.choices == {CHUNKS: str(count)}
    assert choices.chosen(found.choices).overlaps == overlap(program, ["compute", "sum", "after"], count).overlaps


def test_one_choice_of_transformation_chunks_and_order() -> None:
    program, prices = chunked_collective(*KNOWN[0][0])
    every = choices_of(program, prices, (1, 4, 8), every_chain=False, leave_out=False)
    assert set(every.problem.choices) == {VARIANT, CHUNKS} and every.complete
    found = solve_run(every.problem, 1, effort=8.0)
    assert found.choices == {VARIANT: "MM-(RS-C-AG)", CHUNKS: "8"}
    assert found.makespan == found.makespan_bound == pytest.approx(1285.0)
    tuned = tune(program, prices, (1, 4, 8), effort=4.0)
    assert (tuned.variant, tuned.chunks, tuned.microseconds, tuned.proven) == ("MM-(RS-C-AG)", 8, 1285.0, True)
    assert error(program, tuned.program) < 1e-12
    assert str(tuned) == ("MM-(RS-C-AG), compute -> sum + after + gather(after) in 8 chunks: 1285 us, proven best of "
                          f"{every.tried} programs")


def cases() -> list[Any]:
    prices = Prices(bandwidth=1e8, memory=1e9, launch=2e-6, kernel=1e-6, flops=1e9)
    return [slow(tensor_parallel(2), prices), (pipelined(), prices)]


@pytest.mark.parametrize(("program", "prices"), cases())
def test_what_is_left_out_is_no_better(program: CommunicationProgram, prices: Prices) -> None:
    every = choices_of(program, prices, (1, 4), every_chain=False, leave_out=False)
    best = solve_run(every.problem, 1, effort=20.0)
    assert best.makespan == best.makespan_bound
    tuned = tune(program, prices, (1, 4), every_chain=False, effort=4.0)
    assert tuned.microseconds == pytest.approx(best.makespan) and tuned.proven
    assert tuned.choices.tried == len(every.variants) > len(tuned.choices.variants)


@pytest.mark.parametrize("seed", [1, 2, *map(slow, (0, 3, 4, 5))])
def test_the_best_of_random_programs_is_not_left_out(seed: int) -> None:
    draw = random.Random(seed)
    program = random_program(draw)
    prices = Prices(bandwidth=draw.choice([1e8, 1e9]), memory=draw.choice([1e9, 1e10]), launch=draw.choice([0.0, 3e-6]),
                    kernel=1e-6, flops=1e10)
    some = schedules(program, 8).schedules
    every = choices_of(program, prices, (1, 2), variants=some, leave_out=False)
    best = solve_run(every.problem, 1, effort=20.0)
    tuned = tune(program, prices, (1, 2), variants=some, effort=10.0)
    assert tuned.microseconds == best.makespan == best.makespan_bound and tuned.proven
    assert error(program, tuned.program) < 1e-12


def test_every_chain_is_a_variant() -> None:
    program, prices = chunked_collective(300, 100, 100, 30)
    written = [ProgramSchedule(program, ())]
    every = choices_of(program, prices, (1, 2, 4), variants=written, leave_out=False)
    assert list(every.chains.values()) == [(("compute", "sum", "after"),), (("compute", "sum"),), (("sum", "after"),)]
    best = solve_run(every.problem, 1, effort=10.0)
    tuned = tune(program, prices, (1, 2, 4), variants=written, effort=4.0)
    longest = tune(program, prices, (1, 2, 4), variants=written, every_chain=False, effort=4.0)
    assert tuned.microseconds == best.makespan <= longest.microseconds
    assert tuned.microseconds == best.makespan_bound


def test_chains_that_fit_beside_each_other_run_in_chunks_at_once() -> None:
    step = Builder("two layers", 2)
    for name in ("one", "other"):
        x, w = step.input(f"x {name}", (32, 32), "sliced", 1), step.parameter(f"w {name}", (32, 32), "sliced", 0)
        step.pointwise(f"out {name}", "gelu", step.all_reduce(f"sum {name}", step.matmul(name, x, w)))
    program = step.build("out one", "out other")
    prices = Prices(bandwidth=32 * 32 * 4 / 100e-6, memory=1e12, launch=1e-6, compute={"one": 1e-4, "other": 1e-4})
    tuned = tune(program, prices, (1, 4), variants=[ProgramSchedule(program, ())], effort=4.0)
    assert tuned.chains == (("one", "sum one", "out one"), ("other", "sum other", "out other")) and tuned.proven
    assert tuned.chunks == 4 and len(tuned.program.overlaps) == 2
    assert error(program, tuned.program) < 1e-12


@pytest.mark.parametrize("optimizer", [slow("adam"), "lamb"])
def test_long_updates_run_on_slices_fused_with_their_collectives(optimizer: str) -> None:
    long, short = data_parallel(optimizer, 4, (4096, 4096)), data_parallel(optimizer, 4, (16,))
    prices = Prices(bandwidth=100e9, memory=500e9, launch=20e-6, kernel=5e-6)
    variants = [ProgramSchedule(entry.program, entry.passes) for entry in schedules(long, 90).schedules]
    tuned = tune(long, prices, (1,), variants=variants, effort=4.0)
    assert (tuned.variant, tuned.proven) == ("(RS-C-AG)", True)
    assert {"gradient", "weight.step"} <= {leaf.name for leaf in tuned.program.stages[0].leaves()}
    assert tuned.program.state_bytes() * 4 == long.state_bytes()
    whole = tune(short, prices, (1,), limit=60, effort=4.0)
    assert whole.variant != "RS-C-AG" and whole.microseconds < 60


def test_states_that_do_not_fit_rule_variants_out() -> None:
    program = data_parallel("adam", 4, (16, 16))
    prices = Prices(bandwidth=1e9, memory=1e12, launch=50e-6)
    size = 16 * 16 * 4
    apart = [entry for entry in schedules(program).schedules if "fused" not in entry.name]
    assert tune(program, prices, (1,), variants=apart, effort=2.0).variant == "AR-C"
    fitting = tune(program, prices, (1,), variants=apart, held=size + size // 2, effort=2.0)
    assert fitting.program.state_bytes() == size // 2
    with pytest.raises(CommunicationError, match=f"more than 100 bytes on each rank, the least {size + size // 2}"):
        tune(program, prices, (1,), held=100)


@pytest.mark.parametrize("counts", [[], [0, 1], [2, 2], [1.5], "12"])
def test_numbers_that_mean_nothing_are_refused(counts: Sequence[int]) -> None:
    program, prices = chunked_collective(*KNOWN[0][0])
    with pytest.raises(CommunicationError, match="chunks: "):
        choices_of(program, prices, counts)
    with pytest.raises(CommunicationError, match="limit is 0, at least the program as it is written is one"):
        choices_of(program, prices, limit=0)
    with pytest.raises(CommunicationError, match="seconds of 'sum', but it is of kind all_reduce"):
        choices_of(program, replace(prices, compute={"sum": 1.0}))


def test_a_program_that_takes_no_time_is_refused() -> None:
    step = Builder("nothing", 2)
    program = step.build(step.slice("part", step.input("x", (4,))))
    with pytest.raises(CommunicationError, match="nothing of 'nothing' takes any time"):
        choices_of(program, Prices(bandwidth=1.0, memory=1.0))


def test_a_number_that_divides_nothing_runs_whole() -> None:
    program, prices = chunked_collective(*KNOWN[0][0])
    choices = choices_of(program, prices, (1, 3), variants=[ProgramSchedule(program, ())], every_chain=False,
                         leave_out=False)
    assert choices.chosen({CHUNKS: "3"}).overlaps == ()
    assert len([block for block in choices.problem.blocks if block.when == {CHUNKS: "3"}]) == 3
    assert error(program, choices.chosen({CHUNKS: "3"}), random_values(program)) == 0


_PRICES = Prices(bandwidth=1e9, memory=1e11, flops=1e10, launch=1e-7, kernel=1e-8)


def _small(draw: random.Random) -> CommunicationProgram:
    """Two rows of a product or an input, a sum over the ranks and an operation, five stages at most."""
    step = Builder("small", draw.choice([2, 4]))
    outputs = []
    for number in range(2):
        if number == 0 and draw.random() < 0.5:
            x, w = step.input("x", (8, 8), "sliced", axis=1), step.parameter("w", (8, 8), "sliced", axis=0)
            made = step.matmul("y", x, w)
        else:
            made = step.input(f"g{number}", (8, 8), "local")
        total = step.all_reduce(f"t{number}", made)
        outputs.append(step.pointwise(f"o{number}", "relu", total) if draw.random() < 0.5 else total)
    return step.build(*outputs)


@pytest.mark.parametrize("seed", [0, 1, *map(slow, range(2, 6))])
def test_no_legal_fusion_is_better_than_what_is_called_best(seed: int) -> None:
    draw = random.Random(seed)
    program = _small(draw)
    found = tune(program, _PRICES, counts=(1, 2), effort=2.0)
    assert found.proven
    base = schedules(program).schedules
    for _ in range(12):
        at = draw.choice([entry.program for entry in base if not any(stage.parts for stage in entry.program.stages)])
        names = [stage.name for stage in at.stages]
        try:
            fused = fuse(at, draw.sample(names, draw.randint(2, len(names))))
        except CommunicationError:
            continue
        other = tune(program, _PRICES, counts=(1, 2), variants=[ProgramSchedule(fused, ("fuse",))], effort=2.0)
        if found.choices.complete and found.choices.every_fusion:
            assert other.microseconds >= found.bound * (1 - 1e-9), str(fused)
        else:
            assert "proven best" not in str(found) or "not every way" in str(found) or "there are more" in str(found)


@pytest.mark.parametrize("seed", range(4))
def test_every_program_reached_computes_the_same(seed: int) -> None:
    program = _small(random.Random(seed))
    for entry in schedules(program).schedules:
        assert error(program, entry.program) < 1e-6, entry.name


def test_sums_of_several_weights_share_a_launch() -> None:
    step = Builder("adam of two weights", ranks=4)
    count, outs = step.input("step"), []
    for i in range(2):
        gradient, weight = step.input(f"g{i}", (4096,), "local"), step.parameter(f"w{i}", (4096,))
        total = step.all_reduce(f"s{i}", gradient)
        outs.append(add_adam(step, weight, step.pointwise(f"mean{i}", "scale", total, factor=0.25), count))
    program = step.build(*outs)
    prices = Prices(bandwidth=10e9, memory=1e12, launch=50e-6, kernel=5e-6)
    found = tune(program, prices, limit=24, effort=2.0)
    assert found.microseconds < 60  # two launches alone take 100
    assert "there are more" in str(found)
    assert error(program, found.program) < 1e-6
