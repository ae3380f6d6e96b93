"""``weft profile`` of a captured model: distinct operators run alone, and what cannot be run."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.support import refusal, shows, slow
from tests.support.damage import rewritten
from tests.support.exported_models import saved_model
from weft.app.profile import operators
from weft.app.profile.operators import profile_operators
from weft.cli.main import main
from weft.models import capture_file, load_graph
from weft.models.graph.layers_view import by_layer
from weft.models.times.measured_times import load_times
from weft.models.times.operator_times import Origin


@pytest.mark.parametrize("name", ["attention", slow("encoder"), "tied"])
def test_each_operator_is_measured_once_and_keeps_what_the_graph_says(name: str, tmp_path: Path) -> None:
    path = saved_model(name, tmp_path)
    times, graph = profile_operators(path, repeats=2), capture_file(path)
    assert sorted(times.by_name) == sorted(graph.by_name)
    if name != "attention":  # blocks alike are one
        assert len(times.operators) < 0.7 * len(graph.operators)
    for operator in graph.operators:
        entry = times.by_name[operator.name]
        assert entry.kind == operator.kind and not entry.note
        for part in ("forward", "input_grad", "weight_grad"):
            figure = getattr(entry, part)
            assert (figure is None) == (getattr(operator, part) is None), (operator.name, part)
            assert figure is None or (figure.origin == Origin.MEASURED and figure.repeats == 2)
        made = {tensor.name: tensor.bytes for tensor in (*operator.outputs, *operator.internal) if tensor.base is None}
        assert entry.saved is not None and entry.saved.value == sum(made.get(key, 0) for key in operator.keeps)
    assert times.notes(graph) == []


def test_what_would_not_fit_or_cannot_be_run_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(program: dict[str, object]) -> None:
        nodes = program["graph_module"]["graph"]["nodes"]  # type: ignore[index]
        next(node for node in nodes if "gelu" in node["target"])["target"] = "torch.ops.mylib.gelu.default"

    path = rewritten(saved_model("attention", tmp_path), tmp_path / "changed.pt2", change)
    monkeypatch.setattr(operators, "available_bytes", lambda device: 40_000)
    times = profile_operators(path, repeats=1)
    unknown, big = times.by_name["gelu"], times.by_name["linear_2"]
    assert "not torch's own" in unknown.note and unknown.forward is not None
    assert unknown.forward.origin == Origin.MODELLED
    assert "40000 are free" in big.note and big.forward is not None and big.forward.origin == Origin.INTERPOLATED
    assert times.by_name["linear_1"].note == ""


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    def stop(done: int, total: int, kind: str) -> None:
        if done == 8:
            raise KeyboardInterrupt

    times = profile_operators(saved_model("attention", tmp_path), repeats=1, on_progress=stop)
    left = [entry for entry in times.operators if entry.note]
    assert left and len(left) < len(times.operators) and all("interrupted" in entry.note for entry in left)
    assert all(entry.forward is not None for entry in times.operators)


def test_capture_writes_the_operators_and_shows_the_layers(tmp_path: Path) -> None:
    path = saved_model("tied", tmp_path)
    shown = shows("capture", path, "-o", tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == weft.capture(path)
    assert "parameters (" in shown and "blocks.1 " in shown and "note: 0 operations" in shown
    assert main(["capture", str(path), "--layers", "-o", str(tmp_path / "layers.json")]) == 0
    assert load_graph(tmp_path / "layers.json") == by_layer(weft.capture(path))
    assert "graph.json: is no .pt2 archive" in refusal("capture", tmp_path / "graph.json")


def test_profile_writes_times(tmp_path: Path) -> None:
    path = saved_model("mlp", tmp_path)
    assert "4 operators, 4 distinct" in shows("profile", path, "--repeats", "2", "-o", tmp_path / "times.json")
    times = load_times(tmp_path / "times.json").times(weft.capture(path))
    assert all(time.origin == Origin.MEASURED for time in times.values())
