"""What the tree says is proven, however its search ends."""

from __future__ import annotations

import pytest

from tests.support.class_runs import pipeline_of_lengths
from weft.solver.choices.sequences.node import SequenceNode, SequenceProblem
from weft.solver.choices.sequences.partial import given_sequences
from weft.solver.choices.tree import Tree
from weft.solver.control.clock import OutOfTime, watching
from weft.solver.cpsat.budget import Budget


def test_a_node_under_a_closer_look_when_time_is_over_still_counts() -> None:
    wide, run = pipeline_of_lengths(2, [4, 1, 2])
    tree = Tree(SequenceNode(SequenceProblem(wide, {}), given_sequences(run)), Budget(), "makespan", lambda _: None)
    bound = tree.bound
    with pytest.raises(OutOfTime), watching(lambda: True):
        tree._closer()
    assert tree.bound == bound and len(tree.open_nodes) == 1
