"""Captures on disk: a model that does the same is not exported again, one that does something else is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from weft.runtime.captured.capture_cache import cached_capture
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.purity import Purity

X = torch.arange(12.0).reshape(4, 3)
#: What ``Settled`` reads, as a model may read what a file or a command line says.
SETTINGS: dict[str, Any] = {}


class Settled(nn.Module):
    """A model whose forward depends on what no attribute of it says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.last: Any = None

    def forward(self, x: Tensor) -> Any:
        y = self.drop(self.norm(self.first(x))) * SETTINGS.get("factor", 2.0) + torch.tensor(SETTINGS.get("added", 1.0))
        with torch.set_grad_enabled(SETTINGS.get("graded", True)):
            y = y + self.second(x) * (x > 3.0)
        with torch.autocast("cpu", torch.bfloat16, enabled=SETTINGS.get("autocast", False)):
            z = (self.second(y) if SETTINGS.get("second", True) else self.first(y)).to(x.dtype)
        z = checkpoint(self.second, z, use_reentrant=False) if SETTINGS.get("recomputed", False) else self.second(z)
        if SETTINGS.get("matmul", False):
            return z @ self.first.weight.t()
        z = nn.functional.linear(z, self.first.weight)
        self.last = z
        return {"found": z, "with": x} if SETTINGS.get("named", False) else (z, x.sum(), 3)


def made() -> Settled:
    torch.manual_seed(0)
    return Settled()


@pytest.fixture
def settings() -> Iterator[dict[str, Any]]:
    yield SETTINGS
    SETTINGS.clear()


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were exported."""
    found, of = list[nn.Module](), Captured.of

    def counted(model: nn.Module, *given: Any) -> Captured:
        found.append(model)
        return of(model, *given)

    monkeypatch.setattr(Captured, "of", counted)
    return found


def capture(model: nn.Module, folder: Path | None, x: Tensor = X, kwargs: Mapping[str, Any] | None = None) -> Captured:
    return cached_capture(model, (x,), kwargs or {}, torch.device("cpu"), folder)


def told(captured: Captured) -> Any:
    """All that is known of a capture."""
    nodes = captured.graph_module.graph.nodes
    return (captured.digest, captured.in_spec, captured.out_spec, captured.checkpoints, captured.checkpointed,
            captured.under_autocast, sorted(captured.names.values()),
            sorted(node.name for node in Purity(captured).free),
            [(captured.name_of(value), value.requires_grad, value.tolist()) for node in nodes
             if node.op == "get_attr" for value in [captured.attribute(node)]],
            [[path for path, _ in node.meta.get("nn_module_stack", {}).values()] for node in nodes])


class Changing(nn.Module):
    """A model that changes what it has, as ``kind`` says."""

    seen: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind, self.calls, self.ready = nn.Linear(3, 3), kind, 0, False
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "hooks" and not self.ready:
            self.layer.register_forward_hook(lambda module, given, result: result + 1)
        y: Tensor = self.layer(x)
        if self.kind == "buffer":
            self.seen += 1
            return y * self.seen
        if self.kind == "first" and not self.ready:
            y = y - y.mean(0)
        if self.kind == "random" and random.random() < 0:
            y = y + 1
        self.ready, self.calls = True, self.calls + (self.kind in ("used", "told"))
        return y * self.calls if self.kind == "used" else y


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("kind", "said"), [
    ("buffer", ""), ("memory", ""), ("hooks", ""),
    ("told", "the forward of Changing changes calls in each run, which the pipeline does not"),
    ("random", "the forward of Changing draws from Python's random, of which the capture keeps what was drawn once")])
def test_what_a_capture_fixes_is_said(kind: str, said: str, kept: bool, tmp_path: Path) -> None:
    for _ in range(2):
        fixed = capture(model := Changing(kind), tmp_path if kept else None).fixed
        assert len(fixed) == bool(said) and all(sentence.startswith(said) for sentence in fixed)
        assert not model.calls and not model.ready and not model.seen and not model.layer._forward_hooks


@pytest.mark.parametrize(("kind", "named"), [("used", "calls"), ("first", "ready")])
def test_what_is_computed_with_an_attribute_that_changes_is_refused(kind: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=f"^Changing computes with {named}, which its forward changes, while a capt"):
        capture(Changing(kind), tmp_path)


CHANGES: dict[str, dict[str, Any]] = {
    "a number": {"factor": 3.0}, "a constant": {"added": 2.0}, "no gradients": {"graded": False},
    "autocast": {"autocast": True}, "another layer of these shapes": {"second": False},
    "a checkpoint": {"recomputed": True}, "the same in another way": {"matmul": True}, "other results": {"named": True}}


@pytest.mark.parametrize("change", [{}, *CHANGES.values()], ids=["nothing", *CHANGES])
def test_a_model_that_does_the_same_is_exported_once(change: dict[str, Any], settings: dict[str, Any], tmp_path: Path,
                                                     exports: list[nn.Module]) -> None:
    settings.update(change)
    new, kept, plain = capture(made(), tmp_path), capture(model := made(), tmp_path), capture(made(), None)
    assert len(exports) == 2 and told(new) == told(kept) == told(plain)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = kept.graph_module(X)
        torch.manual_seed(1)
        for mine, theirs in zip(tree_leaves(found), tree_leaves(plain.graph_module(X)), strict=True):
            assert torch.equal(torch.as_tensor(mine), torch.as_tensor(theirs))
    assert all(kept.attribute(node) is dict((*model.named_parameters(), *model.named_buffers()))[name]
               for node in kept.graph_module.graph.find_nodes(op="get_attr")
               if (name := kept.name_of(kept.attribute(node))) is not None)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_does_something_else_is_exported_again(change: dict[str, Any], settings: dict[str, Any], tmp_path: Path,
                                                    exports: list[nn.Module]) -> None:
    before = capture(made(), tmp_path)
    settings.update(change)
    found = capture(made(), tmp_path)
    assert len(exports) == 2
    assert told(found) == told(capture(made(), None)) != told(before)
    for name in change:
        del settings[name]
    assert told(capture(made(), tmp_path)) == told(before)


OTHERS: dict[str, Callable[[Settled], object]] = {
    "evaluation": lambda model: model.eval(), "frozen": lambda model: model.first.requires_grad_(False),
    "tied": lambda model: setattr(model.second, "weight", model.first.weight),
    "a type": lambda model: model.double(),
    "a rate": lambda model: setattr(model.drop, "p", 0.25)}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_model_that_was_changed_is_exported_again(change: Callable[[Settled], object], settings: dict[str, Any],
                                                    tmp_path: Path, exports: list[nn.Module]) -> None:
    before, model = capture(made(), tmp_path), made()
    change(model)
    x = X.to(next(model.parameters()).dtype)
    assert told(capture(model, tmp_path, x)) == told(capture(model, None, x)) != told(before)
    assert len(exports) == 3


def test_a_batch_of_another_shape_has_an_entry_of_its_own(settings: dict[str, Any], tmp_path: Path,
                                                          exports: list[nn.Module]) -> None:
    for x in (X, X[:2], X, X[:2]):
        assert capture(made(), tmp_path, x).inputs[0].meta["val"].shape == x.shape
    assert len(exports) == 2 and len(list((tmp_path / "captures").iterdir())) == 2


@pytest.mark.parametrize("damage", [
    lambda text: text[:-200], lambda text: "{}", lambda text: text.replace("aten.linear.default", "aten.linear.other"),
    lambda text: json.dumps({**json.loads(text), "checksum": ""})], ids=["short", "empty", "changed", "unsigned"])
def test_an_entry_that_is_damaged_is_made_anew(damage: Callable[[str], str], settings: dict[str, Any], tmp_path: Path,
                                               exports: list[nn.Module]) -> None:
    before = told(capture(made(), tmp_path))
    entry, = (tmp_path / "captures").iterdir()
    whole = entry.read_text()
    entry.write_text(damage(whole))
    assert told(capture(made(), tmp_path)) == before
    assert len(exports) == 2 and entry.read_text() == whole


def test_the_model_is_as_it_was(settings: dict[str, Any], tmp_path: Path) -> None:
    capture(made(), tmp_path)
    model, state = made(), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(model, tmp_path)
    assert torch.equal(torch.get_rng_state(), state) and model.last is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return Own.apply(y) if SETTINGS.get("own", False) else y * 2  # type: ignore[no-untyped-call]


def test_a_backward_that_came_later_is_refused_all_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    capture(Doubled(3, 3), tmp_path)
    settings["own"] = True
    with pytest.raises(CaptureError, match="a backward of its own"):
        capture(Doubled(3, 3), tmp_path)


class Failing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


def test_a_model_that_fails_is_left_as_it_was(tmp_path: Path) -> None:
    model = Failing(3, 3)
    with pytest.raises(CaptureError, match="cannot be run on the example"):
        capture(model, tmp_path)
    assert "forward" not in vars(model)
    assert torch.overrides._get_current_function_mode() is None  # type: ignore[no-untyped-call]


class Counting(nn.Linear):
    """Computes something else each time, as one that caches does."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        return super().forward(x) * Counting.calls


def test_what_differs_from_run_to_run_is_not_kept(tmp_path: Path, exports: list[nn.Module]) -> None:
    for _ in range(2):
        capture(Counting(3, 3), tmp_path)
    assert len(exports) == 2 and not (tmp_path / "captures").exists()


def test_a_folder_that_cannot_be_written_is_no_fault(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert capture(made(), tmp_path / "file").calls


def test_a_tensor_that_others_may_change_keeps_a_capture_out(settings: dict[str, Any], tmp_path: Path) -> None:
    class Table(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + X

    capture(Table(3, 3), tmp_path)
    assert not (tmp_path / "captures").exists()
