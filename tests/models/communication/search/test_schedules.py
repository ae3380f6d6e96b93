"""What the passes reach: all of it keeps the values, each once."""

from __future__ import annotations

import pytest

from tests.support.communication import error, pipelined, tensor_parallel
from weft.communication import Builder, add_adam, data_parallel, random_values
from weft.models.communication.program import CommunicationProgram
from weft.models.communication.search.chains import title
from weft.models.communication.search.schedules import fused_parts, schedules


@pytest.mark.parametrize(("program", "count", "best"), [
    (data_parallel("sgd", 4, (4, 8)), 5, "(RS-C-AG)"), (data_parallel("adam", 4, (4, 8)), None, "(RS-C-AG)"),
    (tensor_parallel(), 5, "MM-(RS-C-AG)"), (pipelined(), 6, "RS-(P2P-C-AG)")])
def test_every_schedule_keeps_the_values(program: CommunicationProgram, count: int | None, best: str) -> None:
    """``count``: as written, split, and every stage of a row moved, before anything is fused."""
    reached = schedules(program)
    assert reached.complete and str(reached).startswith(f"{len(reached.schedules)} programs")
    given = random_values(program)
    assert max(error(program, entry.program, given) for entry in reached.schedules) < 1e-12
    names = [str(sorted(map(str, entry.program.stages))) for entry in reached.schedules]
    assert len(set(names)) == len(names)
    assert best in {title(entry.program) for entry in reached.schedules}
    assert reached.schedules[0].program is program and reached.schedules[0].name == "as written"
    assert count in (None, sum("fuse" not in entry.name and "join" not in entry.name for entry in reached.schedules))


def test_lamb_is_reached_to_its_end_under_a_limit_too() -> None:
    program = data_parallel("lamb", 4, (4, 8))
    reached = schedules(program, 90)
    assert not reached.complete and 90 <= len(reached.schedules) <= 90 + 128 and "the limit" in str(reached)
    given = random_values(program)
    assert max(error(program, entry.program, given) for entry in reached.schedules) < 1e-12
    sliced = [entry for entry in reached.schedules if entry.program.state_bytes() * 4 == program.state_bytes()]
    assert any(title(entry.program) == "(RS-C-AG)" for entry in sliced)


def test_pointwise_parts_are_one_stage_between_collectives() -> None:
    program = data_parallel("lamb", 4, (4, 8))
    assert title(program) == "AR-C"
    assert title(fused_parts(program)) == "AR-(C)" and len(fused_parts(program).stages) == 2
    assert fused_parts(fused_parts(program)).stages == fused_parts(program).stages


def test_what_reads_one_number_alike_is_not_fused_for_that() -> None:
    step = Builder("two weights", 2)
    count = step.input("step")
    made = [add_adam(step, step.parameter(name, (8,)), step.all_reduce(f"sum {name}", step.input(f"own {name}", (8,),
                                                                                              "local")), count)
            for name in ("one", "other")]
    program = step.build(*made)
    assert title(fused_parts(program)) == "AR-AR-(C)-(C)"
    reached = schedules(program, 100)
    assert "(RS-C-AG)-(RS-C-AG)" in {title(entry.program) for entry in reached.schedules}
