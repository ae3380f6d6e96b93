from __future__ import annotations

from itertools import pairwise

import pytest

from weft.models.phases.parts import density_at, dts_density, parts_of
from weft.models.spec.phases import DtsDensity, MeasuredDensity, Temperature
from weft.models.spec.spec import SpecError, parse_spec

SPEC = """
model: {family: moe, layers: 4, hidden: 256, heads: 4, vocabulary: 1000, sequence: 128, experts: 8, active: 8}
cluster: {gpus: 2, device: a100, memory: 40 GiB}
training: {micro_batches: 8}
phases:
  steps: 3000
  experts.density: {kind: dts, temperature: {start: 2.0, end: 0.1, decay: 2000}, threshold: 0.001, hard_at: 2500}
  sequence: [[0, 64], [1000, 128]]
"""
DTS = "{kind: dts, temperature: {start: 2.0, end: 0.1, decay: 2000}, threshold: 0.001, hard_at: 2500}"


def test_parts_follow_each_other_over_the_whole_training() -> None:
    parts = parts_of(parse_spec(SPEC))
    assert parts[0].first == 0 and parts[-1].last == 3000
    assert all(before.last == after.first for before, after in pairwise(parts))
    densities = [part.values["experts.density"] for part in parts]
    assert densities == sorted(densities, reverse=True) and densities[-1] == 1.0 and 6 <= len(parts) <= 8
    assert [part.spec.model.sequence for part in parts] == [64 if part.first < 1000 else 128 for part in parts]  # type: ignore[union-attr]
    assert [part.spec.model.density for part in parts] == densities  # type: ignore[union-attr]
    assert {part.first for part in parts} >= {1000, 2500}
    assert all(part.spec.phases is None and part.spec.name == "spec" for part in parts)


def test_equal_parts_have_one_spec() -> None:
    text = SPEC.replace(f"experts.density: {DTS}", "training.recompute: [[0, false], [500, true], [2000, false]]")
    parts = parts_of(parse_spec(text.replace("[[0, 64], [1000, 128]]", "[[0, 64]]")))
    assert [part.spec.training.recompute for part in parts] == [False, True, False]  # type: ignore[union-attr]
    assert parts[0].spec is parts[2].spec


def test_a_ramp_changes_micro_batches() -> None:
    parts = parts_of(parse_spec(SPEC.replace(f"experts.density: {DTS}", "micro_batches: [[0, 4], [1000, 16]]")))
    assert [part.spec.micro_batches for part in parts] == [4, 16]


@pytest.mark.parametrize(("before", "after", "says"), [
    ("start: 2.0", "start: 0.01", "line 7: phases.experts.density.temperature: the temperature rises from 0.01 to 0.1"),
    ("threshold: 0.001", "threshold: 1.5", "line 7: phases.experts.density: threshold is 1.5, it must be between"),
    ("threshold: 0.001", "threshold: 0", "threshold is 0, it must be between 0 and 1"),
    ("[1000, 128]", "[0, 128]", "the entry from step 0 on overlaps the one from step 0 on"),
    ("[0, 64]", "[5, 64]", "begins at step 5, which leaves a gap before it"),
    ("[1000, 128]", "[3000, 128]", "sequence changes at step 3000, but the training has 3000 steps"),
    ("[1000, 128]", "[1000, nix]", "phases from step 1000 on: model.sequence is 'nix', it must be a whole number"),
    ("[1000, 128]", "[1000]", "entry 1 is [1000], it must be a pair of a step and a value"),
    ("sequence: [[", "modl.sequence: [[", "phases from step 0 on: unknown key 'modl'; did you mean 'model'?"),
    ("sequence: [[0, 64], [1000, 128]]", "sequence: 3", "phases.sequence is 3, it must be a list of 1 to 64 pairs"),
    ("sequence: [[0, 64], [1000, 128]]", f"sequence: {DTS}", "sequence follows a curve, which experts.density alone"),
    ("sequence: [[0", "phases.steps: [[0", "phases.phases.steps changes phases themselves"),
    ("sequence: [[0", "model.density: [[0", "phases: experts.density and model.density are one entry"),
    ("kind: dts", "kind: foo", "phases.experts.density: kind is foo, it must be dts or measured"),
    ("hard_at", "hardat", "unknown key 'hardat'; did you mean 'hard_at'?"),
    (DTS, "{kind: measured, points: [[0, 9]]}", "phases from step 0 on: model: density is 9, but there are 8 experts"),
    (DTS, "{kind: measured, points: [[0, 0.5]]}", "the density is 0.5 at step 0, it must be a number of at least 1"),
    (DTS, "[[0, 8], [100, 0.5]]", "phases from step 100 on: model.density is 0.5, it must be at least 1"),
    ("family: moe, layers: 4", "family: gpt, layers: 4", "unknown key"),
    ("training:", "inference:", "phases are of a training, this is inference"),
    ("training: {", "placement: {memory: decide}\ntraining: {", "placement.memory: decide decides anew at every cost"),
    ("training:", "parallel: {tensor: 2, data: 1}\ntraining:", "parallel divides GPUs into a grid of its own"),
    ("micro_batches: 8", "lengths: [64, 128]", "training.lengths is of one step, phases are of many"),
])
def test_what_cannot_be_is_said_in_one_sentence(before: str, after: str, says: str) -> None:
    assert before in SPEC
    with pytest.raises(SpecError) as caught:
        parts_of(parse_spec(SPEC.replace(before, after)))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_density_is_of_experts() -> None:
    dense = SPEC.replace("family: moe", "family: gpt").replace(", experts: 8, active: 8", "")
    with pytest.raises(SpecError, match=r"phases\.experts\.density is for the family moe, but the model is gpt"):
        parts_of(parse_spec(dense))


def test_a_spec_without_phases_has_no_parts() -> None:
    with pytest.raises(SpecError, match="phases is missing"):
        parts_of(parse_spec(SPEC[:SPEC.index("phases:")]))


#: Of 8 experts, at eleven temperatures that fall from 2.0 to 0.1 by equal ratios.
MEASURED = (7.99, 7.87, 7.27, 6.13, 4.78, 3.64, 2.82, 2.25, 1.88, 1.61, 1.44)


def test_the_model_gives_the_densities_that_were_measured() -> None:
    for i, wanted in enumerate(MEASURED):
        assert dts_density(8, 2.0 * 0.05 ** (i / 10), 0.001, 2.0) == pytest.approx(wanted, abs=0.1)


def test_it_falls_and_ends_at_one() -> None:
    curve = DtsDensity(kind="dts", temperature=Temperature(start=2.0, end=0.1, decay=100), hard_at=120)
    found = [density_at(curve, step, 8) for step in range(0, 121, 10)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == 1.0
    assert found[-2] > 1.0


def test_measured_points_have_straight_lines_between() -> None:
    curve = MeasuredDensity(kind="measured", points=((0, 8.0), (100, 4.0)))
    assert [density_at(curve, step, 8) for step in (0, 25, 100, 500)] == [8.0, 7.0, 4.0, 4.0]
