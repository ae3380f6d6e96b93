"""Stages that keep, recompute and offload as decided give the model's gradients, and hold what was decided."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.captured.test_cut import furthest, plain, with_loss
from tests.support.captured_models import CASES, GPT, Case, Checkpointed, Counts, made, token_loss
from tests.support.examples import slow
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.cut import BATCH, CapturedCut, crossings
from weft.runtime.captured.loss import LOSS
from weft.runtime.captured.memory.decisions import Decisions, Mode, decisions_from_json, in_module, units
from weft.runtime.captured.memory.saved_bytes import saved_tensor_bytes
from weft.runtime.captured.memory.stage_forward import apply_decisions
from weft.runtime.captured.memory.treatment import treated
from weft.runtime.captured.purity import Purity
from weft.runtime.measure.measure import Memory, memory_of
from weft.runtime.train.stage import StageRunner

CPU = torch.device("cpu")


def drawn(captured: Captured, purity: Purity, choose: Callable[[], Mode]) -> Decisions:
    return Decisions.made(captured, purity, {node.name: mode for unit in units(captured, purity)
                                             for mode in [choose()] for node in unit})


def by_stages(case: Case, captured: Captured, places: Sequence[int], decisions: Decisions, split: bool,
              micro_batches: int = 2) -> dict[str, Tensor]:
    """The gradients of as many equal micro-batches, all of whose forwards are run first, then their backwards."""
    cut = CapturedCut(treated(captured, decisions, [*case.args, *case.kwargs.values()]), places)
    stages = cut.stages()
    batch = {BATCH + node.name: leaf for node, leaf in zip(captured.inputs, [*case.args, *case.kwargs.values()],
                                                           strict=True)}
    last = cut.count - 1
    runners = {s: StageRunner(module, split=split, constant=[
        i for i, name in enumerate(stages.ports[s].takes) if name.startswith(BATCH)])
        for s, module in stages.modules.items()}
    runners[last] = with_loss(stages, stages.modules[last], case, captured, split)
    gives = {s: (LOSS,) if s == last else stages.ports[s].gives for s in runners}
    values = [dict(batch) for _ in range(micro_batches)]
    for m, own in enumerate(values):
        for s, runner in runners.items():
            own.update(zip(gives[s], runner.forward(m, *(own[name] for name in stages.ports[s].takes)), strict=True))
    for m, own in enumerate(values):
        gradients: dict[str, Tensor] = {LOSS: torch.ones_like(own[LOSS])}
        for s in reversed(runners):
            run = runners[s].input_grad if split else runners[s].backward
            for name, gradient in zip(stages.ports[s].takes, run(m, *(gradients.get(name) for name in gives[s])),
                                      strict=True):
                if gradient is not None:
                    gradients[name] = gradients[name] + gradient if name in gradients else gradient
    for runner in runners.values():
        for m in range(micro_batches if split else 0):
            runner.weight_grad(m)
        runner.close()
    found = {name: p.grad / micro_batches for name, p in case.model.named_parameters() if p.grad is not None}
    case.model.zero_grad()
    return found


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_models_whatever_is_decided(name: str) -> None:
    case = made(name, 4)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    _, wanted = plain(case)
    captured = Captured.of(case.model, case.args, case.kwargs)
    purity = Purity(captured)
    allowed = [i for i, crossing in enumerate(crossings(captured, purity)) if i and crossing.refused is None]
    draw = random.Random(name)
    every: list[Mode] = ["keep", "recompute", "offload"]
    choices: list[list[Mode]] = [["recompute"], ["offload"], ["keep", "recompute"], every]
    for i, choice in enumerate(choices):
        decisions = drawn(captured, purity, lambda choice=choice: draw.choice(choice))  # type: ignore[misc]
        assert decisions_from_json(decisions.to_json(), captured) == decisions
        for split in (False, True):
            case.model.load_state_dict(before)
            found = by_stages(case, captured, [draw.choice(allowed)] if i % 2 else [], decisions, split)
            assert furthest(found, wanted) <= 1e-12


class Noisy(nn.Module):
    """Dropout, running statistics, and in-place operators."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.dropout(torch.relu_(self.norm(self.into(x))), 0.5)
        return self.out(nn.functional.dropout(y, 0.3)).square().mean()  # type: ignore[no-any-return]


def test_random_numbers_are_repeated_and_running_statistics_are_counted_once() -> None:
    torch.manual_seed(0)
    case = Case(Noisy().double(), (torch.randn(6, 8, dtype=torch.float64),), {}, None, None)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    captured = Captured.of(case.model, case.args)
    purity = Purity(captured)
    results = []
    for mode in ("keep", "recompute"):
        case.model.load_state_dict(before)
        torch.manual_seed(1)
        found = by_stages(case, captured, [], drawn(captured, purity, lambda mode=mode: mode), False)  # type: ignore[misc]
        results.append((found, {key: value.clone() for key, value in case.model.state_dict().items()},
                        torch.rand(1)))
    assert furthest(results[1][0], results[0][0]) <= 1e-15
    assert all(torch.equal(value, results[1][1][key]) for key, value in results[0][1].items())
    assert int(results[1][1]["norm.num_batches_tracked"]) == 2 and torch.equal(results[0][2], results[1][2])


class Counting(nn.Module):
    """What it gives depends on how often it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.runs: Tensor
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return (self.layer(x) * self.runs).sum()  # type: ignore[no-any-return]


def test_an_operator_that_changes_what_it_reads_is_not_recomputed() -> None:
    model = Counting()
    captured = Captured.of(model, (torch.randn(2, 4),))
    purity = Purity(captured)
    with pytest.raises(CaptureError, match=r"add_ of the model \(Counting\) writes into a buffer that is read"):
        Decisions.by_path(captured, purity, {"": "recompute"})
    assert "add_" not in drawn(captured, purity, lambda: "recompute").modes
    assert "add_" in Decisions.by_path(captured, purity, {"": "offload"}).modes


@pytest.fixture(scope="module")
def gpt() -> Iterator[tuple[Captured, Purity, Tensor]]:
    torch.manual_seed(0)
    ids = torch.randint(97, (8, 32))
    captured = Captured.of(GPT(3, 32, 97, 32), (ids,))
    yield captured, Purity(captured), ids


def passes(captured: Captured, decisions: Decisions, ids: Tensor) -> tuple[Memory, Memory]:
    """The memory of a forward and a backward of the model as one stage."""
    module = CapturedCut(treated(captured, decisions, [ids]), []).stages().modules[0]
    runner, gradient = StageRunner(module, constant=[0]), torch.randn(8, 32, 97)

    def forward() -> None:
        runner.forward(0, ids.clone())

    def backward() -> None:
        runner.backward(0, gradient)

    for run in (forward, backward):
        run()  # gradients are there
    return memory_of(forward, CPU)[1], memory_of(backward, CPU)[1]


def test_what_is_held_is_what_was_decided(gpt: tuple[Captured, Purity, Tensor]) -> None:
    captured, purity, ids = gpt
    kept = saved_tensor_bytes(captured, [ids], lambda output: token_loss(output, ids))
    total = sum(kept.by_operator.values())
    forward, backward = passes(captured, Decisions(), ids)
    assert forward.change == pytest.approx(total, rel=0.01) and backward.change == -forward.change
    for mode in ("recompute", "offload"):
        forward, backward = passes(captured, drawn(captured, purity, lambda mode=mode: mode), ids)  # type: ignore[misc]
        assert forward.change == -backward.change < 0.01 * total and forward.peak < 0.25 * total
        assert (backward.peak > total) == (mode == "recompute")  # all at once, or one after another
    # A dropped activation is not there although the next layer, which is kept, reads it.
    gelus = {node.name for node in captured.calls if node.name.startswith("gelu")}
    forward, backward = passes(captured, Decisions(dict.fromkeys(gelus, "recompute")), ids)
    assert forward.change == pytest.approx(total - sum(kept.by_operator[name] for name in gelus), rel=0.01)
    assert backward.change == -forward.change


@pytest.mark.parametrize("reentrant", [False, slow(True)])
def test_what_the_model_checkpoints_is_recomputed_call_by_call(reentrant: bool) -> None:
    torch.manual_seed(0)
    ids = torch.randint(97, (8, 32))
    model = Checkpointed(3, 32, 97, 32).double()
    model.reentrant = reentrant
    case = Case(model, (ids,), {}, token_loss, ids)
    _, wanted = plain(case)
    captured = Captured.of(model, (ids,))
    purity = Purity(captured)
    decisions = Decisions.of_model(captured, purity)
    inside = {node.name for node in captured.calls if in_module(node, "layers")}
    assert set(decisions.modes) == inside and set(decisions.calls.values()) == {0, 1, 2}
    assert decisions_from_json(json.loads(json.dumps(decisions.to_json())), captured) == decisions
    for split in (False, True):
        assert furthest(by_stages(case, captured, [captured.calls.index(next(
            node for node in captured.calls if in_module(node, "layers.1"))) + 3], decisions, split), wanted) <= 1e-12
    model.float()
    captured = Captured.of(model, (ids,))
    kept, together, apart = (sum(memory.peak for memory in passes(captured, each, ids)) for each in (
        Decisions(), Decisions(decisions.modes), decisions))
    assert apart < 0.7 * kept and apart < 0.7 * together


def test_a_module_that_is_named_is_not_as_the_model_has_it() -> None:
    torch.manual_seed(0)
    captured = Captured.of(Checkpointed(3, 32, 97, 32), (torch.randint(97, (2, 8)),))
    found = Decisions.by_path(captured, Purity(captured), {"layers.1": "keep", "head": "recompute"})
    said = {path: {found.of(node.name) for node in captured.calls if in_module(node, path)}
            for path in ("layers.0", "layers.1", "layers.2", "head")}
    assert said == {"layers.0": {"recompute"}, "layers.1": {"keep"}, "layers.2": {"recompute"}, "head": {"recompute"}}
    assert set(found.calls.values()) == {0, 2}


def test_a_layer_in_shares_of_the_batch_needs_less_and_gives_equal_gradients(
        gpt: tuple[Captured, Purity, Tensor]) -> None:
    captured, _, ids = gpt
    whole = sum(memory.peak for memory in passes(captured, Decisions(), ids))
    layers = {f"layers.{i}": 4 for i in range(3)}
    forward, backward = passes(captured, Decisions({}, layers), ids)
    assert max(forward.peak, forward.change + backward.peak) < 0.4 * whole and forward.change == -backward.change


@pytest.mark.slow
def test_shares_give_the_models_gradients_with_whole_and_split_backwards() -> None:
    case = made("gpt", 4)
    _, wanted = plain(case)
    captured = Captured.of(case.model, case.args)
    modes: dict[str, Mode] = {node.name: "recompute" for node in captured.calls if "gelu" in node.name}
    for shards, places in (({"layers.0": 4, "layers.2": 2}, [29]), ({"": 2}, [])):
        for split in (False, True):
            found = by_stages(case, captured, places, Decisions(modes, shards), split)
            assert furthest(found, wanted) <= 1e-12


class Mixing(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = nn.Linear(4, 4), how

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if self.how == "mean":
            return y - y.mean(0)  # type: ignore[no-any-return]
        return y.flip(0) if self.how == "flip" else y.cumsum(0)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("how", "said"), [("mean", "operator mean of part .Mixing. makes one thing of all samples"),
                                           ("flip", "an operator in it mixes samples"),
                                           ("sum", "an operator in it mixes samples")])
def test_operators_that_mix_samples_are_not_computed_in_shares(how: str, said: str) -> None:
    model = nn.Sequential()
    model.add_module("part", Mixing(how))
    model.add_module("last", nn.Linear(4, 1))
    x = torch.randn(4, 4)
    captured = Captured.of(model, (x,))
    with pytest.raises(CaptureError, match=said):
        CapturedCut(treated(captured, Decisions({}, {"part": 2}), [x]), []).stages()


@pytest.mark.parametrize(("shards", "said"), [({"absent": 2}, "which is no module of Sequential"),
                                              ({"0": 1}, "it must be a number of shares of at least 2"),
                                              ({"0": 3}, "but a micro-batch does not divide so")])
def test_shares_that_cannot_be_are_refused(shards: dict[str, int], said: str) -> None:
    x = torch.randn(4, 4)
    captured = Captured.of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), (x,))
    with pytest.raises(CaptureError, match=said):
        treated(captured, Decisions({}, shards), [x])


def test_a_stage_goes_backward_once(gpt: tuple[Captured, Purity, Tensor]) -> None:
    captured, purity, ids = gpt
    stage = apply_decisions(CapturedCut(captured, []).stages().modules[0],
                            drawn(captured, purity, lambda: "recompute"), {})
    (loss := stage(ids)[0].sum()).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="goes backward once for each forward"):
        loss.backward()
    captured.model.zero_grad()


class Recurrent(nn.Module):
    """An operator that writes one part of a memory after another, and a weight as a result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 4, batch_first=True, bidirectional=True)
        self.after = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (last, _) = self.layer(x)
        return self.after(y)[0].square().mean() + last.square().sum(), self.after.get_parameter("weight_ih_l0")


@pytest.mark.parametrize("mode", ["offload", "recompute"])
def test_what_an_operator_writes_part_by_part_is_moved_when_it_has_run(mode: Mode) -> None:
    torch.manual_seed(0)
    case = Case(Recurrent().double(), (torch.randn(4, 2, 4, dtype=torch.float64),), {},
                lambda output, target: output[0] + output[1].sum(), None)
    _, wanted = plain(case)
    captured = Captured.of(case.model, case.args)
    found = by_stages(case, captured, [], drawn(captured, Purity(captured), lambda: mode), False)
    assert furthest(found, wanted) <= 1e-12


class Banked(Counts):
    """A layer whose backward needs a buffer that the next forward writes into."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x).sum() + self.layer(x).square()).mean()  # type: ignore[no-any-return]


def test_a_buffer_that_is_written_between_forward_and_backward_is_an_error_under_hooks_too() -> None:
    case = Case(Banked(), (torch.randn(3, 4),), {}, None, None)
    captured = Captured.of(case.model, case.args)
    with pytest.raises(RuntimeError, match="has been written to between the forward and the backward"):
        by_stages(case, captured, [], drawn(captured, Purity(captured), lambda: "offload"), False)
