"""Stages cut out of a captured model compute what the model does, and give its gradients."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from tests.support.captured_models import CASES, GPT, Case, made
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import BATCH, CapturedCut, crossings
from weft.runtime.captured.division import StageModules
from weft.runtime.captured.loss import LOSS, ResultStage, loss_of
from weft.runtime.captured.purity import Purity
from weft.runtime.train.stage import StageRunner


def plain(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the model itself."""
    output = case.model(*case.args, **case.kwargs)
    loss = loss_of(output) if case.loss is None else case.loss(output, case.target)
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: p.grad for name, p in case.model.named_parameters() if p.grad is not None}
    case.model.zero_grad()
    return loss.detach(), {name: gradient.clone() for name, gradient in found.items()}


def by_stages(case: Case, captured: Captured, places: Sequence[int],
              split: bool = False, light: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """The same, stage by stage, with nothing between two stages but the values of their ports."""
    cut = CapturedCut(captured, places, Purity(captured, light)).stages()
    flat = [*case.args, *case.kwargs.values()]
    values: dict[str, Tensor] = {BATCH + node.name: leaf for node, leaf in zip(captured.inputs, flat, strict=True)}
    runners = {s: StageRunner(module, split=split, constant=[
        i for i, name in enumerate(cut.ports[s].takes) if name.startswith(BATCH)]) for s, module in
        cut.modules.items()}
    last = len(runners) - 1
    for s in range(last):
        values.update(zip(cut.ports[s].gives, runners[s].forward(0, *(values[n] for n in cut.ports[s].takes)),
                          strict=True))
    runners[last] = with_loss(cut, runners[last].module, case, captured, split)
    loss, = runners[last].forward(0, *(values[n] for n in cut.ports[last].takes))
    gradients: dict[str, Tensor] = {LOSS: torch.ones_like(loss)}
    for s in reversed(range(last + 1)):
        gives = (LOSS,) if s == last else cut.ports[s].gives
        run = runners[s].input_grad if split else runners[s].backward
        for name, gradient in zip(cut.ports[s].takes, run(0, *(gradients.get(n) for n in gives)), strict=True):
            if gradient is not None:
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
    for runner in runners.values():
        if split:
            runner.weight_grad(0)
        runner.close()
    found = {name: p.grad for name, p in case.model.named_parameters() if p.grad is not None}
    case.model.zero_grad()
    return loss, {name: gradient.clone() for name, gradient in found.items()}


def with_loss(cut: StageModules[nn.Module], module: nn.Module, case: Case, captured: Captured,
              split: bool) -> StageRunner:
    stage = ResultStage(module, captured.out_spec, cut.results)

    def function(*xs: Tensor) -> Tensor:
        output = stage.output(*xs)
        return loss_of(output) if case.loss is None else case.loss(output, case.target)

    return StageRunner(stage, function=function, split=split, constant=[
        i for i, name in enumerate(cut.ports[len(cut.modules) - 1].takes) if name.startswith(BATCH)])


def furthest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest relative difference of two sets of gradients."""
    assert set(found) == set(wanted)
    return max(float((found[name] - g).norm() / (g.norm() + 1e-300)) if g.norm() else float(found[name].norm())
               for name, g in wanted.items())


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_any_cut_are_the_models(name: str) -> None:
    case = made(name, 4)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    loss, wanted = plain(case)
    after = {key: value.clone() for key, value in case.model.state_dict().items()}
    case.model.load_state_dict(before)
    captured = Captured.of(case.model, case.args, case.kwargs)
    purity = Purity(captured)
    allowed = [i for i, crossing in enumerate(crossings(captured, purity)) if i and crossing.refused is None]
    draw = random.Random(name)
    for places in [*([place] for place in draw.sample(allowed, 3)), *(sorted(draw.sample(allowed, 3)) for _ in "12")]:
        for split in (False, True):
            case.model.load_state_dict(before)
            found_loss, found = by_stages(case, captured, places, split)
            assert abs(float(found_loss - loss)) <= 1e-13 * abs(float(loss))
            assert furthest(found, wanted) <= 1e-12
            assert all(torch.equal(value, after[key]) for key, value in case.model.state_dict().items())


def test_a_tied_head_is_found_by_identity_and_masks_do_not_travel() -> None:
    case = made("gpt", 2)
    captured = Captured.of(case.model, case.args)
    purity = Purity(captured)
    between = crossings(captured, purity)
    borders = [i for i, node in enumerate(captured.calls) if node.name.startswith("layer_norm")]
    cut = CapturedCut(captured, [borders[2], borders[4]], purity)
    stages = cut.stages()
    assert [len(stages.ports[s].gives) for s in range(3)] == [1, 1, 1] and len(between[borders[2]].values) == 1
    assert cut.ties() == [{0: "words.weight", 2: "words.weight"}]
    assert isinstance(case.model, GPT)
    assert dict(stages.modules[2].named_parameters())["words.weight"] is case.model.head.weight
    assert "layers.0.attend.weight" in dict(stages.modules[0].named_parameters())
    assert type(stages.modules[0].get_submodule("words")).__name__ == "Embedding"


def test_a_cut_between_a_tensor_and_what_writes_into_it_is_refused() -> None:
    case = made("skip", 4)
    captured = Captured.of(case.model, case.args, case.kwargs)
    writer = next(i for i, node in enumerate(captured.calls) if node.name == "relu_")
    with pytest.raises(CaptureError, match=r"operator relu_ of the model \(Skip\) writes in place into what an"):
        CapturedCut(captured, [writer])


def test_cuts_rise_and_leave_each_stage_an_operator() -> None:
    case = made("gpt", 2)
    captured = Captured.of(case.model, case.args)
    for places in ((3, 3), (0,), (99999,)):
        with pytest.raises(CaptureError, match="cuts must rise"):
            CapturedCut(captured, places)


@pytest.mark.parametrize("name", CASES)
def test_stages_that_begin_where_they_may_all_give_something_with_a_gradient(name: str) -> None:
    """One that had masks alone, which are computed where they are read, gave nothing."""
    case = made(name, 4)
    captured = Captured.of(case.model, case.args, case.kwargs)
    purity = Purity(captured)
    between = crossings(captured, purity)
    places = [i for i, node in enumerate(captured.calls) if i and purity.begins(node) and between[i].values
              and between[i].refused is None]
    assert places and (name != "gpt" or any(not purity.begins(node) for node in captured.calls))
    for pair in pairwise(places):
        cut = CapturedCut(captured, pair, purity)
        stages = cut.stages()
        for s in range(cut.count - 1):
            assert any(stages.boundaries[value].dtype.is_floating_point for value in stages.ports[s].gives)
