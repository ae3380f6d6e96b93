"""AdamA, the optimizer that folds each micro-batch's gradient into its moments."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.interface.optim import AdamA


def random_gradients(shapes: Sequence[tuple[int, ...]], count: int) -> Iterator[list[Tensor]]:
    chance = torch.Generator().manual_seed(3)
    for _ in range(count):
        yield [torch.randn(shape, dtype=torch.float64, generator=chance) for shape in shapes]


SHAPES = [(4, 3), (5,)]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_with_one_micro_batch_it_is_adam(decay: float) -> None:
    start = next(random_gradients(SHAPES, 1))
    ours, theirs = ([nn.Parameter(x.clone()) for x in start] for _ in range(2))
    one = AdamA(ours, 0.01, weight_decay=decay)
    other = (torch.optim.AdamW(theirs, 0.01, weight_decay=decay) if decay else torch.optim.Adam(theirs, 0.01))
    for step, gradients in enumerate(random_gradients(SHAPES, 40)):
        for parameter, twin, gradient in list(zip(ours, theirs, gradients, strict=True))[step % 3 == 2:]:
            one.fold(parameter, gradient)  # every third step, the first parameter has no gradient: it rests
            twin.grad = gradient
        one.step()
        other.step()
        other.zero_grad()
        assert max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-10


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_together_are_one_with_all_micro_batches(replicas: int) -> None:
    start, micro_batches = next(random_gradients(SHAPES, 1)), 4
    alone_ = [nn.Parameter(x.clone()) for x in start]
    parts = [[nn.Parameter(x.clone()) for x in start] for _ in range(replicas)]
    one, many = AdamA(alone_, 0.01), [AdamA(part, 0.01) for part in parts]
    found = random_gradients(SHAPES, 10 * replicas * micro_batches)
    for step in range(10):
        for r in range(replicas):
            many[r].replicas = replicas
            for _ in range(micro_batches):
                gradients = [gradient / (replicas * micro_batches) for gradient in next(found)]
                for i, gradient in list(enumerate(gradients))[r == 0 and step % 3 == 0:]:  # one has no gradient there
                    one.fold(alone_[i], gradient)
                    many[r].fold(parts[r][i], gradient)
        handed: list[list[Tensor]] = []
        for r in range(replicas):
            many[r].reduce(parts[r], handed.append)
        for same in zip(*handed, strict=True):
            total = torch.stack(same).sum(0)
            for tensor in same:
                tensor.copy_(total)
        one.step()
        for r in range(replicas):
            many[r].step()
            assert max(float((a - b).detach().abs().max()) for a, b in zip(alone_, parts[r], strict=True)) < 1e-10


def test_a_saved_state_goes_on_where_it_was() -> None:
    start = next(random_gradients(SHAPES, 1))
    ours, theirs = ([nn.Parameter(x.clone()) for x in start] for _ in range(2))
    one, other = AdamA(ours, 0.01), AdamA(theirs, 0.02)
    steps = list(random_gradients(SHAPES, 6))
    for gradients in steps[:3]:
        for parameter, gradient in zip(ours, gradients, strict=True):
            one.fold(parameter, gradient)
        one.step()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for parameter, twin in zip(ours, theirs, strict=True):
        twin.data.copy_(parameter)
    for gradients in steps[3:]:
        for parameter, twin, gradient in zip(ours, theirs, gradients, strict=True):
            one.fold(parameter, gradient)
            other.fold(twin, gradient)
        one.step()
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("options", "message"), [
    ({"lr": -1.0}, r"lr is -1\.0, it must be at least 0"), ({"eps": float("nan")}, "eps is nan, it must be"),
    ({"betas": (0.9, 1.0)}, r"betas\[1\] is 1\.0, it must be at least 0 and less than 1")])
def test_impossible_settings_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdamA([nn.Parameter(torch.ones(1))], **options)  # type: ignore[arg-type]


def test_an_adapting_loss_scale_is_refused_with_the_reason() -> None:
    parameter = nn.Parameter(torch.ones(1))
    scaler = torch.amp.GradScaler("cpu")
    torch.autograd.backward(scaler.scale(parameter.sum()))
    with pytest.raises(ValueError, match=r"earlier micro-batches' gradients are in the moments .* use bf16"):
        scaler.step(AdamA([parameter]))


def test_gradients_that_were_never_folded_are_not_left_out_in_silence() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = AdamA([parameter])
    parameter.grad = torch.ones(2)
    with pytest.raises(ValueError, match="would leave out gradients that have not been folded"):
        optimizer.step()
    optimizer.fold(parameter, parameter.grad)
    optimizer.step()
    assert bool((parameter != 1).all())
