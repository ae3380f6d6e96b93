"""``weft solve --overlap auto``: never worse than without, judged, and told what it brings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support import shows, slow
from weft.app.lib.overlap_listing import Listing, OpenOverlap
from weft.cli.lib.output import summary
from weft.cli.main import main
from weft.models.spec.spec import Spec, parse_spec
from weft.solver import BlockKind, Infeasible, NoneFound, Schedule, load_schedule

TENSOR = """
name: small
model: {family: gpt, layers: 1, hidden: 2048, heads: 16, sequence: 2048, vocabulary: 512}
costs: roofline
cluster: {gpus: 2, memory: 32 GiB, device: v100}
training: {micro_batches: 2, micro_batch_size: 2}
placement: {shapes: [tensor]}
"""
DATA = TENSOR.replace("[tensor]", "[data]")
CHAIN = """
name: listed
model:
  layers:
    - {name: block, repeat: 4, forward: 1 ms, backward: 2 ms, activation_memory: 100 MiB, parameters: 1000000,
       output: 1 MiB}
cluster: {gpus: 2, memory: 8 GiB, reserve: 0 GiB, bandwidth: 10 GB/s}
training: {micro_batches: 3}
"""


def solved(spec: str, overlap: str = "auto", **options: Any) -> Schedule:
    return weft.solve(parse_spec(spec), overlap=overlap, effort=options.pop("effort", 0.7), time_limit=3000, **options)


@pytest.fixture(scope="module")
def tensor() -> Schedule:
    return solved(TENSOR)


@pytest.mark.slow
def test_it_says_what_overlap_brings(tensor: Schedule) -> None:
    told = tensor.solver["overlap"]
    plain = solved(TENSOR, "none")
    assert told["without"] == pytest.approx(plain.makespan) == told["best_without_options"]
    assert told["bound_over_placements"] <= told["bound"] <= told["with"] == tensor.makespan < plain.makespan
    assert not weft.check(tensor)
    assert tensor.choices and tensor.solver["options"]
    text = summary(tensor)
    assert "overlap   without overlap " in text and "with overlap " in text and "(−" in text
    chosen = [row for row in tensor.solver["alternatives"] if row["verdict"] == "chosen"]
    assert [row["placement"] for row in chosen] == [tensor.solver["placement"]]


def test_a_file_of_it_passes_the_check_and_is_drawn(tensor: Schedule, tmp_path: Path) -> None:
    spec, out, picture = (str(tmp_path / name) for name in ("data.yaml", "out.json", "out.svg"))
    Path(spec).write_text(DATA)
    told = shows("solve", spec, "--overlap", "auto", "--effort", "1", "-o", out, "--quiet")
    assert "on 2 devices and 2 lanes" in told
    assert main(["check", out]) == 0 and main(["draw", out, "-o", picture]) == 0
    assert "network" in Path(picture).read_text()
    found = load_schedule(out)
    assert any(block.kind == BlockKind.COLLECTIVE for block in found.problem.blocks)
    assert found.solver["gpu_memory"][1] is None and found.solver["static_memory"][1] == 0
    weft.solver.save_schedule(tensor, out)
    assert main(["check", out]) == 0 and main(["draw", out, "-o", picture]) == 0


def test_a_step_of_all_gpus_is_never_worse_in_buckets() -> None:
    found = solved(DATA)
    told = found.solver["overlap"]
    assert found.micro_batches == 1 and told["with"] <= told["without"]
    assert any("2 micro-batches of the spec are one" in note for note in found.solver["notes"])
    assert any("optimizer's update" in note for note in found.solver["notes"])
    text = summary(found)
    assert text.startswith("small (data parallel): 1 step on 2 devices") and "per micro-batch" not in text
    assert told["update"] > 0 and "only steps of the whole model on every GPU count the optimizer's update" in text
    twice = solved(DATA, micro_batches=4, effort=1.0)
    assert twice.makespan > found.makespan


def test_the_rate_of_whole_steps_is_no_worse_than_a_step() -> None:
    found = solved(DATA, objective="rate", effort=0.3)
    step = solved(DATA, effort=0.3)
    assert found.micro_batches == 8 and found.objective == "rate" and not weft.check(found)
    assert found.value_bound <= found.value <= step.makespan * (1 + 1e-9)
    assert found.solver["overlap"]["with"] == found.value


@pytest.mark.slow
def test_a_rate_is_that_of_micro_batches_one_by_one() -> None:
    found, plain = (solved(TENSOR.replace("micro_batches: 2", "micro_batches: 6"), overlap, objective="rate",
                           effort=0.3)
                    for overlap in ("auto", "none"))
    assert found.value < plain.value and found.micro_batches == 6
    assert found.solver["overlap"]["without"] == pytest.approx(plain.value, rel=1e-6)


def test_where_there_is_nothing_to_overlap_it_says_so() -> None:
    found = solved(CHAIN)
    plain = solved(CHAIN, "none")
    assert found.makespan == plain.makespan
    told = found.solver["overlap"]["nothing"]
    assert "send runs beside their computation already" in told and "3 micro-batches cannot be divided" in told
    assert f"overlap   nothing to overlap: {told}" in summary(found)


def test_inference_has_no_gradients_but_collectives() -> None:
    spec = TENSOR.replace("training", "inference")
    found, plain = solved(spec), solved(spec, "none")
    assert found.makespan < plain.makespan and not weft.check(found)
    nothing = solved(CHAIN.replace("training", "inference"), effort=1.0)
    assert "inference has no gradients to sum" in nothing.solver["overlap"]["nothing"]


@pytest.mark.parametrize(("spec", "options", "message"), [
    (CHAIN, {"objective": "latency"}, "overlap is searched for makespan, span or rate"),
    (CHAIN, {"objective": "latency", "period": "80 ms"}, "overlap is not searched"),
    (CHAIN, {"overlap": "some"}, "overlap is 'some', it must be one of none, auto"),
    (CHAIN, {"micro_batches": ["short"]}, "micro_batches names jobs or classes"),
    (DATA.replace("micro_batches: 2", "micro_batches: 3"), {}, "3 micro-batches cannot be divided over 2 GPUs"),
    (TENSOR.replace("[tensor]", "[chain]").replace("micro_batches: 2", "lengths: [512, 256]"), {},
     "training.lengths lists micro-batches that differ"),
])
def test_what_cannot_be_asked_is_refused(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, Infeasible), match=message):
        weft.solve(parse_spec(spec), **{"overlap": "auto", "effort": 0.5, **options})


def test_without_overlap_a_model_on_every_gpu_sums_behind_its_computation() -> None:
    spec: Spec = parse_spec(DATA)
    bare = weft.solve(spec, effort=0.5)
    assert not weft.check(bare)
    assert bare.solver["unit"] == "step" and bare.choices["buckets"] == "1"
    told = weft.solve(spec, overlap="auto", effort=0.5).solver["overlap"]
    assert told["without"] == pytest.approx(bare.makespan) == told["best_without_options"]
    with pytest.raises(ValueError, match="it is searched for makespan and span, not for rate"):
        weft.solve(spec, objective="rate", effort=0.5)


@pytest.mark.slow
def test_progress_has_one_clock() -> None:
    seen: list[tuple[float, str]] = []
    began = time.monotonic()
    weft.solve(parse_spec(TENSOR), overlap="auto", effort=0.2, on_progress=lambda progress: seen.append(
        (progress.elapsed, str(progress.best.solver.get("placement")))))
    times = [elapsed for elapsed, _ in seen]
    assert times == sorted(times) and 0 < times[-1] <= time.monotonic() - began


def test_a_stop_while_placements_are_listed_keeps_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(listing: Listing) -> Iterator[OpenOverlap]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Listing, "entries", stopped)
    found = solved(TENSOR, effort=0.3)
    assert found.solver["interrupted"] and not weft.check(found)
    assert "overlap   not searched: the search was stopped" in summary(found)
    with pytest.raises(KeyboardInterrupt):
        solved(DATA, effort=0.3)


def test_a_placement_without_a_schedule_yet_keeps_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_found(*_: object, **__: object) -> Schedule:
        raise NoneFound("time was over")

    monkeypatch.setattr("weft.app.overlap.solve_run", none_found)
    told = solved(TENSOR, effort=0.3).solver
    assert told["bound_over_placements"] < told["overlap"]["with"]
    assert "unknown" in {row["verdict"] for row in told["alternatives"]}


def test_a_model_with_too_few_layers_for_stages_may_be_on_every_gpu() -> None:
    few = DATA.replace("gpus: 2", "gpus: 4").replace("micro_batches: 2", "micro_batches: 4")
    found = solved(few.replace("[data]", "[chain, data]"), effort=0.3)
    assert found.value == pytest.approx(solved(few, effort=0.3).value)
    assert any(row["verdict"] == "none" and "too few for cluster.gpus: 4" in row["reason"]
               for row in found.solver["alternatives"])
    with pytest.raises(ValueError, match="too few for"):
        solved(few.replace("[data]", "[chain]"), effort=0.3)


@pytest.mark.parametrize(("gpus", "layers", "hidden", "bandwidth"), [
    (2, 2, 64, 1), slow(4, 4, 256, 20), slow(2, 3, 128, 5)])
def test_no_bound_over_any_placement_is_beaten_by_what_overlap_finds(gpus: int, layers: int, hidden: int, bandwidth: int
                                                                     ) -> None:
    spec = parse_spec(f"""
name: small
cluster: {{device: v100, gpus: {gpus}, memory: 3 GiB, bandwidth: {bandwidth} GB/s, latency: 1.0e-05}}
costs: roofline
model: {{family: gpt, heads: 4, hidden: {hidden}, layers: {layers}, sequence: 64, vocabulary: 256}}
training: {{micro_batch_size: 1, micro_batches: {gpus}}}
""")
    plain = weft.solve(spec, effort=0.3, time_limit=3000)
    found = weft.solve(spec, effort=0.3, time_limit=3000, overlap="auto")
    assert not weft.check(plain) and not weft.check(found)
    assert plain.solver["bound_over_any_placement"] <= found.value * (1 + 1e-9)
    told = found.solver["overlap"]
    assert told["best_without_options"] == pytest.approx(min(plain.value, told["without"]))
