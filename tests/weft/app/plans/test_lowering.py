"""Plans as instructions: what ranks do together stands in one order, and devices are ranks."""

from __future__ import annotations

import random

import pytest

from tests.support.programs import experts, mlp, random_plan, transformer
from weft.app.plans.lowering import lower
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanError
from weft.runtime.by_hand.instructions import Collective, Exchange, RankProgram


def meetings(program: RankProgram, with_ranks: set[int]) -> list[object]:
    """What a rank does together with all of ``with_ranks``, in its order."""
    return [(one.kind, one.into, one.had) for one in program.instructions
            if isinstance(one, Collective) and with_ranks <= set(one.group)]


def test_collectives_stand_in_one_order_on_all_ranks_and_messages_have_both_ends() -> None:
    draw = random.Random(5)
    for model in (mlp, transformer, experts):
        for _ in range(3):
            programs = lower(random_plan(model(), draw).preserve(), 4)
            for one in range(4):
                for other in range(one):
                    pair = {one, other}
                    assert meetings(programs[one], pair) == meetings(programs[other], pair)
                    for a, b in ((one, other), (other, one)):
                        sent = [[high - low for low, high in span] for entry in programs[a].instructions
                                if isinstance(entry, Exchange) for to, span in entry.sends if to == b]
                        came = [[high - low for low, high in span] for entry in programs[b].instructions
                                if isinstance(entry, Exchange) for source, span in entry.receives if source == a]
                        assert sent == came


def test_megatron_has_its_collectives_on_every_rank() -> None:
    plan = TransformPlan(transformer()).split("*.q *.k *.v *.attend *.out", "h", 4).split("*.up *.act *.down", "f", 4)
    programs = lower(plan.split("*.ln? *.add?", "s", 4).assign("*", range(4)).preserve(), 4)
    for program in programs:
        assert program.groups == ((0, 1, 2, 3),)
        kinds = [one.kind for one in program.instructions if isinstance(one, Collective)]
        assert kinds.count("reduce_scatter") == 4 and "all_reduce" not in kinds


def test_more_devices_than_ranks_are_refused() -> None:
    done = TransformPlan(mlp()).split("up bias act", "f", 4).assign("*", range(4)).preserve()
    with pytest.raises(PlanError, match="uses device 3, but there are 2 ranks"):
        lower(done, 2)
