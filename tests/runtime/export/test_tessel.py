"""Tessel's files, there and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import chain, for_all, pipeline, shape
from tests.support.strategies import Case, cases
from weft.runtime.export.forms import ExportError
from weft.runtime.export.tessel import load_tessel, save_tessel, tessel_from_json, tessel_to_json
from weft.solver import Block, BlockKind, Device, Problem, baseline, solve, violations
from weft.solver.io.entries import FormatError

TESSEL = {"ndevs": 2, "blocks": [
    {"mid": 0, "span": 1, "memory": 1, "btype": "forward", "gid": 0, "step": 0, "device": [0]},
    {"mid": 0, "span": 1, "memory": 1, "btype": "forward", "gid": 1, "step": 1, "device": [1]},
    {"mid": 0, "span": 3, "memory": -1, "btype": "backward", "gid": 2, "step": 2, "device": [1]},
    {"mid": 0, "span": 3, "memory": -1, "btype": "backward", "gid": 3, "step": 5, "device": [0]},
], "repetend": [0, 8]}


def test_tessels_file_of_one_micro_batch() -> None:
    assert tessel_to_json(solve(shape("chain", 2, 2), 1)) == TESSEL
    back = tessel_from_json(json.loads(json.dumps(TESSEL)), "t.json")
    assert back.problem.blocks[3].after[0].block == "b02" and back.makespan == 8 and violations(back) == []


@for_all(cases(max_devices=3, max_micro_batches=4, links=False), tries=50)
def test_a_tessel_schedule_comes_back_in_the_same_order(case: Case) -> None:
    kinds = {BlockKind.FORWARD: BlockKind.FORWARD}
    blocks = tuple(replace(block, kind=kinds.get(block.kind, BlockKind.BACKWARD), memory=block.memory[:1])
                   for block in case.problem.blocks)
    problem = replace(case.problem, blocks=blocks, devices=tuple(replace(d, memory=None) for d in case.problem.devices))
    schedule = baseline("greedy", problem, case.micro_batches)
    value = json.loads(json.dumps(tessel_to_json(schedule)))
    back = tessel_from_json(value, "t.json", problem)
    assert [[(o.block, o.micro_batch) for o in row] for row in back.device_orders] == [
        [(o.block, o.micro_batch) for o in row] for row in schedule.device_orders]
    assert back.makespan <= schedule.makespan * (1 + 1e-9)
    assert violations(tessel_from_json(value, "t.json")) == []  # on the problem that the file itself shows


@pytest.mark.parametrize(("change", "message"), [
    ({"ndevs": 0}, "ndevs is 0"),
    ({"blocks": []}, "blocks is empty"),
    ({"blocks": [{**TESSEL["blocks"][0], "gid": None}]}, r"blocks\[0\]: gid is null"),  # type: ignore[index]
    ({"blocks": [{**TESSEL["blocks"][0], "device": [2]}]}, r"device is \[2\], it must be"),  # type: ignore[index]
    ({"blocks": [{**TESSEL["blocks"][0], "btype": "w"}]}, "btype is 'w'"),  # type: ignore[index]
    ({"blocks": [TESSEL["blocks"][0]] * 2}, "block 0 of micro-batch 0 is there twice"),  # type: ignore[index]
    ({"blocks": [TESSEL["blocks"][1]]}, "block 0 of micro-batch 0 is missing"),  # type: ignore[index]
])
def test_a_tessel_file_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=f"^t.json: .*{message}"):
        tessel_from_json({**TESSEL, **change}, "t.json")


def test_tessels_file_of_another_problem_is_refused(tmp_path: Path) -> None:
    save_tessel(solve(shape("chain", 2, 2), 3), tmp_path / "t.json")
    with pytest.raises(FormatError, match=r"t.json: has 4 blocks on 2 devices, but the problem .* has 6 on 2"):
        load_tessel(tmp_path / "t.json", shape("k", 2, 6))
    with pytest.raises(FormatError, match=r"block 1 is forward on devices \[1\], but the problem's block 1, 'f1', is"):
        load_tessel(tmp_path / "t.json", pipeline([0, 0], memory=9).__class__(
            "one", (Device("a"), Device("b")), pipeline([0, 0]).blocks))


def test_steps_that_are_ranks_come_back_on_the_problem_that_they_are_of() -> None:
    problem = pipeline(chain(4), forward=1.0000001, backward=2, memory=4)
    schedule = baseline("1f1b", problem, 6)
    value = tessel_to_json(schedule)
    assert len({(row["gid"], row["span"]) for row in value["blocks"]}) > len(problem.blocks)
    back = tessel_from_json(value, "t.json", problem)
    assert [[o[:2] for o in row] for row in back.device_orders] == [[o[:2] for o in row]
                                                                    for row in schedule.device_orders]
    assert back.makespan <= schedule.makespan * (1 + 1e-9)
    with pytest.raises(FormatError, match=r"in span, .*with the block problem that it is of its order is read alone"):
        tessel_from_json(value, "t.json")


def test_what_tessel_cannot_express_is_refused() -> None:
    both = Block("x", BlockKind.FORWARD, (0, 1), 1, (1, 2))
    with pytest.raises(ExportError, match="block 'x' takes 1, 2 on its devices, it has one amount for all"):
        tessel_to_json(baseline("greedy", Problem("p", (Device("a"), Device("b")), (both,)), 1))
    other = Block("x", BlockKind.RECOMPUTE, (0,), 1)
    with pytest.raises(ExportError, match="block 'x' is of kind recompute"):
        tessel_to_json(baseline("greedy", Problem("p", (Device("a"),), (other,)), 1))
