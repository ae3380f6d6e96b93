"""Programs as instructions of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.communication_programs import chunked, pipeline, sliced_optimizer, tensor_parallel
from weft.app.communication.lowering import Emulated, StageOrder, lane_of, lower
from weft.communication import Tuned, overlap, schedules, tune
from weft.models.communication.prices import Prices, work_of
from weft.models.communication.program import CommunicationError, CommunicationProgram
from weft.runtime.communication.instructions import LaneProgram, LaneStep, LaneWait


def chain(count: int) -> CommunicationProgram:
    program = tensor_parallel(2, 16, 8, 12)
    (found,) = chunked(program, tuple(stage.name for stage in program.stages), (count,))
    return found


def shown(program: LaneProgram) -> list[str]:
    """Instructions in words."""
    return [f"wait {' '.join(f'{stage} {chunk}' for stage, chunk in one.keys)}" if isinstance(one, LaneWait) else
            f"{'' if one.lane == 'compute' else 'start '}{one.key[0]} {one.key[1]}" for one in program.instructions]


def test_collectives_start_behind_what_they_read_and_are_waited_for_before_their_reader() -> None:
    assert shown(lower(chain(2), 0)) == [
        "product 0", "start sum 0", "product 1", "start sum 1", "wait sum 0", "biased 0", "kept 0", "out 0",
        "wait sum 1", "biased 1", "kept 1", "out 1"]


@pytest.mark.parametrize("program", [tensor_parallel(2, 16, 8, 12), pipeline(2, 8, 8)], ids=lambda one: one.name)
def test_all_ranks_of_a_group_do_the_same_and_wait_for_all_that_they_read(program: CommunicationProgram) -> None:
    for entry in schedules(program).schedules:
        ranks = [lower(entry.program, rank) for rank in range(program.ranks * program.groups)]
        for group in range(program.groups):
            own = ranks[group * program.ranks:(group + 1) * program.ranks]
            assert len({str(shown(one)) for one in own}) == 1
        assert len({one.digest for one in ranks}) == 1
        for one in ranks:
            _require_waits(one)


def _require_waits(program: LaneProgram) -> None:
    """Each reader on another lane waits for what is made on a network lane; each key is waited for once at most."""
    made: dict[str, LaneStep] = {}
    waited: list[object] = []
    for instruction in program.instructions:
        if isinstance(instruction, LaneWait):
            waited += instruction.keys
            continue
        for part in instruction.reads:
            maker = made.get(part.name)
            if maker is not None and maker.lane not in ("compute", instruction.lane):
                assert maker.key in waited or maker.key in instruction.after
        made |= {part.name: instruction for part in instruction.writes}
    assert len(waited) == len(set(waited))


def test_what_is_given_and_kept_is_that_of_the_ranks_group() -> None:
    program = pipeline(2, 8, 8)
    first, second = lower(program, 1), lower(program, 2)
    assert (first.index, first.group, first.given, first.kept) == (1, 0, ("x",), ())
    assert (second.index, second.group, second.given, second.kept) == (0, 1, ("w",), ("out",))


def test_chunks_take_their_share_and_a_launch_each() -> None:
    program = chain(4)
    lowered = lower(program, 0, Emulated({"sum": 0.2}, {"sum": 0.004}))
    seconds = [one.seconds for one in lowered.instructions if isinstance(one, LaneStep) and one.key[0] == "sum"]
    assert seconds == pytest.approx([0.054] * 4)
    assert all(one.seconds == 0 for one in lowered.instructions if isinstance(one, LaneStep) and one.key[0] != "sum")


def test_prices_are_what_stages_take() -> None:
    program, prices = chain(2), Prices(bandwidth=1e6, memory=1e9, launch=1e-3, flops=1e9)
    emulated = Emulated.of(program, prices)
    (work,) = work_of(program, program.stage("sum"), prices)
    assert emulated.seconds["sum"] == work.seconds and emulated.launches["sum"] == 1e-3 == work.launch


def test_different_programs_and_orders_have_different_digests() -> None:
    assert len({lower(chain(count), 0).digest for count in (1, 2, 4)}) == 3


@pytest.mark.parametrize(("emulated", "sentence"), [
    (Emulated({"sun": 1.0}), "there is no stage 'sun'"), (Emulated({"sum": -1.0}), "'sum' is to take -1.0 seconds"),
    (Emulated({}, {"sum": float("nan")}), "'sum' is to take nan seconds")])
def test_stages_that_are_not_there_or_take_no_time_that_can_be_are_refused(emulated: Emulated, sentence: str) -> None:
    with pytest.raises(CommunicationError, match=sentence):
        lower(chain(2), 0, emulated)


PRICES = Prices(bandwidth=1e6, memory=1e7, launch=1e-5, kernel=1e-6, flops=1e8)


def tuned() -> Tuned:
    return tune(tensor_parallel(2, 64, 32, 64), PRICES, (1, 4), effort=1.0)


def chains(program: CommunicationProgram) -> list[CommunicationProgram]:
    """``program`` with every run of neighbouring stages that can be in two chunks."""
    names, found = [stage.name for stage in program.stages], []
    for first in range(len(names)):
        for last in range(first + 2, len(names) + 1):
            try:
                found.append(overlap(program, names[first:last], 2))
            except CommunicationError:
                continue
    return found


def is_ordered(order: StageOrder) -> bool:
    """Whether everything comes once, behind all that it reads."""
    keys = order.steps()
    place = {key: i for i, key in enumerate(keys)}
    count = sum(order.chain_of[stage.name].chunks if stage.name in order.chain_of else 1
                for stage in order.program.stages)
    return len(place) == len(keys) == count and all(place[read] < place[key] for key in keys
                                                    for read in order.reads(key))


@pytest.mark.parametrize("program", [tensor_parallel(2, 16, 8, 12), pipeline(2, 8, 8),
                                     sliced_optimizer("lamb", 2, (16, 3))], ids=lambda program: program.name)
def test_nothing_comes_before_what_it_reads(program: CommunicationProgram) -> None:
    for schedule in schedules(program, 20).schedules:
        assert is_ordered(StageOrder(schedule.program))
        for one in chains(schedule.program):
            assert is_ordered(StageOrder(one))


def test_of_two_runs_the_first_goes_first_and_of_three_they_go_in_step() -> None:
    program = tensor_parallel(2, 16, 8, 12)
    names = [stage.name for stage in program.stages]
    (two,) = chunked(program, tuple(names[:3]), (2,))
    assert StageOrder(two).steps()[:6] == [("product", 0), ("sum", 0), ("product", 1), ("sum", 1), ("biased", 0),
                                     ("biased", 1)]
    split = next(entry.program for entry in schedules(program).schedules
                 if entry.passes == ("split sum", "reorder biased"))
    chain = ("product", "sum", "biased", "gather(biased)", "kept")
    (three,) = chunked(split, chain, (2,))
    assert [key for key in StageOrder(three).steps() if key[0] in chain] == [
        ("product", 0), ("sum", 0), ("product", 1), ("sum", 1), ("biased", 0), ("gather(biased)", 0),
        ("biased", 1), ("gather(biased)", 1), ("kept", 0), ("kept", 1)]


def test_each_lane_has_the_order_of_the_schedule() -> None:
    found = tuned()
    order = StageOrder(found.program, found.schedule)
    assert is_ordered(order) and found.chunks > 1
    starts = {found.schedule.problem.blocks[operation.block].name: operation.start
              for operation in found.schedule.operations}
    for lane in ("compute", "network"):
        begins = [starts[name] for stage, chunk in order.steps() if lane_of(found.program.by_name[stage]) == lane
                  and (name := f"{stage} {chunk}" if stage in order.chain_of else stage) in starts]
        assert len(begins) > 3 and begins == sorted(begins)


def test_the_schedule_of_another_program_is_refused() -> None:
    found = tuned()
    with pytest.raises(CommunicationError, match="which this program does not run"):
        StageOrder(sliced_optimizer("adam", 2, (16, 3)), found.schedule).steps()
    with pytest.raises(CommunicationError, match="has 2 runs of its blocks: give one of 1"):
        StageOrder(found.program, replace(found.schedule, micro_batches=2)).steps()
