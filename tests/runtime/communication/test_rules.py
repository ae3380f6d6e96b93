"""What a sharded optimizer is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from weft.runtime.communication.rules import groups_of, options_in, require_fitting, require_options

DEFAULTS = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}


def named() -> list[tuple[str, nn.Parameter]]:
    return list(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).named_parameters())


def test_parameters_of_equal_options_are_together() -> None:
    groups = list(groups_of(named(), DEFAULTS, lambda name, p: {"weight_decay": 0.1} if p.dim() > 1 else {}))
    assert [entry["names"] for entry in groups] == [["0.weight", "1.weight"], ["0.bias", "1.bias"]]
    assert [entry["weight_decay"] for entry in groups] == [0.1, 0.0] and groups[1]["lr"] == 0.1


@pytest.mark.parametrize(("options", "sentence"), [
    ({"momentum": 0.9}, "options_of gives '0.weight' 'momentum': it may give lr, betas"),
    ({"lr": -1.0}, "lr of '0.weight' is -1.0"), ({"betas": (0.9, 1.0)}, "betas of '0.weight' are"),
    ({"lr": "fast"}, "lr of '0.weight' is 'fast', it must be a number"),
    ({"betas": 0.9}, "betas of '0.weight' are 0.9"),
    ({"eps": float("nan")}, "eps of '0.weight' is nan"), ({"betas": (0.9,)}, "betas of '0.weight' are")])
def test_options_that_cannot_be_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        list(groups_of(named(), DEFAULTS, lambda *_: options))


def on(device: str, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(1, dtype=dtype, device=device))


@pytest.mark.parametrize(("parameters", "clip_norm", "bucket_bytes", "sentence"), [
    ([], None, 1, "no parameters to train"),
    ([("a", on("cpu", torch.complex64))], None, 1, "'a' is of torch.complex64"),
    ([("a", on("cpu")), ("b", on("meta"))], None, 1, "'b' is on meta, others are on cpu"),
    (named(), 0.0, 1, "clip_norm is 0"), (named(), None, 0, "bucket_bytes is 0")])
def test_what_cannot_be_trained_is_refused(parameters: Any, clip_norm: float | None, bucket_bytes: int,
                                           sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        require_options(parameters, clip_norm, bucket_bytes)


def states() -> dict[str, Any]:
    return {"rule": "adam", "param_groups": [{"params": [name for name, _ in named()], **DEFAULTS}], "state": {
        name: {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        for name, p in named()}}


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda found: found.update(rule="lamb"), "of the rule 'lamb', but the optimizer has 'adam'"),
    (lambda found: found.pop("state"), "no 'state'"), (lambda found: found["state"].pop("1.bias"), "'1.bias'"),
    (lambda found: found["state"]["1.bias"].pop("exp_avg"), "no 'exp_avg' of the parameter '1.bias'"),
    (lambda found: found["state"]["1.bias"].update(exp_avg=torch.zeros(2)), r"shape \(2,\), but"),
    (lambda found: found["state"].update(more={}), "also of 'more'"),
    (lambda found: found["param_groups"].append({}), "group 1 of these states has no 'params'"),
    (lambda found: found["param_groups"][0]["params"].pop(), "nothing of the parameter '1.bias'")])
def test_states_that_do_not_fit_are_refused(change: Any, sentence: str) -> None:
    found = states()
    change(found)
    with pytest.raises(ValueError, match=sentence):
        require_fitting(found, "adam", dict(named()))


def test_options_are_those_of_each_group_and_never_of_a_part_of_it() -> None:
    found = states()
    names = found["param_groups"][0]["params"]
    assert [entry["lr"] for entry in options_in(found, [names[:1], names[1:]])] == [0.1, 0.1]
    found["param_groups"] = [{**found["param_groups"][0], "params": names[:1], "weight_decay": 0.5},
                             {**found["param_groups"][0], "params": names[1:]}]
    assert [entry["weight_decay"] for entry in options_in(found, [names[:1], names[1:]])] == [0.5, 0.0]
    with pytest.raises(ValueError, match=r"weight_decay 0.5 for '0.weight' and 0.0 for '0.bias', which have one group"):
        options_in(found, [names])
