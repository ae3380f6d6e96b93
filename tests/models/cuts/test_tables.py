"""What every stage costs, in arrays: the blocks that are made of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.support.cut_specs import MODES, Mode, problems_of, space_of


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [0, 1, 4])
def test_durations_and_memory_are_those_of_the_blocks(mode: Mode, number: int) -> None:
    space = space_of(number, mode, gpus=3, unequal=True)
    letters = {"full": ("F", "B", ""), "split": ("F", "IB", "W"), "none": ("F", "", "")}[mode]
    kinds = set()
    stages = {(s, *pair): problem for cut, problem in problems_of(space).items()
              for s, pair in enumerate(pairwise(cut))}
    for (s, first, last), problem in stages.items():
        table = space.ground.tables[space.ground.kind[space.ground.layout.devices[s]]]
        for which, named in enumerate(letters):
            block = next((block for block in problem.blocks
                          if block.name[0] in named and block.name[1:] == str(s)), None)
            numbers = [int(table.durations[which][first, last]), int(table.take[which][first, last]),
                       int(table.change[which][first, last])]
            kinds.add(block.name[0] if block else "")
            if block is None:
                assert numbers == [0, 0, 0]
            else:
                [memory], [workspace] = block.memory, block.workspace
                assert numbers == [round(block.duration * 1e9), max(memory, 0) + workspace, memory]
        assert (table.work == sum(table.durations)).all() and (table.kept == table.change[0]).all()
    assert kinds == {"full": {"F", "B", ""}, "none": {"F", ""},
                     "split": {"F", "I", "W", *(["B", ""] if number == 1 else [""] if number else [])}}[mode]
    assert (np.tril(space.ground.tables[0].static) == 0).all()
