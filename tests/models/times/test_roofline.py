"""Modelled operator times, measured ones from profiles, and where each number comes from."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from weft.models.graph.operators import Operator, OperatorGraph, Tensor, Work
from weft.models.hardware.devices import DEVICES, Reach
from weft.models.spec.families import GptModel, T5Model
from weft.models.times.operator_times import Origin
from weft.models.times.profile_times import ProfileTimes, rows_of
from weft.models.times.profiles import shipped_profile
from weft.models.times.roofline import Roofline, pass_seconds
from weft.models.zoo.graphs import model_graph

V100 = DEVICES["v100"]
T5_770M = T5Model(family="t5", encoder_layers=2, decoder_layers=2, hidden=1024, heads=16, feed_forward=4096,
                  vocabulary=30592, sequence=2048, target=512, positions="learned", norm="layer_norm",
                  activation="gelu", bias=True)
GPT_1_3B = GptModel(family="gpt", layers=1, hidden=2048, heads=32, vocabulary=51200, sequence=2048)


def t5_profile(*sizes: int, batch: int) -> ProfileTimes:
    return ProfileTimes({size: shipped_profile("t5-770m-v100", size) for size in sizes}, batch, Roofline(V100), "T5")


def test_a_pass_takes_the_longer_of_computation_and_traffic_after_its_launch() -> None:
    reach = Reach(compute=0.5, memory=0.25)
    launch = V100.launch["forward"]
    computing, moving = Work(flops=125e9), Work(bytes_read=900_000, bytes_written=900_000)
    assert pass_seconds(V100, "linear", computing, "float16", "forward", reach=reach) == pytest.approx(launch + 2e-3)
    assert pass_seconds(V100, "linear", moving, "float16", "forward", reach=reach) == pytest.approx(launch + 8e-6)
    both = Work(computing.flops, moving.bytes_read, moving.bytes_written)
    assert pass_seconds(V100, "linear", both, "float16", "forward", reach=reach) == pytest.approx(launch + 2e-3)
    assert pass_seconds(V100, "linear", computing, "float32", "forward", reach=reach) == pytest.approx(
        launch + 125e9 / 15.7e12 / 0.5)


def test_what_does_nothing_takes_no_time_and_gradients_that_ride_along_have_no_launch_of_their_own() -> None:
    x, y = Tensor("x", 8, (4,), "float16"), Tensor("y", 8, (4,), "float16")
    view = Operator("view", "select", Work(), ("x",), (y,), input_grad=Work(1, 8, 8), weight_grad=Work(1, 8, 8))
    time = Roofline(V100).times(OperatorGraph("g", (view,), (x,)))["view"]
    assert time.forward == time.weight_grad == 0
    assert V100.launch["backward"] <= time.input_grad < 1.01 * V100.launch["backward"]


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_can_model_every_family_s_kernels(name: str) -> None:
    graph = model_graph(GPT_1_3B)
    times = Roofline(DEVICES[name]).times(graph)
    assert all(time.forward > 0 and time.origin is Origin.MODELLED for time in times.values())
    for (group, which), reach in DEVICES[name].reach.items():
        assert 0 < reach.compute <= 1 and 0 < reach.memory <= 1, (group, which)


def test_faster_devices_are_faster() -> None:
    graph = model_graph(GPT_1_3B)
    step = {name: sum(time.forward + time.input_grad + time.weight_grad
                      for time in Roofline(device).times(graph).values()) for name, device in DEVICES.items()}
    assert step["h200"] <= step["h100"] < step["a100-80gb"] <= step["a100-40gb"] < step["v100"] < step["cpu"]


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_the_shipped_constants_are_near_the_profile_they_were_not_fitted_on(batch: int) -> None:
    """A layer of GPT-1.3B: experiments/models/roofline.py has the distribution."""
    graph = model_graph(GPT_1_3B, batch)
    profile, times = shipped_profile("gpt-1.3b-v100", batch), Roofline(V100).times(graph)
    layer = [operator.name for operator in graph.operators if operator.layer == "layer0"]
    rows = rows_of(graph)
    forward = sum(profile[rows[name]].forward for name in layer)
    backward = sum(profile[rows[name]].backward for name in layer)
    assert sum(times[name].forward for name in layer) == pytest.approx(forward, rel=0.1)
    assert sum(times[name].input_grad + times[name].weight_grad for name in layer) == pytest.approx(backward, rel=0.1)


def test_every_row_of_a_profile_has_its_operators() -> None:
    for model, name in ((GPT_1_3B, "gpt-1.3b-v100"), (T5_770M, "t5-770m-v100")):
        assert set(rows_of(model_graph(model)).values()) == set(shipped_profile(name, 1))
    assert rows_of(model_graph(GptModel(**{**GPT_1_3B.model_dump(), "attention": "fused"}))).keys() >= {"head.logits"}


def test_measured_times_add_up_to_the_profile_s() -> None:
    graph, profile = model_graph(T5_770M), shipped_profile("t5-770m-v100", 1)
    times = t5_profile(1, batch=1).times(graph)
    assert {time.origin for time in times.values()} == {Origin.MEASURED}
    cross = [times["decoder1.cross.q"], times["decoder1.cross.kv"]]
    row = profile["dec-attention-qkv-2"]
    assert sum(time.forward for time in cross) == pytest.approx(row.forward, abs=2e-9)
    assert sum(time.input_grad + time.weight_grad for time in cross) == pytest.approx(row.backward, abs=4e-9)


def test_between_measured_sizes_times_are_interpolated_and_beyond_them_modelled() -> None:
    graph = model_graph(T5_770M, 3)
    times = t5_profile(2, 4, batch=3).times(graph)
    low, high = (shipped_profile("t5-770m-v100", size)["enc-MLP-GEMM-1"].forward for size in (2, 4))
    assert times["encoder0.mlp.up"].origin is Origin.INTERPOLATED
    assert times["encoder0.mlp.up"].forward == pytest.approx((low + high) / 2, abs=1e-9)
    assert {time.origin for time in t5_profile(4, 8, batch=3).times(graph).values()} == {Origin.MODELLED}


def test_rows_of_another_size_are_not_taken() -> None:
    """The artifact's rows of the final norms are those of micro-batch 1 in every file."""
    graph = model_graph(T5_770M, 2)
    source = t5_profile(2, batch=2)
    modelled = {name for name, time in source.times(graph).items() if time.origin is Origin.MODELLED}
    assert modelled == {"bridge.norm", "bridge.tokens", "head.norm"}
    notes = " ".join(source.notes(graph))
    assert "T5 lacks 3 of" in notes and "bridge.norm, bridge.tokens, head.norm" in notes and "are modelled" in notes
    wider = model_graph(T5_770M.model_copy(update={"hidden": 512}), 2)
    assert not source.covers(wider) and source.covers(graph)


def test_a_missing_row_is_filled_in_and_named(tmp_path: Path) -> None:
    source = resources.files("weft.models") / "data" / "aceso" / "t5_770M_mbs1_tp1_algo0.csv"
    from weft.models.times.profiles import load_profile

    path = tmp_path / "mine.csv"
    path.write_text("".join(line for line in source.read_text().splitlines(True) if "enc-MLP-gelu" not in line))
    times = replace(t5_profile(batch=1), tables={1: load_profile(path, "mine.csv")})
    graph = model_graph(T5_770M)
    assert times.times(graph)["encoder0.mlp.gelu"].origin is Origin.MODELLED
    assert any("lacks 2 of" in note and "encoder0.mlp.gelu, encoder1.mlp.gelu" in note for note in times.notes(graph))
