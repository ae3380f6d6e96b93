"""The two file formats: what a file says is read back, and a bad file gets one clear sentence."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import chain, pipeline, written
from weft.solver import Device, baseline
from weft.solver.io.entries import FormatError, read_json
from weft.solver.io.problem_files import load_problem, problem_from_json, problem_to_json, save_problem
from weft.solver.io.schedule_files import load_schedule, save_schedule, schedule_from_json, schedule_to_json
from weft.solver.io.writing import write_atomically

PROBLEM: dict[str, Any] = {
    "format": "weft.problem/1", "name": "small", "time_unit": "ms", "memory_unit": "GiB",
    "devices": [{"name": "gpu0", "memory": 4}, {"name": "gpu1", "memory": None}],
    "links": [{"name": "wire", "source": "gpu0", "target": "gpu1"}],
    "blocks": [
        {"name": "f", "kind": "forward", "devices": [0], "duration": 1.5, "memory": 1, "after": []},
        {"name": "g", "kind": "other", "devices": [1, 0], "duration": 2, "memory": [1, 0], "workspace": 1,
         "after": [{"block": "f", "lag": 0.5, "link": "wire"}, {"block": "g", "distance": 1}]},
        {"name": "b", "kind": "backward", "devices": [0], "duration": 3, "memory": -1, "after": ["g"]},
    ],
}
SCHEDULE = schedule_to_json(baseline("greedy", problem_from_json(PROBLEM), 2))

Damage = Callable[[dict[str, Any]], object]


def refusal(read: Callable[[Any, str], object], value: dict[str, Any], damage: Damage) -> str:
    damaged = copy.deepcopy(value)
    damage(damaged)
    with pytest.raises(FormatError) as caught:
        read(damaged, "file.json")
    message = str(caught.value)
    assert message.startswith("file.json: ")
    assert "\n" not in message
    return message.removeprefix("file.json: ")


def test_lanes_are_read_as_written() -> None:
    value = copy.deepcopy(PROBLEM)
    value["devices"].append({"name": "nic", "lane_of": "gpu1"})
    value["blocks"].append({"name": "send", "kind": "other", "devices": [2], "duration": 1, "memory": 1, "after": []})
    problem = problem_from_json(value)
    assert problem.devices[2] == Device("nic", lane_of="gpu1")
    assert problem.pool_of == (0, 1, 1)
    written = problem_to_json(problem)
    assert written["devices"][2] == {"name": "nic", "memory": None, "lane_of": "gpu1"}
    assert "lane_of" not in written["devices"][0]
    assert problem_from_json(written) == problem


@pytest.mark.parametrize(("damage", "message"), [
    (lambda p: p.pop("name"), "the field 'name' is missing"),
    (lambda p: p.update(name=3), "name is 3, it must be text"),
    (lambda p: p.update(format="weft.problem/2"),
     "format is 'weft.problem/2'; this weft reads 'weft.problem/1' only; the file comes from a newer weft"),
    (lambda p: p.update(format="weft.problem/0"), "format is 'weft.problem/0'; this weft reads 'weft.problem/1' only"),
    (lambda p: p.update(format="weft.schedule/1"), "format is 'weft.schedule/1', it must be 'weft.problem/1'"),
    (lambda p: p.update(format="weft.problem/10"),
     "format is 'weft.problem/10'; this weft reads 'weft.problem/1' only; the file comes from a newer weft"),
    (lambda p: p.update(blokcs=[]), "unknown field 'blokcs'; did you mean 'blocks'?"),
    (lambda p: p["blocks"][0].update(durations=1), "blocks[0]: unknown field 'durations'; did you mean 'duration'?"),
    (lambda p: p["blocks"][2].update(duration=-3),
     "blocks[2]: block 'b': duration is -3, it must be greater than 0"),
    (lambda p: p["blocks"][2].update(duration=float("nan")), "blocks[2]: duration is NaN, it must be a finite number"),
    (lambda p: p["blocks"][2].update(duration=10**400), "blocks[2]: duration is"),
    (lambda p: p["blocks"][2].update(duration="3"), "blocks[2]: duration is \"3\", it must be a finite number"),
    (lambda p: p["blocks"][0].update(devices=[7]),
     "block 'f': devices names device 7, but there are 2 devices (0 to 1)"),
    (lambda p: p["blocks"][0].update(devices=0), "blocks[0]: devices is 0, it must be a list of indices into devices"),
    (lambda p: p["blocks"][0].update(devices=[True]), "blocks[0]: devices is [true], it must be a list of indices"),
    (lambda p: p["blocks"][0].update(memory=[1, 2]), "blocks[0]: memory has 2 entries for 1 devices"),
    (lambda p: p["blocks"][1].update(memory=[1]), "blocks[1]: memory has 1 entries for 2 devices"),
    (lambda p: p["blocks"][0].update(memory=[]), "blocks[0]: memory has 0 entries for 1 devices"),
    (lambda p: p["blocks"][0].update(kind="foward"),
     "blocks[0]: kind is 'foward', it must be one of forward, backward, input_grad, weight_grad, "
     "recompute, collective, other; did you mean 'forward'?"),
    (lambda p: p["blocks"][0].update(kind=["forward"]), "blocks[0]: kind is [\"forward\"], it must be text"),
    (lambda p: p["blocks"][0].update(after=["b"]), "the blocks wait for each other in a cycle: f -> g -> b -> f"),
    (lambda p: p["blocks"][2].update(after=["h"]), "block 'b': after 'h': there is no block of that name"),
    (lambda p: p["blocks"][2].update(after="g"), "blocks[2]: after is \"g\", it must be a list"),
    (lambda p: p["blocks"][2].update(after=[{"block": "g", "distance": 1.5}]),
     "blocks[2]: after[0]: distance is 1.5, it must be a whole number"),
    (lambda p: p["blocks"][2].update(name="f"), "blocks: the name 'f' is used twice"),
    (lambda p: p["blocks"].append(3), "blocks[3]: is 3, it must be an object"),
    (lambda p: p.update(blocks=[]), "blocks is empty"),
    (lambda p: p.update(devices={}), "devices is {}, it must be a list"),
    (lambda p: p["devices"][0].update(memory=-1), "devices[0]: device 'gpu0': memory is -1, it must be 0 or more"),
    (lambda p: p["devices"][0].pop("memory"), "devices[0]: the field 'memory' is missing"),
    (lambda p: p["devices"].append({"name": "nic", "lane_of": "gpu2"}),
     "device 'nic': lane_of is 'gpu2', but there is no device of that name"),
    (lambda p: p["devices"].append({"name": "nic", "lane_of": "gpu1", "memory": 3}),
     "devices[2]: device 'nic': memory is 3, but a lane has none of its own: leave it out"),
    (lambda p: p["devices"].append({"name": "nic", "lane_of": 1}), "devices[2]: lane_of is 1, it must be text"),
    (lambda p: p["links"][0].update(name="\0"), "links[0]: link '\\x00': the name holds the character"),
    (lambda p: p["links"][0].update(source="gpu2"), "links[0]: source: there is no device named 'gpu2'; did you mean"),
])
def test_bad_problem(damage: Damage, message: str) -> None:
    assert refusal(problem_from_json, PROBLEM, damage).startswith(message)


@pytest.mark.parametrize(("damage", "message"), [
    (lambda s: s.update(format="weft.schedule/2"),
     "format is 'weft.schedule/2'; this weft reads 'weft.schedule/1' only; the file comes from a newer weft"),
    (lambda s: s.update(micro_batches=0), "micro_batches is 0, it must be a whole number of at least 1"),
    (lambda s: s.update(micro_batches=1.0), "micro_batches is 1.0, it must be a whole number of at least 1"),
    (lambda s: s["operations"][0].update(block="ff"),
     "operations[0]: block: there is no block named 'ff'; did you mean"),
    (lambda s: s["operations"][1].update(start=float("inf")), "operations[1]: start is Infinity, it must be a finite"),
    (lambda s: s["operations"][1].update(micro_batch=-1),
     "operations[1]: micro_batch is -1, it must be a whole number"),
    (lambda s: s["operations"][1].pop("end"), "operations[1]: the field 'end' is missing"),
    (lambda s: s.update(makespan="1"), "makespan is \"1\", it must be a finite number"),
    (lambda s: s["peak_memory"].__setitem__(0, None), "peak_memory[0] is null, it must be a finite number"),
    (lambda s: s["peak_memory"].pop(), "peak_memory must list one number for each of the 2 devices"),
    (lambda s: s.update(repetend={"first": 0, "count": 0, "micro_batches": 1}), "repetend: count is 0"),
    (lambda s: s.update(solver="weft"), "solver is \"weft\", it must be an object"),
    (lambda s: s["problem"]["blocks"][0].update(duration=0), "problem: blocks[0]: block 'f': duration is 0"),
    (lambda s: s.update(operations=None), "operations is null, it must be a list"),
])
def test_bad_schedule(damage: Damage, message: str) -> None:
    assert refusal(schedule_from_json, SCHEDULE, damage).startswith(message)


@pytest.mark.parametrize("value", [None, 3, "text", [], [PROBLEM]])
def test_not_an_object(value: Any) -> None:
    for read in (problem_from_json, schedule_from_json):
        with pytest.raises(FormatError, match=r"^file.json: is .*, it must be an object"):
            read(value, "file.json")


# -- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is empty"),
    (b" \n", "is empty"),
    (b"{\n \"a\": }", "line 2, column 7: not JSON"),
    (b"\xff\xfe", "is not UTF-8 text"),
    (b"{\"a\": 1, \"a\": 2}", "the key 'a' appears twice in one object"),
    (b"[" * 100_000, "is nested too deeply"),
    (b"[" + b"9" * 5_000 + b"]", "not JSON"),
    (b"[3]", "is [3], it must be an object"),
])
def test_bad_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "problem.json"
    path.write_bytes(content)
    for load in (load_problem, load_schedule):
        with pytest.raises(FormatError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert message in str(caught.value)


@pytest.mark.timeout(30)
def test_more_micro_batches_than_anybody_lost_are_refused() -> None:
    """A few are the judge's business; tables of a billion would take the machine's memory first."""
    said = refusal(schedule_from_json, SCHEDULE, lambda value: value.update(micro_batches=10**9))
    assert said == "micro_batches is 1000000000, but there are 6 operations; every micro-batch has one of each block"
    assert schedule_from_json({**SCHEDULE, "micro_batches": 3}).micro_batches == 3


@pytest.mark.parametrize("load", [load_problem, load_schedule])
def test_what_is_no_regular_file_is_refused_at_once(load: Callable[[str], object], tmp_path: Path) -> None:
    """A FIFO that nobody writes to would be waited for, a device never ends."""
    os.mkfifo(tmp_path / "fifo")
    for path, words in ((f"{tmp_path}/fifo", "is a pipe, an input must be a file$"), ("/dev/zero", "is a device, "),
                        (str(tmp_path), "is a directory, "), (f"{tmp_path}/no", "cannot be read: No such file"),
                        ("a\0b.json", "cannot be read: "), ("\ud800.json", "cannot be read: ")):
        with pytest.raises(FormatError, match=f": {words}"):
            load(path)


def test_a_file_of_many_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "huge.json", "wb") as stream:
        stream.truncate(2**40)  # takes no room: it is all hole
    with pytest.raises(FormatError, match="is larger than 512 MiB, which an input is not"):
        load_problem(tmp_path / "huge.json")


@pytest.mark.parametrize(("text", "shown"), [
    ('{"a": "\\u0000"}', r"'\\x00'"), ('{"a": ["\\ud800"]}', r"'\\ud800'"), ('{"\\u001b": 1}', r"'\\x1b'"),
    ('{"a": "\ufffe"}', r"'\\ufffe'"), ('{"a": "\U0005ffff"}', r"'\\U0005ffff'"), ('["\x85"]', r"'\\x85'"),
])
def test_texts_that_cannot_be_shown_are_refused(tmp_path: Path, text: str, shown: str) -> None:
    (tmp_path / "f.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=f"holds the character {shown}, which cannot be shown") as caught:
        read_json(tmp_path / "f.json")
    str(caught.value).encode()


def test_line_ends_tabs_and_other_scripts_are_text(tmp_path: Path) -> None:
    texts = ["two\nlines\tand a tab", "späť 微 批 🧵 \u200d", "\\u0000 in words"]
    (tmp_path / "f.json").write_text(json.dumps(texts))
    assert read_json(tmp_path / "f.json") == texts


def test_long_names_are_cut_short_in_messages() -> None:
    long = "x" * 100_000
    for damage in (lambda p: p.update({long: 1}), lambda p: p["links"][0].update(source=long),
                   lambda p: p["blocks"][0].update(kind=long), lambda p: p.update(format=long),
                   lambda p: p["blocks"][0].update(name=long), lambda p: p["blocks"][1]["after"].append(long)):
        assert len(refusal(problem_from_json, PROBLEM, damage)) < 300


# -- how it came about ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "message"), [
    ({"static_memory": 3}, "solver: static_memory is 3, it must be a list"),
    ({"static_memory": [1]}, "solver: static_memory has 1 entries, it must have one for each of the 2 devices"),
    ({"static_memory": [1, "x"]}, "solver: static_memory[1] is \"x\", it must be a finite number"),
    ({"gpu_memory": [1, -1]}, "solver: gpu_memory[1] is -1, it must be 0 or more"),
    ({"gpu_memory": "80 GiB"}, "solver: gpu_memory is \"80 GiB\", it must be a list"),
    ({"alternatives": [3]}, "solver: alternatives[0] is 3, it must be an object"),
    ({"alternatives": {}}, "solver: alternatives is {}, it must be a list"),
    ({"alternatives": [{"placement": "a", "bound": None, "makespan": 1, "verdict": "worse"}]},
     "solver: alternatives[0]: the verdict 'worse' needs a bound"),
    ({"alternatives": [{"placement": "a", "bound": 1, "makespan": 1, "verdict": "best"}]},
     "solver: alternatives[0]: verdict is \"best\", it must be one of chosen, bound"),
    ({"options": {}}, "solver: options is {}, it must be a list"),
    ({"options": [{"choice": "c", "option": "o", "taken": 1, "bound": None, "makespan": None}]},
     "solver: options[0]: taken is 1, it must be true or false"),
    ({"options": [{"choice": "c", "option": "o", "taken": True, "bound": -1, "makespan": None}]},
     "solver: options[0]: bound is -1, it must be 0 or more"),
    ({"options": [{"choice": "c", "taken": True}]}, "solver: options[0]: the field 'option' is missing"),
    ({"alternatives": [{"bound": 1}]}, "solver: alternatives[0]: the field 'placement' is missing"),
    ({"gpus_of_stage": [[0]]}, "solver: the field 'tensor_parallel' is missing beside gpus_of_stage"),
    ({"layers_of_stage": [["a"]], "gpus_of_stage": [[0], [1]], "tensor_parallel": [{"collectives": {}}]},
     "solver: layers_of_stage, gpus_of_stage, tensor_parallel, co_shard must have one entry for each stage"),
    ({"layers_of_stage": [[]], "gpus_of_stage": [[0]], "tensor_parallel": [{"collectives": {}}]},
     "solver: layers_of_stage has a stage without layers"),
    ({"gpus_of_stage": [[]], "tensor_parallel": [{"collectives": {}}]}, "solver: gpus_of_stage[0]: its length is 0"),
    ({"bytes_per_parameter": {"a": 0}}, "solver: bytes_per_parameter adds up to 0 bytes, it must be more"),
    ({"repetend_period": 3}, "solver: the field 'repetend_period_bound' is missing beside repetend_period"),
    ({"gradients_freed": [0]}, "solver: gradients_freed has 1 entries"),
    ({"notes": "n"}, "solver: notes is \"n\", it must be a list"),
    ({"history": [[1, 2, 1], [0, 2, 1]]}, "solver: history[1]: its time is before that of the one before"),
    ({"history": [[1, 2]]}, "solver: history[0] has 2 entries, it must have seconds, makespan and bound"),
    ({"memory_plan": {}}, "solver: memory_plan: the field 'stages' is missing"),
    ({"placement": "x" * 100_000}, "solver: placement is a text of 100000 characters, more than 10000"),
    ({"techniques": {"ring-search": {"calls": 1, "proofs": 0, "improvements": 1}}},
     "solver: techniques: ring-search: the field 'seconds' is missing"),
    ({"techniques": {"ring-search": {"calls": -1, "proofs": 0, "improvements": 1, "seconds": 0.1}}},
     "solver: techniques: ring-search: calls is -1, it must be 0 or more"),
    ({"techniques": {"ring-search": {"calls": 1.5, "proofs": 0, "improvements": 1, "seconds": 0.1}}},
     "solver: techniques: ring-search: calls is 1.5, it must be a whole number"),
    ({"mine": [float("nan")]}, "solver holds a number that is not finite, or is nested too deeply"),
])
def test_what_weft_reads_of_the_solver_has_its_shape(said: dict[str, Any], message: str) -> None:
    assert refusal(schedule_from_json, SCHEDULE, lambda s: s["solver"].update(said)).startswith(message)


def test_what_others_say_of_the_solver_is_kept() -> None:
    value = copy.deepcopy(SCHEDULE)
    value["solver"].update(mine={"any": ["thing", None]}, seed=3)
    assert schedule_from_json(value).solver == value["solver"]


def test_saved_is_loaded(tmp_path: Path) -> None:
    problem = problem_from_json(PROBLEM)
    schedule = baseline("greedy", problem, 3)
    save_problem(problem, tmp_path / "problem.json")
    save_schedule(schedule, tmp_path / "schedule.json")
    assert load_problem(tmp_path / "problem.json") == problem
    assert load_schedule(tmp_path / "schedule.json") == schedule


def test_writing_replaces_the_whole_file(tmp_path: Path) -> None:
    path = written(tmp_path / "out.txt", "a long text that was there before")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "schedule.json", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_schedule(baseline("gpipe", pipeline(chain(2)), 2), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["schedule.json"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "out.txt", "text")
    assert os.listdir(tmp_path) == []


def test_what_is_not_json_is_not_written(tmp_path: Path) -> None:
    schedule = baseline("gpipe", pipeline(chain(2)), 2).with_solver(seconds=float("nan"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_schedule(schedule, tmp_path / "schedule.json")
    assert os.listdir(tmp_path) == []
