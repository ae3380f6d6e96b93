"""Tessel's files, there and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.support.builders import pipeline
from tests.support.examples import examples
from tests.support.strategies import Case, cases
from tests.support.tessel_shapes import shape
from weft.runtime.export.refusal import ExportError
from weft.runtime.export.tessel import load_tessel, save_tessel, tessel_from_json, tessel_to_json
from weft.solver.baselines import baseline
from weft.solver.io.entries import FormatError
from weft.solver.judge.validate import violations
from weft.solver.problem import Block, BlockKind, Device, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.step.search import solve

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


def test_the_repetend_holds_every_block_once() -> None:
    value = tessel_to_json(solve(shape("chain", 2, 2), 6))
    first, behind = value["repetend"]
    inside = [block for block in value["blocks"] if first <= block["step"] < behind]
    assert sorted(block["gid"] for block in inside) == [0, 1, 2, 3] and 0 < first < behind
    before = {(block["gid"], block["mid"]) for block in value["blocks"] if block["step"] < first}
    in_it = {block["gid"]: block["mid"] for block in inside}
    assert before == {(gid, m) for gid, last in in_it.items() for m in range(last)}


def repeated(value: dict[str, Any], more: int) -> list[tuple[int, int, int]]:
    """``(block, micro-batch, step)`` as Tessel's ``unroll`` makes them of a file it has loaded: what starts before the
    repetend once, the repetend every period, then the rest."""
    first, behind = value["repetend"]
    inside = [block for block in value["blocks"] if first <= block["step"] < behind]
    period = max(max(block["step"] + block["span"] for block in row) - min(block["step"] for block in row)
                 for device in range(value["ndevs"])
                 if (row := [block for block in inside if device in block["device"]]))
    operations = []
    for block in value["blocks"]:
        copies = [0] if block["step"] < first else range(more + 1) if block["step"] < behind else [more]
        operations += [(block["gid"], block["mid"] + copy, block["step"] + copy * period) for copy in copies]
    return operations


@pytest.mark.parametrize("kind", ["chain", "m", "nn", "k"])
@pytest.mark.parametrize("memory", [None, 6])
def test_tessel_may_repeat_the_repetend(kind: str, memory: int | None) -> None:
    problem = shape(kind, 2, memory)
    value = tessel_to_json(solve(problem, 12, effort=0.5))
    assert value["repetend"][0] < value["repetend"][1]
    operations = tuple(Operation(block, m, step, step + problem.blocks[block].duration)
                       for block, m, step in repeated(value, 5))
    assert violations(Schedule(problem, 17, operations, 0.0)) == []


@settings(max_examples=examples(50))
@given(cases(max_devices=3, max_micro_batches=4, links=False))
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


def test_what_tessel_cannot_express_is_refused() -> None:
    both = Block("x", BlockKind.FORWARD, (0, 1), 1, (1, 2))
    with pytest.raises(ExportError, match="block 'x' takes 1, 2 on its devices, it has one amount for all"):
        tessel_to_json(baseline("greedy", Problem("p", (Device("a"), Device("b")), (both,)), 1))
    other = Block("x", BlockKind.RECOMPUTE, (0,), 1)
    with pytest.raises(ExportError, match="block 'x' is of kind recompute"):
        tessel_to_json(baseline("greedy", Problem("p", (Device("a"),), (other,)), 1))
