"""Stages that begin at submodules compute what the model does, whatever Python does between them; and what cannot be
is refused by name."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.captured.conftest import without_traces  # noqa: F401
from tests.support.captured_models import made
from weft.runtime.by_modules.cut import ModuleCut, checked
from weft.runtime.by_modules.trace import trace
from weft.runtime.captured.captured import Captured, CaptureError


def cut_of(model: nn.Module, split: list[str], *args: Any, **kwargs: Any) -> ModuleCut:
    return ModuleCut(trace(model, [(args, kwargs)], split))


@pytest.mark.parametrize(("name", "split"), [
    ("gpt", ["layers.1", "layers.2"]), ("gpt", ["norm", "layers.1"]), ("skip", ["inner.1", "inner.3"]),
    ("skip", ["last"]), ("masked", ["out"]), ("masked", ["table"]), ("towers", ["right", "join"]),
    ("towers", ["right.2"]), ("branches", ["layers.1", "layers.2"]), ("branches", ["layers.3", "out"]),
    ("translator", ["encoder.1", "decoder.0", "decoder.1"]), ("translator", ["drop", "decoder.1.multihead_attn"])])
def test_stages_give_the_models_results_and_gradients(name: str, split: list[str]) -> None:
    case = made(name, 4)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    checked(cut_of(case.model, split, *case.args, **case.kwargs))  # refuses if they do not
    assert all(torch.equal(value, before[key]) for key, value in case.model.state_dict().items())
    assert all(parameter.grad is None for parameter in case.model.parameters())


def test_what_crosses_is_what_is_read_later_and_masks_do_not() -> None:
    gpt, skip, translator = made("gpt", 2), made("skip", 4), made("translator", 4)
    cut = cut_of(gpt.model, ["layers.1", "layers.2"], *gpt.args)
    assert cut.takes == [[], ["layers.1@0"], ["layers.2@0"]] and cut.gives[2] == ["out.0"]
    assert cut.ties() == [{0: "words.weight", 2: "head.weight"}]
    assert cut.spans() == (("words", "layers.0"), ("layers.1", "layers.1"), ("layers.2", "head"))
    held = dict(cut.stages([2]).modules[2].named_parameters())
    assert held["head.weight"] is gpt.model.get_parameter("words.weight") and "layers.1.attend.weight" not in held
    cut = cut_of(skip.model, ["inner.1", "inner.3"], *skip.args, **skip.kwargs)
    assert cut.takes[2] == ["inner.3@0", "first.0"] and "first.0" not in cut.gives[1]  # over stage 1
    cut = cut_of(translator.model, ["decoder.0", "decoder.1"], *translator.args, **translator.kwargs)
    ports = cut.stages([]).ports
    assert ports[1].takes == ("decoder.0@0", "decoder.0@1", "batch.keep")
    assert "batch.source" in ports[0].takes and len(ports[2].takes) == 3


def test_batches_that_go_another_way_than_the_example_are_the_models() -> None:
    case = made("branches", 4)
    examples = [(made("branches", 4, seed).args, dict[str, Any]()) for seed in range(4)]
    stages = ModuleCut(trace(case.model, examples, ["layers.1", "layers.3"])).stages()
    ways = set[bool]()
    for seed in range(8):
        x = made("branches", 4, seed).args[0]
        values = {"batch.x": x}
        for s, module in stages.modules.items():
            values.update(zip(stages.ports[s].gives, module(*(values[n] for n in stages.ports[s].takes)), strict=True))
        assert torch.equal(values["out.0"], case.model(x))
        ways.add(bool(case.model.layers[0](case.model.into(x)).mean() > 0))  # type: ignore[index, operator]
    assert ways == {True, False}


def test_a_way_on_which_a_gradient_would_be_lost_is_refused() -> None:
    case = made("branches", 4)
    model: Any = case.model
    batches = [made("branches", 4, seed).args[0] for seed in range(8)]
    with_norm = {bool(model.layers[0](model.into(x) * model.scale).mean() > 0): x for x in batches}
    module = cut_of(model, ["layers.1"], with_norm[False]).stages().modules[0]
    assert len(module(with_norm[False])) == 3
    with pytest.raises(CaptureError, match="stage 0 runs the submodule 'norm' for a micro-batch, but in no"):
        module(with_norm[True])


def test_a_forward_leaves_nothing_behind() -> None:
    case = made("gpt", 2)
    module = cut_of(case.model, ["layers.1"], *case.args).stages().modules[0]
    kept: list[weakref.ref[Tensor]] = []
    module.get_submodule("layers.0").register_forward_hook(lambda layer, xs, y: kept.append(weakref.ref(y)))
    gc.disable()
    try:
        with torch.no_grad():
            module(*case.args)
        assert len(kept) == 1 and kept[0]() is None
    finally:
        gc.enable()


class Odd(nn.Module):
    """Between its two layers it does what ``odd`` says."""

    def __init__(self, odd: Callable[[Odd, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))
        self.odd, self.note = odd, None

    def forward(self, x: Tensor) -> Any:
        found = self.odd(self, self.first(x), x)
        return self.third(self.second(found)) if isinstance(found, Tensor) else found


def behind_the_back(model: Any, h: Tensor, x: Tensor) -> Tensor:
    model.note = [] if model.note is None else model.note
    return h + len(model.note)


def collected(model: Any, h: Tensor, x: Tensor) -> Tensor:
    made = torch.zeros(2, 3)
    made[0], made[1] = h[0], x[1]
    made.mul_(2)
    return made


def drawn(model: Any, h: Tensor, x: Tensor) -> Tensor:
    return h + torch.rand(3) * (2 if bool(h.sum() > torch.rand(())) else 3)


@pytest.mark.parametrize("odd", [collected, drawn, lambda model, h, x: h.add_(1) * h.detach().numpy().sum(),
                                 lambda model, h, x: torch.relu_(h + 0).clone().masked_fill_(x > 0, 0.5)])
@pytest.mark.parametrize("split", [["second"], ["second", "third"], ["third"]])
def test_what_is_odd_between_submodules_is_the_models_all_the_same(odd: Any, split: list[str]) -> None:
    torch.manual_seed(5)
    checked(cut_of(Odd(odd).double(), split, torch.randn(2, 3, dtype=torch.float64)) if odd is not collected else
            cut_of(Odd(odd), split, torch.randn(2, 3)))


@pytest.mark.parametrize(("odd", "said"), [
    (lambda model, h, x: h * x.add_(1), r"'add_' writes into the input 'x' \(test_cut.py:\d+ \(.*every stage"),
    (lambda model, h, x: h + model.count.add_(1), "writes into 'count' between submodules, which every stage would do"),
    (lambda model, h, x: h * len(model.first.bias.tolist()), "reads the numbers of the parameter 'first.bias'"),
    (lambda model, h, x: torch.zeros(2, 3) + h[h > -9].sum(), "at test_cut.py.* a shape or a number depends"),
    (lambda model, h, x: [model.second(h), object()], "Odd returns a object, which is no tensor: return"),
    (lambda model, h, x: h + model.undefined, r"Odd cannot be run on the example: .* at test_cut.py:\d+ \(\(lambda")])
def test_what_cannot_be_is_refused_with_the_line(odd: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        checked(cut_of(Odd(odd), ["second"], torch.randn(2, 3)))


class Tells(nn.Linear):
    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs = 1
        return super().forward(x)


class Sneaking(nn.Module):
    """The first layer tells the last one something by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Tells(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)) * self.first.runs  # type: ignore[no-any-return]


def test_what_passes_by_another_way_is_found_by_the_result() -> None:
    with pytest.raises(CaptureError, match="cut so, the result 0 is not that of the plain model: something passes"):
        checked(cut_of(Sneaking(), ["last"], torch.randn(2, 3)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle, self.rows = nn.Linear(3, 3), nn.Linear(3, 3), nn.ModuleList([nn.Linear(3, 3)])

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[0](self.layer(self.layer(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("split", "said"), [
    (["layers"], "split names 'layers', which is no submodule of Twice: did you mean 'layer'?"),
    (["rows"], "'rows', which is a ModuleList and never called itself: name one of its members, as rows.0"),
    (["layer"], "'layer', which is called several times in one forward: name a submodule that is called once"),
    (["idle"], "'idle', which is not called in the example: name a submodule that is, once in each forward"),
    (["rows.0", "rows.0"], "split names 'rows.0' twice"), ([3], "split names 3, which is no submodule of Twice")])
def test_names_that_cannot_begin_a_stage_are_refused(split: list[Any], said: str) -> None:
    with pytest.raises(CaptureError, match=said.replace("?", r"\?")):
        cut_of(Twice(), split, torch.randn(2, 3))


def test_parameters_of_no_submodule_that_is_called_are_unread() -> None:
    traced = trace(Twice(), [((torch.randn(2, 3),), {})], ["rows.0"])
    assert traced.unread() == ["idle.weight", "idle.bias"]
    assert traced.digest == trace(Twice(), [((torch.randn(2, 3),), {})], ["rows.0"]).digest
    assert traced.digest != trace(Twice(), [((torch.randn(4, 3),), {})], ["rows.0"]).digest


def test_a_model_that_an_export_refuses_says_so_and_the_way_out() -> None:
    case = made("branches", 4)
    with pytest.raises(CaptureError, match=r"split=\["):
        Captured.of(case.model, case.args)


def transformers_cases() -> Iterator[Any]:
    ids = torch.randint(3, 97, (2, 8))
    wide = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    yield pytest.param("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 97, "n_positions": 16, "n_embd": 16,
                       "n_layer": 3, "n_head": 2, "use_cache": False}, {"input_ids": ids, "labels": ids},
                       ["transformer.h.1", "transformer.h.2"], id="gpt2")
    yield pytest.param("LlamaForCausalLM", "LlamaConfig", {"vocab_size": 97, "use_cache": False, **wide},
                       {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)},
                       ["model.layers.1", "lm_head"], id="llama")
    yield pytest.param("T5ForConditionalGeneration", "T5Config", {"vocab_size": 97, "d_model": 16, "d_kv": 8,
                       "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
                       {"input_ids": ids, "labels": ids, "use_cache": False}, ["encoder.block.1", "decoder.block.1"],
                       id="t5")


@pytest.mark.parametrize(("model", "config", "settings", "kwargs", "split"), list(transformers_cases()))
def test_models_of_transformers(model: str, config: str, settings: dict[str, Any], kwargs: dict[str, Any],
                                split: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    module = getattr(transformers, model)(getattr(transformers, config)(**settings)).double()
    checked(cut_of(module, split, **kwargs))


class Typed(nn.Module):
    """Asks a parameter, its own and another stage's, for its type and shape alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.asked = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x.to(self.asked.dtype).to(self.two.weight.device)) * self.asked.size(0)
        return self.two(x.to(self.asked.dtype) / self.one.weight.shape[0])  # type: ignore[no-any-return]


def test_the_type_of_a_parameter_is_read_without_its_gradient() -> None:
    torch.manual_seed(0)
    checked(ModuleCut(trace(Typed(), [((torch.randn(3, 4),), {})], ["two"])))
