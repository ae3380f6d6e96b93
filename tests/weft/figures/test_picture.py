"""Pictures hold what they should, in all three formats, and leave nothing behind when they fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support import chain, laned_schedule, pipeline, schedule_of_jobs
from tests.support.pictures import GIB, rows
from weft.figures import chart, draw
from weft.figures.data import read_measured
from weft.solver import Block, BlockKind, Device, Problem, Schedule, baseline


def svg_texts(path: Path) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


# -- the three formats -------------------------------------------------------------------------------------------


def test_svg_says_what_is_in_the_schedule(schedule: Schedule, gpipe: Schedule, tmp_path: Path) -> None:
    draw(schedule, tmp_path / "a.svg", baseline=gpipe)
    texts = svg_texts(tmp_path / "a.svg")
    for device in schedule.problem.devices:
        assert texts.count(device.name) == 2  # in the schedule and in the baseline above it
    assert texts.count("cap 6 GiB") == 8
    assert texts.count("peak 8 GiB") == 4  # GPipe keeps all 8 micro-batches
    assert {"weft", "GPipe", "warm-up", "repetend × 5", "cool-down", "F forward", "B backward", "time (ms)"} <= {*texts}
    for micro_batch in range(8):  # a forward and a backward on each of 4 devices, twice; digits may also be axis labels
        assert texts.count(str(micro_batch)) >= 16
    assert not {"I input gradient", "W weight gradient", "activations"} & {*texts}


def test_png_is_a_picture(schedule: Schedule, tmp_path: Path) -> None:
    draw(schedule, tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20], "big") >= 2 * 960


@pytest.mark.slow
def test_html_holds_all_it_needs(schedule: Schedule, tmp_path: Path) -> None:
    draw(schedule, tmp_path / "a.HTML", title="a <b> & </script>")
    page = (tmp_path / "a.HTML").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>|<link[^>]*>", page) == ["<script>", "<script>"]
    assert "default-src 'none'" in page  # the browser refuses any access to the network
    assert page.count("</script>") == 2
    assert "<title>a &lt;b&gt; &amp; &lt;/script&gt;</title>" in page
    for field in ("micro-batch", "device", "start", "end", "duration", "memory"):
        assert f'"{field}"' in page


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.svg.gz"])
def test_another_ending_is_refused(schedule: Schedule, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"a picture is one of \.html, \.svg, \.png"):
        draw(schedule, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_leaves_nothing(schedule: Schedule, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        draw(schedule, tmp_path / "missing" / "a.svg")
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(OSError, match=r"a\.svg"):
        draw(schedule, tmp_path / "a.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]
    assert list((tmp_path / "a.svg").iterdir()) == []


# -- what is drawn -----------------------------------------------------------------------------------------------


def test_every_operation_is_a_box_with_its_details(schedule: Schedule) -> None:
    boxes = rows(schedule, "boxes")
    blocks = schedule.problem.blocks
    assert sorted((b["block"], b["micro-batch"], b["x"], b["x2"], b["device"]) for b in boxes) \
        == sorted((blocks[o.block].name, o.micro_batch, o.start, o.end, f"gpu{blocks[o.block].devices[0]}")
                  for o in schedule.operations)
    assert {(b["kind"], b["duration"], b["memory"]) for b in boxes} == {("F forward", "10 ms", "+1 GiB"),
                                                                        ("B backward", "20 ms", "−1 GiB")}


def test_boxes_of_one_device_share_a_lane_and_lanes_lie_apart(schedule: Schedule) -> None:
    lanes: dict[str, set[tuple[float, float]]] = {}
    for box in rows(schedule, "boxes"):
        lanes.setdefault(box["device"], set()).add((box["y"], box["y2"]))
    assert all(len(lane) == 1 for lane in lanes.values())
    edges = [edge for name in sorted(lanes) for edge in next(iter(lanes[name]))]
    assert edges == sorted(edges)


def test_a_block_on_several_devices_is_drawn_on_each() -> None:
    both = Block("F0", BlockKind.FORWARD, (0, 1), 1.0)
    alone = Block("F1", BlockKind.FORWARD, (0,), 1.0)
    boxes = rows(baseline("greedy", Problem("both", (Device("a"), Device("b")), (both, alone)), 1), "boxes")
    assert sorted((box["block"], box["device"]) for box in boxes) == [("F0", "a, b"), ("F0", "a, b"), ("F1", "a")]
    assert len({box["y"] for box in boxes if box["block"] == "F0"}) == 2
    assert {box["block"]: box["edge"] != "white" for box in boxes} == {"F0": True, "F1": False}


def test_the_memory_strip_reaches_the_peak(schedule: Schedule) -> None:
    areas = rows(schedule, "memory")
    strip = [row for row in areas if row["area"] == areas[0]["area"]]
    cap, base = (min(row["y"] for row in rows(schedule, "rules") if row["dash"]), max(row["y"] for row in strip))
    highest = min(row["y2"] for row in strip)
    assert (base - highest) / (base - cap) == pytest.approx(4 / 6)  # 1F1B keeps 4 GiB of 6 on the first device


def test_weights_form_the_ground_under_activations(schedule: Schedule, tmp_path: Path) -> None:
    heavy = schedule.with_solver(static_memory=[10 * GIB, 9 * GIB, 9 * GIB, 10 * GIB])
    draw(heavy, tmp_path / "a.svg")
    texts = svg_texts(tmp_path / "a.svg")
    assert {"weights + optimizer state", "activations", "peak 14 GiB", "cap 16 GiB", "cap 15 GiB"} <= {*texts}
    draw(heavy.with_solver(gpu_memory=20 * GIB), tmp_path / "b.svg")
    assert svg_texts(tmp_path / "b.svg").count("cap 20 GiB") == 4


def test_memory_over_the_cap_stands_out(schedule: Schedule, gpipe: Schedule) -> None:
    assert not [row for row in rows(schedule, "memory") if row["kind"] == "over the cap"]
    assert [row for row in rows(gpipe, "memory") if row["kind"] == "over the cap"]


def test_the_saved_time_is_written_and_pointed_at(schedule: Schedule, gpipe: Schedule, tmp_path: Path) -> None:
    slower = gpipe.with_operations([o._replace(start=o.start * 1.25, end=o.end * 1.25) for o in gpipe.operations])
    draw(schedule, tmp_path / "a.svg", baseline=slower)
    texts = svg_texts(tmp_path / "a.svg")
    assert {"330 ms", "412.5 ms", "−20.0 %"} <= {*texts}
    first, second = sorted(row["x"] for row in rows(schedule, "arrows", baseline=slower))
    assert 0.33 < first < second < 0.4125
    assert "±0 %" in {row["text"] for row in rows(schedule, "text left bold", baseline=gpipe)}


def test_a_proof_is_claimed_only_where_there_is_one(schedule: Schedule, gpipe: Schedule) -> None:
    def header(of: Schedule) -> str:
        return next(str(row["text"]) for row in rows(of, "text left") if "bubble" in row["text"])

    assert "at most 10 % above the optimum" in header(schedule)
    assert "optim" not in header(gpipe)  # nothing is known of it
    proven = Schedule(schedule.problem, 8, schedule.operations, schedule.makespan)
    assert "proven optimal" in header(proven)


# -- long schedules ----------------------------------------------------------------------------------------------


def test_a_long_schedule_is_cut_and_says_so(tmp_path: Path) -> None:
    schedule = baseline("1f1b", pipeline(chain(4)), 1000)
    draw(schedule, tmp_path / "a.svg", baseline=baseline("gpipe", schedule.problem, 1000))
    texts = svg_texts(tmp_path / "a.svg")
    assert any(text.startswith("Shown: 0–") and text.endswith(" of 3009 s.") for text in texts)
    assert {"0", "999"} <= {*texts}
    assert "500" not in texts
    assert (tmp_path / "a.svg").stat().st_size < 1_000_000


def test_all_of_a_long_schedule_can_be_drawn() -> None:
    schedule = baseline("1f1b", pipeline(chain(2)), 1500)
    assert len(rows(schedule, "boxes", window="all")) == len(schedule.operations) == 6000  # more than Altair's limit
    assert len(rows(schedule, "boxes")) < 400


def test_a_window_shows_its_part_only(schedule: Schedule) -> None:
    boxes = rows(schedule, "boxes", window=(0.1, 0.2))
    assert (min(box["x"] for box in boxes), max(box["x2"] for box in boxes)) == (0.1, 0.2)
    inside = sum(o.start < 0.2 and o.end > 0.1 for o in schedule.operations)
    assert len(boxes) == inside


@pytest.mark.parametrize("window", [(0.2, 0.1), (-1.0, 1.0), (5.0, 6.0), (0.0, float("nan")), "some"])
def test_a_window_without_sense_is_refused(schedule: Schedule, window: Any) -> None:
    with pytest.raises(ValueError, match="window"):
        chart(schedule, window=window)


# -- misfits -----------------------------------------------------------------------------------------------------


def test_a_baseline_in_another_unit_is_refused(schedule: Schedule) -> None:
    other = Problem("steps", (Device("a"),), (Block("F", BlockKind.FORWARD, (0,), 1),), time_unit="step")
    with pytest.raises(ValueError, match=r"time_unit is 'step' and the schedule's is 's'"):
        chart(schedule, baseline=baseline("greedy", other, 1))


def test_memory_of_the_wrong_length_is_refused(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match=r"static_memory is \[1\].*each of the 4 devices"):
        chart(schedule.with_solver(static_memory=[1]))


def test_an_empty_schedule_is_refused(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        chart(schedule.with_operations(()))


# -- lanes, jobs, classes and choices ----------------------------------------------------------------------------


def test_lanes_are_thin_rows_under_their_device_and_memory_is_the_devices(tmp_path: Path) -> None:
    schedule = laned_schedule(2, 3, 2, copy=5)
    draw(schedule, tmp_path / "a.svg")
    texts = svg_texts(tmp_path / "a.svg")
    assert "laned pipeline, 3 micro-batches on 2 devices and 4 lanes" in texts
    assert texts.count("peak 2 activations") == texts.count("cap 2 activations") == 2
    for device in schedule.problem.devices:
        assert texts.count(device.name) == 1
    drawn = rows(schedule, "boxes")
    heights = {row["device"]: row["y2"] - row["y"] for row in drawn if ", " not in row["device"]}
    assert heights["gpu 0 copies"] < 0.7 * heights["gpu 0"]
    tops = {row["device"]: row["y"] for row in drawn}
    assert tops["gpu 0"] < tops["gpu 0 copies"] < tops["gpu 1"] < tops["gpu 1 copies"]


def test_a_measured_run_of_lanes_lies_on_them() -> None:
    schedule = laned_schedule(2, 2)
    problem = schedule.problem
    ran = [(problem.blocks[o.block].name, o.micro_batch, rank, o.start, o.end) for o in schedule.operations
           for rank in sorted({problem.pool_of[d] // 3 for d in problem.blocks[o.block].devices})]
    assert read_measured(ran, schedule).rows == schedule.device_orders
    with pytest.raises(ValueError, match="rank 2 of 2"):
        read_measured([("F0", 0, 2, 0.0, 1.0)], schedule)


def test_jobs_have_colours_and_boxes_the_numbers_of_their_micro_batches(tmp_path: Path) -> None:
    schedule = schedule_of_jobs()
    draw(schedule, tmp_path / "a.svg")
    texts = svg_texts(tmp_path / "a.svg")
    title = "two jobs, 4 micro-batches of chat (2 short, 2 long) and 2 micro-batches of search in 2 rounds on 2 devices"
    assert {title, "chat: F forward", "search: F forward", "Micro-batches of chat: short 0, 2; long 1, 3."} <= {*texts}
    assert texts.count("3") >= 2
    boxes = rows(schedule, "boxes")
    told = {(row["block"], row["micro-batch"], row["job"], row.get("class")) for row in boxes}
    assert {("A0", 3, "chat", "long"), ("A1", 2, "chat", "short"), ("B0", 1, "search", None)} <= told
    ran = [(row["block"], row["micro-batch"], int(row["device"][-1]), 0.0, 1.0) for row in boxes]
    assert sorted(map(len, read_measured(ran, schedule).rows)) == [6, 6]
