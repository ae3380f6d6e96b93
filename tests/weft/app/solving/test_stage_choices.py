"""Specs that leave decisions to their stages, through the front door."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.models.candidates.test_alternatives import small
from weft.app.lib.case import case_of
from weft.app.solving.solve import solve_case
from weft.app.sweep.cache import Cache, Solved, key_of
from weft.cli.lib.output import summary
from weft.solver import Infeasible, Progress, violations
from weft.solver.io.schedule_files import load_schedule, save_schedule, schedule_to_json
from weft.solver.judge.claims import judge_claims

#: Two stages keep a micro-batch each where both recompute, and one of them where one keeps.
TIGHT = 20_000
CHAIN = "shapes: [chain], choices: [activations], activations: [keep, recompute]"


def test_what_is_chosen_stage_by_stage_is_no_worse_than_all_stages_alike_and_the_bound_holds_for_both() -> None:
    plain = weft.solve(small("shapes: [chain]", memory=TIGHT), effort=1.0)
    again = weft.solve(small("shapes: [chain]", memory=TIGHT, run="training: {micro_batches: 4, recompute: true}"),
                       effort=1.0)
    found = weft.solve(small(CHAIN, memory=TIGHT), effort=3.0)
    assert not violations(found) and not judge_claims(schedule_to_json(found), found).false
    assert found.makespan <= min(plain.makespan, again.makespan) * (1 + 1e-9)
    assert found.solver["bound_over_placements"] <= found.makespan * (1 + 1e-9)
    assert "all stages alike" in found.solver["covered"] and "activations by stage" in found.solver["covered"]
    titles = [entry["placement"] for entry in found.solver["alternatives"]]
    assert any(title.endswith("recomputed") for title in titles)
    assert any(title.endswith("activations by stage") for title in titles)
    assert sum(entry["verdict"] == "chosen" for entry in found.solver["alternatives"]) == 1


def test_where_nothing_fits_that_keeps_stages_recompute() -> None:
    found = weft.solve(small(CHAIN, memory=10_000), effort=2.0)
    assert not violations(found)
    with pytest.raises(Infeasible):
        weft.solve(small("shapes: [chain]", memory=10_000), effort=1.0)
    with pytest.raises(Infeasible):
        weft.solve(small(CHAIN, memory=2000), effort=1.0)


def test_what_is_told_on_the_way_gets_no_worse_and_is_a_bound_on_all() -> None:
    told: list[Progress] = []
    found = solve_case(case_of(small(CHAIN, memory=TIGHT)), weft.SearchOptions(effort=2.0), told.append)
    values = [progress.best.makespan for progress in told]
    assert values == sorted(values, reverse=True)
    assert all(progress.best.makespan_bound <= found.makespan * (1 + 1e-9) for progress in told)


def test_a_sweep_takes_its_own_answer_from_the_cache(tmp_path: Path) -> None:
    case, options = case_of(small(CHAIN, memory=TIGHT)), weft.SearchOptions(effort=2.0)
    own = solve_case(case, options)
    cache, key = Cache(tmp_path), key_of(case, options)
    cache.save(key, Solved(own))
    kept = cache.load(key, case)
    assert kept is not None and kept.weft.makespan == own.makespan and kept.weft.choices == own.choices
    assert key != key_of(case_of(small("shapes: [chain]", memory=TIGHT)), options)


def test_what_is_not_among_the_activations_is_on_no_placement() -> None:
    spec = small(CHAIN.replace("keep, ", "offload, "), host="100 kB/s", memory=100_000)
    found = weft.solve(spec, effort=0.5)
    titles = {entry["placement"] for entry in found.solver["alternatives"]}
    assert all(title.endswith(("recomputed", "activations by stage")) for title in titles) and len(titles) > 1
    assert "every cut" not in found.solver["covered"]
    keeping = weft.solve(small(CHAIN, memory=100_000), effort=0.5)
    assert found.makespan > keeping.makespan  # to keep all is faster, and was excluded
    for name, schedule in weft.compare(spec, effort=0.5).schedules.items():
        assert schedule.makespan >= found.makespan * (1 - 1e-9), name


def test_stages_recompute_only_where_they_may() -> None:
    part = small(CHAIN.replace("recompute", "recompute-half"), memory=10_000)
    table = weft.compare(part, effort=1.0)
    assert table.schedules["weft"].choices["activations: stage 1"] == "recompute-half"
    assert table.left_out["gpipe"] == "stages that are all alike do not fit"
    with pytest.raises(Infeasible, match="no assignment of the choices fits"):
        weft.solve(small(CHAIN.replace("recompute", "offload"), memory=10_000, host="100 MB/s"), effort=1.0)


def test_what_gpus_hold_is_said_of_each_device_where_copies_to_the_host_have_lanes(tmp_path: Path) -> None:
    found = weft.solve(small(CHAIN.replace("keep", "offload"), memory=10_000, host="100 MB/s"), effort=2.0)
    save_schedule(found, path := tmp_path / "schedule.json")
    static = load_schedule(path).solver["static_memory"]
    assert [base > 0 for base in static] == [device.lane_of is None for device in found.problem.devices]
    assert len(static) > 2 and "memory    " in summary(found)
