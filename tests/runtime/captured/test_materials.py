"""Numbers for a model on the meta device: from a state, or by its modules, and none that are missing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.captured.test_captured import Rotary
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.materials import Materials

CPU = torch.device("cpu")


def on_meta(make: type[nn.Module], *arguments: object) -> nn.Module:
    with torch.device("meta"):
        return make(*arguments)


def by_name(model: nn.Module, materials: Materials, *names: str) -> dict[str, Tensor]:
    tensors = dict((*model.named_parameters(), *model.named_buffers()))
    found = materials.of(tensors[name] for name in names)
    return {name: found[id(tensors[name])] for name in names}


def encoder() -> nn.Module:
    return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16), nn.BatchNorm1d(8))


def test_what_one_module_makes_does_not_depend_on_what_else_is_made() -> None:
    with torch.device("meta"):
        model = encoder()
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    torch.manual_seed(5)
    together = by_name(model, Materials(model, CPU), *names)
    state = torch.get_rng_state()
    for name in names:
        assert torch.equal(by_name(model, Materials(model, CPU), name)[name], together[name])
    assert torch.equal(torch.get_rng_state(), state) and all(p.is_meta for p in model.parameters())
    assert not together["0.self_attn.out_proj.bias"].any()  # attention resets it, after the projection itself
    assert float(together["0.linear1.weight"].abs().max()) <= 8 ** -0.5
    assert torch.equal(together["1.running_var"], torch.ones(8)) and together["1.num_batches_tracked"].item() == 0
    torch.manual_seed(6)
    assert not torch.equal(by_name(model, Materials(model, CPU), "0.linear1.weight")["0.linear1.weight"],
                           together["0.linear1.weight"])


def test_a_state_goes_before_what_modules_make_and_a_function_before_both_are_missing() -> None:
    model = on_meta(Rotary)
    state = {"into.weight": torch.ones(4, 4, dtype=torch.float64), "into.bias": torch.zeros(4)}
    with pytest.raises(CaptureError, match=r"the buffer angles is on the meta device, the state dict does not have it, "
                                           r"and Rotary has no reset_parameters.*materialise=FUNCTION\(module\)"):
        by_name(model, Materials(model, CPU, state), "angles")

    def fill(module: nn.Module) -> None:
        if isinstance(module, Rotary):
            module.angles = torch.arange(4.0)

    found = by_name(model, Materials(model, CPU, state, fill), "angles", "into.weight")
    assert found["angles"].tolist() == [0, 1, 2, 3] and found["into.weight"].dtype == torch.float32
    assert bool((found["into.weight"] == 1).all())
    only = by_name(model, Materials(model, CPU, None, fill), "into.weight")["into.weight"]  # by reset_parameters
    assert float(only.abs().max()) <= 0.5
    assert by_name(model, Materials(model, CPU, {**state, "angles": torch.ones(4)}), "angles")["angles"].sum() == 4
    with pytest.raises(CaptureError, match=r"the state dict has no into\.bias: give the whole state of Rotary"):
        Materials(model, CPU, {"into.weight": state["into.weight"]})
    more = Materials(model, CPU, {**state, "other": torch.ones(1)})
    assert more.notes == ["the state dict also has other, which the model does not have: they are left out"]


class Half(nn.Linear):
    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight[:1].fill_(1.0)


class Longer(nn.Linear):
    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            self.weight = nn.Parameter(torch.ones(7, 7))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(("make", "arguments", "name", "said"), [
    (Half, (2, 2), "weight", "a part of weight has no numbers after Half has been initialised"),
    (Half, (2, 2), "bias", "the parameter bias is on the meta device, and Half has no reset_parameters that gives"),
    (Longer, (2, 2), "weight", r"weight has the shape \(2, 2\), but Longer gives it numbers of \(7, 7\)"),
    (Scale, (), "scale", "the parameter scale is on the meta device, and Scale has no reset_parameters")])
def test_what_has_no_numbers_is_named(make: type[nn.Module], arguments: tuple[int, ...], name: str, said: str) -> None:
    model = on_meta(make, *arguments)
    with pytest.raises(CaptureError, match=said):
        by_name(model, Materials(model, CPU), name)


def test_numbers_that_are_there_stay() -> None:
    model = on_meta(nn.Linear, 2, 2)
    assert isinstance(model, nn.Linear)
    model.bias = nn.Parameter(torch.full((2,), 9.0))
    assert by_name(model, Materials(model, CPU), "weight")["weight"].isfinite().all()
    assert model.bias.tolist() == [9, 9] and model.weight.is_meta
