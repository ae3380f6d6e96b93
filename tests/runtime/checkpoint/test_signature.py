"""Plans that are signed for their stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.builders import pipeline
from tests.support.checkpoints import WIDTH, a_plan, training, wider
from weft.runtime import Boundary, Plan, Training, load_plan, plan_of, save_plan
from weft.runtime.checkpoint.signature import SignatureError, require_signature, signatures, signed
from weft.solver.baselines import baseline


def test_a_plan_signed_for_a_model_refuses_another(tmp_path: Path) -> None:
    plan = signed(a_plan(), training)
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == plan and again.digest == plan.digest != a_plan().digest
    assert set(again.signatures) == {"0", "1"}
    require_signature(again, training(plan, 1))
    with pytest.raises(SignatureError, match="made for another model: stage 1 has the signature"):
        require_signature(again, wider(plan, 1))
    require_signature(a_plan(), wider(plan, 1))  # an unsigned plan takes any


def test_a_signed_plan_sums_apart_what_its_stages_share(tmp_path: Path) -> None:
    """Stages 0 and 2 of rank 0 have one layer; stage 1's, on rank 1, is tied to stage 3's, on rank 0."""
    plan = plan_of(baseline("greedy", pipeline([0, 1, 0, 0]), 2))

    def part(plan: Plan, rank: int, name: str = "weight") -> Training:
        same, other = nn.Linear(2, 2), nn.Linear(2, 2)
        mine: dict[int, nn.Module] = {0: same, 2: same, 3: other} if rank == 0 else {1: other}
        return Training(mine, [Boundary((1, 2))] * 3, lambda s, m: torch.ones(1, 2), ties=[{1: name, 3: "weight"}])

    made = signed(plan, part)
    assert made.shared == ((0, 2), (1, 3)) and set(made.signatures) == {"0", "1", "2", "3"}
    save_plan(made, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == made
    assert {text for text in made.program.to_text()[1] if text.startswith("REDUCE")} == {"REDUCE 1", "REDUCE 1+3"}
    with pytest.raises(SignatureError, match="ties name the parameter 'heads' of stage 1, whose module has weight, b"):
        signed(plan, lambda plan, rank: part(plan, rank, "heads"))


def test_stages_that_need_a_session_cannot_sign_a_plan() -> None:
    def meeting(plan: Plan, rank: int, session: object = None) -> Training:
        return training(plan, rank)

    with pytest.raises(SignatureError, match="leave --stages out"):
        signed(a_plan(), meeting)


def test_signatures_see_names_shapes_types_and_boundaries_but_no_values() -> None:
    plan = a_plan()
    one, other = training(plan, 0), training(plan, 0)
    with torch.no_grad():
        next(other.stages[0].parameters()).zero_()
    assert signatures(one) == signatures(other)
    other.stages[0].double()
    assert signatures(one) != signatures(other)
    other = training(plan, 0)
    other.boundaries = [Boundary((5, WIDTH), torch.bfloat16)]
    assert signatures(one) != signatures(other)
