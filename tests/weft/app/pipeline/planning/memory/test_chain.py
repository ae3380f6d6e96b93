"""The chain of a captured model is made of what its operators were measured to keep, and its plans fit what runs."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.runtime.captured.conftest import without_traces  # noqa: F401
from tests.support.captured_models import GPT, made, token_loss
from weft.app.pipeline.planning.memory.chain import Chain, _narrow, chain_of, copy_bandwidth
from weft.app.pipeline.planning.row import STATE
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import CapturedCut, crossings
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.memory.saved_bytes import saved_tensor_bytes
from weft.runtime.captured.purity import Purity
from weft.solver.placement.memory.plan import ChainOperator
from weft.solver.placement.memory.plan_memory import plan_memory


@pytest.fixture(scope="module")
def gpt() -> tuple[Captured, Purity, Chain, int]:
    torch.manual_seed(0)
    ids = torch.randint(97, (8, 32))
    captured = Captured.of(GPT(3, 32, 97, 32), (ids,))
    purity = Purity(captured)
    total = sum(saved_tensor_bytes(captured, [ids], lambda output: token_loss(output, ids)).by_operator.values())
    return captured, purity, chain_of(captured, purity, [ids], lambda output: token_loss(output, ids), first=2), total


Found = tuple[Captured, Purity, Chain, int]


def test_every_operator_is_in_one_group_and_every_byte_in_one_operator(gpt: Found) -> None:
    captured, purity, chain, total = gpt
    assert list(itertools.chain(*chain.groups)) == list(captured.calls)
    assert sum(operator.kept for operator in chain.operators) == total
    parameters = sum(p.numel() * p.element_size() for p in captured.model.parameters())
    assert sum(operator.resident for operator in chain.operators) >= STATE * parameters
    between = crossings(captured, purity)
    for k in chain.starts:
        assert between[chain.places[k]].refused is None and chain.operators[k - 1].output == between[
            chain.places[k]].size > 0
    assert {operator.layer for operator in chain.operators} == {"", "layers.0", "layers.1", "layers.2"}


def test_a_plan_of_less_memory_is_one_that_stages_can_carry_out(gpt: Found) -> None:
    captured, purity, chain, total = gpt
    resident = sum(operator.resident for operator in chain.operators)
    problem = chain.problem(2, resident * 6 // 10 + total // 2, 1e9, micro_batches=4)
    plan = plan_memory(problem, gap=0.05)
    assert plan.fits and {"recompute", "offload"} & set(plan.modes)  # by what operators were measured to take
    decisions = Decisions.made(captured, purity, chain.modes(plan.modes))
    assert decisions.modes == {name: mode for name, mode in chain.modes(plan.modes).items() if mode != "keep"}
    CapturedCut(captured, chain.cuts(plan.cuts), purity)


def test_cuts_that_are_given_begin_an_operator_of_the_chain() -> None:
    case = made("gpt", 4)
    captured = Captured.of(case.model, case.args)
    chain = chain_of(captured, Purity(captured), case.args, lambda output: token_loss(output, case.target), cuts=[29])
    plan = plan_memory(chain.problem(2, 10**9, 1e9, micro_batches=4, cuts=[29]))
    assert captured.calls[29].name.startswith("getitem")  # which goes with what gives it
    cut, = chain.cuts(plan.cuts)
    assert cut > 29 and CapturedCut(captured, [29]).stage == CapturedCut(captured, [cut]).stage


def test_what_writes_in_place_is_in_one_group_with_what_it_writes_into() -> None:
    case = made("skip", 4)
    captured = Captured.of(case.model, case.args, case.kwargs)
    purity = Purity(captured)
    chain = chain_of(captured, purity, [*case.args, *case.kwargs.values()],
                     lambda output: output["y"].square().mean())
    group_of = {node: i for i, group in enumerate(chain.groups) for node in group}
    for node in captured.calls:
        assert group_of[node] == group_of.get(purity.base[node], group_of[node]) or not node.name.endswith("_")


def test_cuts_are_where_few_bytes_pass_but_all_along_the_chain() -> None:
    operators = [ChainOperator(f"{i}", 10, 20, 100, 0) for i in range(40)]
    wide = {k: (100 if k % 4 == 0 else 400) if k < 36 else 1 for k in range(1, 40)}
    found = _narrow(wide, operators)
    assert found >= {4, 8, 12, 16, 20, 24, 28} and not found & {5, 6, 7, 21, 22, 23}


def test_copies_have_a_speed() -> None:
    assert 1e7 < copy_bandwidth(torch.device("cpu")) < 1e13
