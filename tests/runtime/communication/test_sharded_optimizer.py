"""An optimizer with sliced states, by one rank; several ranks are tested with the programs that they run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.one_rank import one_rank
from weft.runtime.communication.channel import Pending
from weft.runtime.communication.failures import RankError
from weft.runtime.communication.sharded_optimizer import ShardedOptimizer


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_rank():
        yield


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def loss(module: nn.Module, step: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(step)
    found: Tensor = module(torch.randn(3, 4, generator=draw, dtype=torch.float64)).square().mean()
    return found


def backward(value: Tensor) -> None:
    value.backward()  # type: ignore[no-untyped-call]


def test_it_is_adamw_with_schedules_of_rates_and_options_by_name() -> None:
    module, plain = model(), model()
    optimizer = ShardedOptimizer(module, "adamw", lr=0.05, bucket_bytes=200,
                                 options_of=lambda name, p: {} if p.dim() > 1 else {"weight_decay": 0.0})
    groups: list[dict[str, Any]] = [{"params": [p for p in plain.parameters() if p.dim() > 1]}, {
        "params": [p for p in plain.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    other = torch.optim.AdamW(groups, lr=0.05)
    rates = [torch.optim.lr_scheduler.StepLR(one, 2, 0.3) for one in (optimizer, other)]
    for step in range(5):
        for trained, own, rate in zip((module, plain), (optimizer, other), rates, strict=True):
            backward(loss(trained, step))
            own.step()
            own.zero_grad()
            rate.step()
    assert len(optimizer.buckets) > 2
    for mine, its in zip(module.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-14)
    optimizer.close()


def test_gradients_are_handed_over_as_they_come_and_sums_start_during_the_backward(
        monkeypatch: pytest.MonkeyPatch) -> None:
    module = model()
    optimizer = ShardedOptimizer(module, bucket_bytes=200)
    started: list[str] = []
    start = optimizer._channel.start

    def noted(name: str, *more: Any) -> Pending:
        started.append(name)
        return start(name, *more)
    monkeypatch.setattr(optimizer._channel, "start", noted)
    backward(loss(module))
    assert started == [f"the sum of gradients of bucket {bucket.number}" for bucket in optimizer.buckets]
    assert next(member.name for member in optimizer.buckets[0].members) == "2.bias"  # the last layer's come first
    assert all(p.grad is None for p in module.parameters())
    started.clear()
    optimizer.step()
    assert started == [f"the gathering of bucket {bucket.number}" for bucket in reversed(optimizer.buckets)]
    optimizer.close()


def test_a_forward_waits_for_the_parameters_that_it_reads() -> None:
    module = model()
    optimizer = ShardedOptimizer(module, lr=0.1, bucket_bytes=200)
    before = [p.detach().clone() for p in module.parameters()]
    for step in range(2):
        backward(loss(module, step))
        optimizer.step()
    assert all(bucket.gathering is not None for bucket in optimizer.buckets)
    module[2](torch.zeros(1, 5, dtype=torch.float64))
    under_way = {bucket.members[0].name for bucket in optimizer.buckets if bucket.gathering is not None}
    assert under_way and not any(name.startswith("2.") for name in under_way)
    optimizer.wait()
    assert all(bucket.gathering is None for bucket in optimizer.buckets)
    assert not any(torch.equal(p, old) for p, old in zip(module.parameters(), before, strict=True))
    optimizer.close()


def test_what_was_accumulated_counts_also_where_the_last_backward_does_not_reach() -> None:
    module, plain = model(), model()
    optimizer, other = ShardedOptimizer(module, lr=0.1), torch.optim.Adam(plain.parameters(), lr=0.1)
    with optimizer.accumulating():
        backward(loss(module))
    backward(next(module.parameters()).sum())
    optimizer.step()
    backward(loss(plain) + next(plain.parameters()).sum())
    other.step()
    for mine, its in zip(module.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-14)
    optimizer.close()


def test_states_saved_and_loaded_go_on_alike_and_are_torchs_by_name() -> None:
    module = model()
    optimizer = ShardedOptimizer(module, "adam", lr=0.05, bucket_bytes=200)
    backward(loss(module))
    optimizer.step()
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(module.state_dict())
    other, plain = model(), model()
    other.load_state_dict(weights)
    plain.load_state_dict(weights)
    again, by_torch = ShardedOptimizer(other, "adam", lr=1.0), torch.optim.Adam(plain.named_parameters(), lr=1.0)
    again.load_state_dict(saved)
    numbered = {name: i for i, (name, _) in enumerate(plain.named_parameters())}
    by_torch.load_state_dict({"state": {numbered[name]: entry for name, entry in saved["state"].items()},
                              "param_groups": [{**by_torch.state_dict()["param_groups"][0], "lr": 0.05}]})
    for trained, own in ((module, optimizer), (other, again), (plain, by_torch)):
        backward(loss(trained, 1))
        own.step()
    for mine, its, torchs in zip(module.state_dict().values(), other.state_dict().values(),
                                 plain.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
        torch.testing.assert_close(mine, torchs, rtol=0, atol=1e-14)
    with pytest.raises(ValueError, match="of the rule 'adam', but the optimizer has 'lamb'"):
        ShardedOptimizer(model(), "lamb").load_state_dict(saved)
    for one in (optimizer, again):
        one.close()


def test_what_cannot_be_is_refused_with_a_sentence() -> None:
    module = model()
    with pytest.raises(ValueError, match="there is no rule 'sgd': take one of adam, adamw, lamb"):
        ShardedOptimizer(module, "sgd")
    with pytest.raises(TypeError, match="no option 'momentum': it has lr, betas, eps, weight_decay"):
        ShardedOptimizer(module, momentum=0.9)  # type: ignore[call-arg]
    optimizer = ShardedOptimizer(module)
    with pytest.raises(ValueError, match="takes no closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(ValueError, match="takes no more parameters"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(TypeError, match=r"cannot be copied or pickled, .* take its state_dict\(\)"):
        copy.deepcopy(optimizer)
    with pytest.raises(ValueError, match="trains a module, not generator"):
        ShardedOptimizer(module.parameters())  # type: ignore[arg-type]
    backward(loss(module))
    with pytest.raises(ValueError, match="came a second time before step"):
        backward(loss(module))
    optimizer.zero_grad()
    with pytest.raises(RankError, match=r"came a second time .* has to be made anew, on all ranks"):
        optimizer.step()
    optimizer.close()
    ShardedOptimizer(module).close()
    optimizer = ShardedOptimizer(module := model())
    module.float()
    with pytest.raises(ValueError, match="have been replaced since the optimizer was made"):
        optimizer.step()
    optimizer = ShardedOptimizer(model())
    optimizer.close()
    with pytest.raises(ValueError, match="its collectives are closed: make the optimizer or the program anew"):
        optimizer.step()
