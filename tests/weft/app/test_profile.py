"""``weft profile``: distinct operators run alone, what cannot be run, and stages from a user's file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import weft
from tests.models.capture.test_capture import rewritten
from tests.support.exported_models import MODELS
from weft.app.profile.operators import profile_operators
from weft.app.profile.targets import ProfileFault, load_stages
from weft.cli.main import main
from weft.models.capture.capture import capture_file, save_exported
from weft.models.graph.layers_view import by_layer
from weft.models.graph.operator_files import load_graph
from weft.models.times.measured_times import load_times
from weft.models.times.operator_times import Origin
from weft.runtime.interface.training import Training
from weft.runtime.measure import measure
from weft.runtime.measure.stage_costs import load_stage_costs
from weft.solver.io.files import load_problem


def saved(name: str, folder: Path) -> Path:
    torch.manual_seed(3)
    module, inputs = MODELS[name]
    save_exported(module(), inputs(), folder / "model.pt2")
    return folder / "model.pt2"


@pytest.mark.parametrize("name", ["attention", "encoder", "tied"])
def test_each_operator_is_measured_once_and_keeps_what_the_graph_says(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
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

    path = rewritten(saved("attention", tmp_path), tmp_path / "changed.pt2", change)
    monkeypatch.setattr(measure, "available_bytes", lambda device: 40_000)
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

    times = profile_operators(saved("attention", tmp_path), repeats=1, on_progress=stop)
    left = [entry for entry in times.operators if entry.note]
    assert left and len(left) < len(times.operators) and all("interrupted" in entry.note for entry in left)
    assert all(entry.forward is not None for entry in times.operators)


TRAINING = """
import torch
from torch import nn
from weft.runtime.interface.training import Training

def stages():
    return Training({0: nn.Linear(4, 2)}, [], lambda s, m: torch.randn(3, 4), lambda s, m: torch.randn(3, 2),
                    nn.functional.mse_loss)

def other():
    return 3

def broken():
    return {}["weights"]
"""


def test_stages_come_from_a_file_or_a_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    assert list(load_stages(f"{tmp_path}/mine.py:stages").stages) == [0]
    for stages, message in (
            ("mine", r"--stages is 'mine', it must be FILE\.py:FUNCTION or MODULE:FUNCTION"),
            (f"{tmp_path}/none.py:f", r"there is no file .*none\.py"),
            (f"{tmp_path}/mine.py:ghost", "has no attribute 'ghost'"),
            (f"{tmp_path}/mine.py:other", r"gave int, it must give a runtime\.training\.Training"),
            (f"{tmp_path}/mine.py:broken", "broken: KeyError: 'weights'")):
        with pytest.raises(ProfileFault, match=message):
            load_stages(stages)


# -- the commands ------------------------------------------------------------------------------------------------------


def test_capture_writes_the_operators_and_shows_the_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved("tied", tmp_path)
    assert main(["capture", str(path), "-o", str(tmp_path / "graph.json")]) == 0
    shown = capsys.readouterr().out
    assert load_graph(tmp_path / "graph.json") == weft.capture(path)
    assert "parameters (" in shown and "blocks.1 " in shown and "note: 0 operations" in shown
    assert main(["capture", str(path), "--layers", "-o", str(tmp_path / "layers.json")]) == 0
    assert load_graph(tmp_path / "layers.json") == by_layer(weft.capture(path))
    assert main(["capture", str(tmp_path / "graph.json")]) == 2
    assert "graph.json: is no .pt2 archive" in capsys.readouterr().err


def test_profile_writes_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved("mlp", tmp_path)
    assert main(["profile", str(path), "--repeats", "2", "-o", str(tmp_path / "times.json")]) == 0
    assert "4 operators, 4 distinct" in capsys.readouterr().out
    times = load_times(tmp_path / "times.json").times(weft.capture(path))
    assert all(time.origin == Origin.MEASURED for time in times.values())


def test_profile_of_stages_writes_what_to_solve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    stages = ["profile", "--stages", f"{tmp_path}/mine.py:stages", "--repeats", "1"]
    assert main([*stages, "-o", f"{tmp_path}/costs.json", "--problem", f"{tmp_path}/p.json", "--memory", "1MiB"]) == 0
    problem = load_problem(tmp_path / "p.json")
    assert [block.name for block in problem.blocks] == ["F0", "B0"]
    assert problem.devices[0].memory == 2**20 - 4 * (4 * 2 + 2) * 4
    assert load_stage_costs(tmp_path / "costs.json").stages[0].parameter_bytes == 40
    capsys.readouterr()
    assert main([*stages, "--problem", f"{tmp_path}/p.json", "--memory", "100"]) == 2
    assert "stage 0 needs 160 bytes for weights" in capsys.readouterr().err
    for wrong, message in ((["profile"], "say what to time"), ([*stages, "a.pt2"], "say what to time"),
                           (["profile", "a.pt2", "--problem", f"{tmp_path}/p.json"], "--problem needs --stages"),
                           ([*stages, "--device", "tpu"], "--device is 'tpu'")):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_stages_are_measured_by_several_ranks_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(TRAINING)
    stages = ["profile", "--repeats", "2", "--ranks", "2", "--stages"]
    assert main([*stages, f"{tmp_path}/mine.py:stages", "-o", f"{tmp_path}/costs.json"]) == 0
    found, = load_stage_costs(tmp_path / "costs.json").stages
    assert found.parameter_bytes == 40 and found.passes["full"]["F"].time.repeats == 16
    assert ", 2 at once" in load_stage_costs(tmp_path / "costs.json").device
    capsys.readouterr()
    (tmp_path / "mine.py").write_text("def stages():\n    return 1\n")
    assert main([*stages, f"{tmp_path}/mine.py:stages"]) == 2
    assert capsys.readouterr().err == (f"weft: --stages {tmp_path}/mine.py:stages gave int, it must give a "
                                       "weft.runtime.interface.training.Training with all stages\n")
    (tmp_path / "mine.py").write_text("import os\ndef stages():\n    if os.environ['RANK'] == '1': os._exit(3)\n"
                                      "    import time; time.sleep(60)\n")
    with pytest.raises(ProfileFault, match="rank 1 failed while measuring: it ended with code 3"):
        weft.profile_stages(f"{tmp_path}/mine.py:stages", ranks=2)
    with pytest.raises(ProfileFault, match=r"name the stages as FILE\.py:FUNCTION"):
        weft.profile_stages(Training({}, [], lambda step, m: None), ranks=2)
