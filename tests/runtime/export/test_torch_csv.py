"""PyTorch's pipelining CSV: what is written, and what is read."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import both_ways, chain, for_all, in_order, pipeline, pipelines, shape, v
from weft.runtime.export.forms import ExportError
from weft.runtime.export.torch_check import check_communication
from weft.runtime.export.torch_csv import TorchAction, TorchVersion, parse_cell, torch_csv
from weft.runtime.export.torch_import import parse_table, schedule_of_table
from weft.solver import Block, BlockKind, Device, Problem, Schedule, baseline, time_orders, violations
from weft.solver.io.entries import FormatError

VERSIONS = ("2.6", "2.9", "2.10", "2.13", "2.15")

ZB_H1_COMPUTE = """\
0F0,0F1,0B0,0F2,0B1,0B2
1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2
"""
ZB_H1_215 = """\
0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0F2,0SEND_F2,0RECV_B1,0B1,0WAIT_SEND_F1,0RECV_B2,0B2,\
0WAIT_SEND_F2,0REDUCE_GRAD,0WAIT_REDUCE_GRAD
1RECV_F0,1F0,1RECV_F1,1I0,1SEND_B0,1F1,1I1,1RECV_F2,1SEND_B1,1W0,1F2,1I2,1SEND_B2,1W1,1W2,1REDUCE_GRAD,\
1WAIT_REDUCE_GRAD,1WAIT_SEND_B0,1WAIT_SEND_B1,1WAIT_SEND_B2
"""


def zb_h1() -> Schedule:
    return baseline("zb-h1", pipeline(chain(2), split=(1, 1), first_input_grad=False), 3)


# -- out -----------------------------------------------------------------------------------------------------------


def test_the_text_of_a_small_schedule() -> None:
    assert torch_csv(zb_h1()) == ZB_H1_COMPUTE
    assert torch_csv(zb_h1(), communication=True, torch="2.15.0") == ZB_H1_215


def test_versions_differ_in_reductions_and_waits_only() -> None:
    newest = torch_csv(zb_h1(), communication=True, torch="2.15")
    middle = re.sub(r",\d+WAIT_\w+", "", newest)
    assert torch_csv(zb_h1(), communication=True, torch="2.13.0+cpu") == middle
    assert torch_csv(zb_h1(), communication=True, torch="2.10") == middle
    assert torch_csv(zb_h1(), communication=True, torch="2.9.1") == re.sub(r",\d+REDUCE_GRAD", "", middle)
    assert len({torch_csv(zb_h1(), torch=version) for version in VERSIONS}) == 1


@pytest.mark.parametrize("text", ["2.5", "1.13", "two", "", "2", "2.13x13", "99999.99999"])
def test_versions_that_are_not_known_are_refused(text: str) -> None:
    if text == "2.13x13":
        assert TorchVersion.of(text) == (2, 13)
    else:
        with pytest.raises(ValueError, match=r"the PyTorch version is .* it must be 2\.6 or newer"):
            torch_csv(zb_h1(), torch=text)


@pytest.mark.parametrize(("problem", "message"), [
    (shape("m", 2, 6), "block 'b00' runs on 2 devices"),
    (shape("k", 2, 6), "do not follow each other|runs on 2 devices"),
    (both_ways(2), "do not follow each other"),
    (Problem("r", (Device("a"),), (Block("x", BlockKind.RECOMPUTE, (0,), 1),)), "block 'x' is of kind recompute"),
    (pipeline(chain(2), backward=None), "it has no backward"),
    (replace(pipeline(chain(2)), devices=(Device("a"), Device("b"), Device("c"))), "device 'c' runs no stage"),
])
def test_what_pytorch_cannot_express_is_refused_by_name(problem: Problem, message: str) -> None:
    with pytest.raises(ExportError, match=f"PyTorch's pipelining cannot express '.*': .*({message})") as caught:
        torch_csv(baseline("greedy", problem, 2))
    assert "\n" not in str(caught.value)


def test_outputs_that_would_meet_other_targets_are_refused() -> None:
    plain = baseline("gpipe", pipeline(chain(2)), 3)
    orders = [[(o.block, (1, 0, 2)[o.micro_batch]) for o in row] for row in plain.device_orders]
    swapped = plain.with_operations(time_orders(plain.problem, 3, orders))
    with pytest.raises(ExportError, match=r"its last stage runs micro-batches in the order 1, 0, 2, and PyTorch"):
        torch_csv(swapped)


@for_all(problem=pipelines(), micro_batches=st.integers(1, 5), data=st.data(), tries=60)
def test_a_schedule_comes_back_as_it_was(problem: Problem, micro_batches: int, data: st.DataObject) -> None:
    schedule = data.draw(in_order(problem, micro_batches))
    version = data.draw(st.sampled_from(VERSIONS))
    for communication in (False, True):
        table = parse_table(torch_csv(schedule, communication=communication, torch=version))
        assert len(check_communication(table)) == (communication and not TorchVersion.of(version).reduces_gradients
                                                   and len(problem.devices) > 1)
        back = schedule_of_table(table, problem)
        assert back.device_orders == schedule.device_orders
        alone = schedule_of_table(table)
        assert violations(alone) == []
        assert torch_csv(alone) == torch_csv(schedule)


# -- in ------------------------------------------------------------------------------------------------------------


def test_a_stage_with_whole_and_split_backwards() -> None:
    schedule = schedule_of_table(parse_table("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n"))
    names = [schedule.problem.blocks[o.block].name + str(o.micro_batch) for o in schedule.device_orders[1]]
    assert names == ["F10", "I10", "W10", "F11", "I11", "W11"]


def test_on_a_problem_words_mean_what_pytorch_does() -> None:
    text = "0F0,0I0,0W0\n1F0,1I0,1W0\n"  # PyTorch's I of stage 0 does nothing, its W is a full backward
    table = parse_table(text)
    for split, first in (((1, 1), True), ((1, 1), False)):
        problem = pipeline(chain(2), split=split, first_input_grad=first)
        assert violations(schedule_of_table(table, problem)) == []
    with pytest.raises(FormatError, match=r"schedule: row 2, cell 2: 1I0 has no block in the problem 'uniform', "
                                          r"whose stage 1 is made of f1, b1"):
        schedule_of_table(table, pipeline(chain(2)))


@pytest.mark.parametrize(("problem", "message"), [
    (shape("m", 2, 6), "the problem 'mshape-2-train-mem6' is no pipeline: block 'b00' runs on 2 devices"),
    (pipeline(chain(3), split=(1, 1)), "has 2 rows, but the problem 'uniform' has 3 devices"),
    (pipeline(v(2), split=(1, 1)), "has 2 stages, but the problem 'uniform' has 4"),
    (pipeline([1, 0], split=(1, 1)), "stage 0 is in row 1, but the problem 'uniform' has it on device 'gpu1', which "
                                     "is row 2"),
    (pipeline(chain(2), backward=None), "has backwards, but the problem 'uniform' has no backward blocks"),
])
def test_another_problem_is_refused(problem: Problem, message: str) -> None:
    with pytest.raises(FormatError, match=f"s.csv: {message}"):
        schedule_of_table(parse_table(ZB_H1_COMPUTE, "s.csv"), problem)


COMMS = ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
         "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n")


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty, it must have one row of actions a rank"),
    ("0F0,0F1typo,0B0\n", r"row 1, cell 2: '0F1typo' is no action of a PyTorch schedule, it must look like 2F0"),
    ("0F0,0B0\n\n", "row 2 has no action, and every row is a rank"),
    ("0F0,0B0\n0F1,0B1\n", "row 2, cell 1: 0F1 is of stage 0, which row 1 runs; a stage belongs to one rank"),
    ("0F0,0B0\n2F0,2B0\n", "there is a stage 2, but no stage 1"),
    ("0F0,0F2,0B0,0B2\n", "there is no forward of micro-batch 1"),
    ("0F0,0B0,0F0\n", "row 1, cell 3: 0F0 stands here a second time"),
    ("0F0,0B0,0B1\n", "row 1, cell 3: 0B1 is of micro-batch 1, but there are forwards of 0 to 0 only"),
    ("0F0,0F1,0W0,0I0,0B1\n", "row 1, cell 3: 0W0 comes before 0I0"),
    ("0F0,0I0,0W0,0B0\n", "row 1, cell 4: 0B0 is a second backward of its stage and micro-batch"),
    ("0F0,0F1,0B0\n", "row 1: 0B1 is missing"),
    ("0F0,0I0\n1F0,1I0,1W0\n", "row 1: 0W0 is missing"),
    ("0F0,0F1,0B0,0B1\n1F0,1B0\n", "row 2: 1F1 is missing"),
    ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", r"row 1, cell 2: 0B0 can never run: it waits for 1B0 or the like of row 2"),
    (COMMS.replace("0RECV_B0,0B0", "0RECV_B0,,0B0"), "row 1, cell 6: is empty, and PyTorch refuses that"),
    (COMMS.replace("1RECV_F0,1F0,1RECV_F1", "1RECV_F1,1F0,1RECV_F0"),
     "row [12], cell [12]: ranks . and . do not see their messages in the same order"),
    (COMMS.replace("0SEND_F1,", ""), "do not see their messages in the same order"),
    (COMMS.replace("1RECV_F1,1B0", "1B0").replace("1F1", "1F1,1RECV_F1"), "row [12], cell [0-9]: .*"),
    (COMMS.replace("0F0,", "0F0,0SEND_B0,"), "row 1, cell 2: 0SEND_B0 has no other end"),
    (COMMS.replace(",0B1,0REDUCE_GRAD", ",0REDUCE_GRAD,0B1"), "row 1, cell 9: 0B1 comes after 0REDUCE_GRAD"),
])
def test_a_file_that_makes_no_sense_is_refused_with_row_and_cell(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=f"^s.csv: {message}|^s.csv: row [12], cell [0-9]+: .*{message}") as caught:
        check_communication(parse_table(text, "s.csv"))
    assert "\n" not in str(caught.value)


def test_an_order_that_only_buffers_allow_is_told() -> None:
    crossed = COMMS.replace("1RECV_F1,1B0,1SEND_B0", "1B0,1SEND_B0,1RECV_F1")  # both ranks send first, then receive
    assert check_communication(parse_table(crossed)) == [
        "PyTorch runs it only where messages are buffered: ranks 1 and 0 do not see their messages in the same order: "
        "SEND 1B0>0 on rank 1 meets SEND 0F1>1 on rank 0"]


@given(st.builds(TorchAction, st.integers(0, 99), st.sampled_from(["F", "B", "I", "W", "SEND_F", "WAIT_SEND_B"]),
                 st.integers(0, 999)))
def test_actions_print_and_parse_back(action: TorchAction) -> None:
    assert parse_cell(f" {action} ") == (action,)
    assert parse_cell(f"({action};0F0)OVERLAP_F_B") == (action, TorchAction(0, "F", 0))
    assert parse_cell("") == ()


@for_all(data=st.data(), tries=100)
def test_a_file_with_a_fault_is_refused_or_still_a_schedule(data: st.DataObject) -> None:
    """One cell lost, doubled, swapped with another, or of another word: a sentence, never a traceback; and what passes
    is a complete schedule in which every gradient is still reduced once."""
    schedule = data.draw(st.sampled_from([zb_h1(), baseline("1f1b", pipeline(chain(3)), 2),
                                          baseline("zb-v", pipeline(v(2), split=(1, 1)), 2)]))
    whole = torch_csv(schedule, communication=True)
    rows = [line.split(",") for line in whole.splitlines()]
    row = data.draw(st.sampled_from(rows))
    i, j = (data.draw(st.integers(0, len(row) - 1)) for _ in range(2))
    fault = data.draw(st.sampled_from(["lose", "double", "swap", "other", "garble"]))
    if fault == "lose":
        lost = row.pop(i)
    elif fault == "double":
        row.insert(j, row[i])
    elif fault == "swap":
        row[i], row[j] = row[j], row[i]
    elif fault == "other":
        row[i] = data.draw(st.sampled_from(rows))[0]
    else:
        row[i] += data.draw(st.sampled_from(["x", "0", ";", "(", " ", '"']))
    try:
        table = parse_table("\n".join(",".join(cells) for cells in rows) + "\n", "s.csv")
        notes = check_communication(table)
    except FormatError as error:
        assert str(error).startswith("s.csv: ") and "\n" not in str(error)
        return
    back = schedule_of_table(table)
    assert len(back.operations) == len(schedule.operations)
    if fault == "lose":
        assert lost.endswith("REDUCE_GRAD") and notes
    assert fault != "double"
