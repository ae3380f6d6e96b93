"""Models that cannot be captured, or give no loss, are refused in one sentence."""

from __future__ import annotations

import traceback

import pytest
import torch
from torch import Tensor, nn

from tests.support.captured_models import CASES, made
from weft.runtime.captured.captured import Captured, CaptureError, is_on_meta
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.loss import loss_of
from weft.runtime.captured.purity import Purity


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return {"a": x}["b"]


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1) * 2


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Parameter(torch.ones(2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.matmul, (None, 0))(x, self.layers)


class Named(nn.Module):
    """Tensors and a submodule that are called like what a graph's module has itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.graph = nn.Linear(3, 3), nn.Linear(3, 3)
        self.meta, self.code = nn.Parameter(torch.ones(3)), nn.Buffer(torch.ones(3))
        self.register_buffer("recompile", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.code.add_(1)
        y = self.first(x * self.code) * self.meta
        return self.graph(y) * self.meta + self.recompile  # type: ignore[no-any-return]


def test_names_that_a_graph_has_itself_are_the_models_all_the_same() -> None:
    torch.manual_seed(0)
    model, x = Named(), torch.randn(2, 3)
    wanted = model(x)
    captured = Captured.of(model, (x,))
    model.code.fill_(1)
    assert torch.equal(captured.graph_module(x), wanted) and torch.equal(model.code, torch.full((3,), 2.0))
    cut = CapturedCut(captured, [next(i for i, node in enumerate(captured.calls) if node.name == "linear_1")])
    assert len(cut.ties()) == 1 and captured.name_of(model.code) == "code"
    model.code.fill_(1)
    modules = cut.stages().modules
    values = dict(zip((node.name for node in cut.given[0]), modules[0](x), strict=True))
    assert torch.equal(modules[1](*(values[node.name] for node in cut.takes[1]))[0], wanted)
    for stage, name in cut.ties()[0].items():
        assert modules[stage].get_parameter(name) is model.meta


def test_what_torch_prints_where_an_export_fails_does_not_stand_above_our_sentence(
        capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError) as raised:
        Captured.of(Branches(), (torch.ones(3),))
    assert len("".join(traceback.format_exception(raised.value)).splitlines()) < 20
    assert "def forward" not in capsys.readouterr().err
    with pytest.raises(CaptureError, match="Wrong cannot be run on the example") as raised:
        Captured.of(Wrong(), (torch.ones(3),))
    assert isinstance(raised.value.__cause__, KeyError)  # of the model's own code
    assert len("".join(traceback.format_exception(raised.value)).splitlines()) < 40


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.LSTM(3, 3)])

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.layers[0](x), lengths)
        return self.layers[1](packed)[0].data  # type: ignore[no-any-return]


@pytest.mark.parametrize(("model", "inputs", "said"), [
    (Mapped(), [torch.ones(4, 3)], r"runs inside torch.func.vmap, which an export does not keep: write"),
    (Branches(), [torch.ones(3)], r"^Branches cannot be exported: .*at test_captured.py:\d+ \(return x"),
    (Packing(), [torch.ones(4, 2, 3), torch.tensor([4, 2])], r"it packs sequences, .* within the forward of one "
     r"submodule, and cut before submodules without an export, as with split=\["),
    (Writes(), [torch.ones(3)], r"the operator add_ of the model \(Writes\) writes into the input 'x'")])
def test_what_an_export_does_not_keep_is_refused(model: nn.Module, inputs: list[Tensor], said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        Purity(Captured.of(model, tuple(inputs)))


def test_parameters_that_nothing_reads_are_named_and_the_graph_is_known_by_its_digest() -> None:
    one, other = (Captured.of(Idle(), (torch.ones(size, 3),)) for size in (2, 3))
    assert one.unread() == ["idle.weight", "idle.bias"]
    assert one.digest != other.digest and one.digest == Captured.of(Idle(), (torch.ones(2, 3),)).digest


@pytest.mark.parametrize(("output", "said"), [
    (torch.ones(3), r"the model gives Tensor, in which the loss has the shape \(3,\)"),
    ((3, torch.ones(())), "the model gives tuple, in which the loss is int, it must be a tensor"),
    (torch.ones((), dtype=torch.int64), "it must be one floating-point number")])
def test_a_loss_that_is_no_scalar_is_refused(output: object, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        loss_of(output)


def test_the_models_own_loss_is_found() -> None:
    loss = torch.tensor(2.0)
    assert loss_of(loss) is loss and loss_of({"loss": loss}) is loss and loss_of((loss, torch.ones(3))) is loss


class Rotary(nn.Module):
    """A buffer that only ``__init__`` makes, which is an attribute too."""

    angles: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 4)
        self.register_buffer("angles", torch.arange(4.0), persistent=False)
        self.first = self.angles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.into(x) * self.angles.cos() + self.first  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_the_same_and_reads_the_models_own(name: str) -> None:
    real, meta = (made(name, 4, device=device) for device in ("cpu", "meta"))
    wanted, found = (Captured.of(case.model, real.args, real.kwargs) for case in (real, meta))
    assert found.digest == wanted.digest and is_on_meta(meta.model) and not is_on_meta(real.model)
    own = {id(tensor) for tensor in (*meta.model.parameters(), *meta.model.buffers())}
    assert all(id(found.attribute(node)) in own for node in found.graph_module.graph.find_nodes(op="get_attr"))
    assert all(tensor.is_meta for tensor in (*meta.model.parameters(), *meta.model.buffers()))


def test_attributes_that_are_buffers_and_tensors_with_numbers_are_taken_along() -> None:
    with torch.device("meta"):
        module = Rotary()
    found = Captured.of(module, (torch.ones(2, 4),))
    assert {str(node.target) for node in found.graph_module.graph.find_nodes(op="get_attr")} >= {
        "into.weight", "into.bias"} and module.first is module.angles and module.angles.is_meta
    module.into = nn.Linear(4, 4)
    mixed = Captured.of(module, (torch.ones(2, 4),))
    assert mixed.digest == found.digest and not module.into.weight.is_meta


def test_a_tensor_on_meta_that_is_no_buffer_is_refused() -> None:
    with torch.device("meta"):
        module = Rotary()
        module.first = torch.arange(4.0)
    with pytest.raises(CaptureError, match=r"Rotary cannot be .*: .*meta is not on the expected device"):
        Captured.of(module, (torch.ones(2, 4),))
