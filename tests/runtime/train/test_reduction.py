"""Between the last backward and the optimizer: ties, the norm, and what must begin equal. One rank, no processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.support.builders import pipeline
from weft.runtime import MasterWeights, Plan, Session, SessionError, Training, plan_of, sharded
from weft.runtime.plan.program import Reduce
from weft.runtime.train.reduction import Reduction
from weft.solver.baselines import baseline


class Alone:
    """A session of one rank, whose groups nobody else is in."""

    rank, world, replica, replicas, peer, peers, device = 0, 1, 0, 1, 0, 1, torch.device("cpu")

    def agree(self, what: str, value: object) -> None:
        pass

    def add_groups(self, groups: Iterable[Iterable[int]]) -> None:
        pass

    def exchange(self, value: Any, text: str) -> list[Any]:
        return [value]

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def doing(self, text: str, waits_for: Iterable[int] = ()) -> None:
        pass

    def group(self, ranks: Iterable[int]) -> None:
        pass


@pytest.fixture(autouse=True)
def nobody_to_sum_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **options: None)


def plan() -> Plan:
    return plan_of(baseline("gpipe", pipeline([0, 0, 0]), 2))


def reduction(layers: dict[int, nn.Linear], **options: Any) -> Reduction:
    training = Training(layers, (), lambda step, m: torch.ones(1), **options)
    return Reduction(plan(), cast(Session, Alone()), training)


def reduce(found: Reduction) -> None:
    """What the executor does with them."""
    for instruction in found.plan.program.ranks[0]:
        if isinstance(instruction, Reduce):
            found.start(instruction)
    found.finish()


def layers() -> dict[int, nn.Linear]:
    torch.manual_seed(0)
    made = {s: nn.Linear(3, 3, bias=False) for s in range(3)}
    made[2].load_state_dict(made[0].state_dict())
    return made


def gradient(layer: nn.Linear) -> Tensor:
    assert layer.weight.grad is not None
    return layer.weight.grad


TIE = {0: "weight", 2: "weight"}


def test_tied_gradients_are_summed_and_counted_once() -> None:
    made = layers()
    found = reduction(made, ties=[TIE], clip_norm=1.0)
    for s, module in made.items():
        module.weight.grad = torch.full((3, 3), s + 1.0)
    reduce(found)
    assert [float(gradient(module)[0, 0]) for module in made.values()] == [4.0, 2.0, 4.0]
    norm = found.clip()
    assert norm is not None and norm == pytest.approx((9 * (4.0**2 + 2.0**2)) ** 0.5)
    assert torch.allclose(gradient(made[2]), torch.full((3, 3), 4 / norm))
    before = [gradient(module) for module in made.values()]
    found.clear()
    assert all(gradient(module) is grad and not grad.any() for module, grad in zip(made.values(), before, strict=True))


@pytest.mark.parametrize("mixed", [False, True])
def test_gradients_stay_allocated_and_what_a_batch_does_not_use_has_none(mixed: bool) -> None:
    made = layers()
    masters = MasterWeights([p for module in made.values() for p in module.to(torch.bfloat16).parameters()]
                            ) if mixed else None
    found = reduction(made, masters=masters)
    holders = [module.weight if masters is None else masters.of(cast(nn.Parameter, module.weight))
               for module in made.values()]
    seen: list[list[Tensor | None]] = []
    for used in ((0, 1), (1, 2), (0, 1)):
        found.clear()
        for s in used:
            torch.autograd.backward(made[s](torch.ones(1, 3, dtype=made[s].weight.dtype)).sum())
        reduce(found)
        assert [s for s in range(3) if holders[s].grad is not None] == list(used)
        assert all(torch.equal(holder.grad, torch.ones(3, 3)) for holder in holders if holder.grad is not None)
        seen.append([holder.grad for holder in holders])
    assert seen[2][0] is seen[0][0] and seen[2][1] is seen[1][1] is seen[0][1]


@pytest.mark.parametrize("other_uses", [0.0, 1.0])
def test_among_replicas_what_none_of_them_uses_has_no_gradient(monkeypatch: pytest.MonkeyPatch, other_uses: float
                                                               ) -> None:
    made = layers()
    session: Any = Alone()
    session.replicas, session.alike, session.watch = 2, [0, 1], session
    session.counterparts = lambda: None
    monkeypatch.setattr(dist, "all_reduce", lambda flat, **options: (flat.add_(other_uses), None)[1])
    found = Reduction(plan(), session, Training(made, (), lambda step, m: torch.ones(1)))
    for used in ((0, 1), (1, 2)):
        found.clear()
        for s in used:
            made[s](torch.ones(1, 3)).sum().backward()
        reduce(found)
        assert [s for s in range(3) if made[s].weight.grad is None] == ([] if other_uses else [*{0, 1, 2} - {*used}])
        assert all(torch.equal(module.weight.grad, torch.full((3, 3), (s in used) + other_uses))
                   for s, module in made.items() if module.weight.grad is not None)


def test_a_parameter_object_that_stages_share_is_counted_and_scaled_once() -> None:
    made = layers()
    made[2].weight = made[0].weight
    for ties in ([], [TIE]):
        found = reduction(made, ties=ties, clip_norm=1.0)
        found.clear()
        made[0].weight.grad = torch.full((3, 3), 4.0)
        reduce(found)
        assert found.clip() == pytest.approx(12.0)
        assert torch.allclose(gradient(made[0]), torch.full((3, 3), 1 / 3))


def test_a_small_norm_is_left_alone_and_masters_hold_what_is_clipped() -> None:
    made = layers()
    masters = MasterWeights([p for module in made.values() for p in module.to(torch.bfloat16).parameters()])
    found = reduction(made, masters=masters, clip_norm=6.0)
    for master in masters.parameters():
        master.grad = torch.ones(3, 3)
    assert found.clip() == pytest.approx(27**0.5)
    assert all(float(master.grad[0, 0]) == 1.0 for master in masters.parameters() if master.grad is not None)


@pytest.mark.parametrize(("options", "message"), [
    ({"ties": [{0: "weight", 7: "weight"}]}, "ties name stage 7, but there are the stages 0 to 2"),
    ({"ties": [{0: "weight", 2: "bias"}]}, "ties name the parameter 'bias' of stage 2, whose module has weight"),
    ({"ties": [{0: "weight", 1: "weight"}]}, "tied parameters begin with different values"),
    ({"ties": [{1: "weight"}]}, r"the tie \{1: 'weight'\} must name a parameter of at least two stages"),
    ({"ties": [TIE, {1: "weight", 2: "weight"}]}, "two ties name 'weight' of stage 2: make them one"),
    ({"clip_norm": 0.0}, "clip_norm is 0.0, it must be greater than 0"),
])
def test_ties_and_norms_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SessionError, match=message):
        reduction(layers(), **options)


def test_masters_must_cover_what_is_trained() -> None:
    made = layers()
    with pytest.raises(SessionError, match="masters has no copy of 'weight' of stage 1"):
        reduction(made, masters=MasterWeights([*made[0].parameters(), *made[2].parameters()]))


def test_a_shard_is_tied_on_its_own_rank_only() -> None:
    made = layers()
    for module in made.values():
        sharded(cast(nn.Parameter, module.weight))
    assert reduction(made, ties=[TIE]).ties[0].ranks == ()
