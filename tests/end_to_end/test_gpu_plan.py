"""The one-GPU experiment, in small on whatever this machine has."""

from __future__ import annotations

import pytest

from experiments.runtime import gpu_plan
from experiments.runtime.gpu_plan import run
from tests.support.steady_costs import steady
from weft.runtime.measure.measure_stages import measure_stages


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "adama"])
def test_every_rank_takes_the_memory_that_was_planned(
        optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_plan, "measure_stages", lambda *given, **options: steady(measure_stages(*given, **options)))
    found = run("tiny", optimizer, 6, 1, 2.0, shared=False)
    for name in ("1F1B", "weft"):
        row = found[name]
        assert len(row["peak_ratios"]) == 4 and all(ratio == pytest.approx(1, abs=0.05) for ratio in row["peak_ratios"])
        assert row["measured_s"] > 0 and row["tokens_per_s"] > 0 and len(row["own_s_per_step"]) == 4
        assert [each["rank"] for each in row["rows"]] == [0, 1, 2, 3]
    assert found["weft"]["planned_s"] <= found["1F1B"]["planned_s"] * (1 + 1e-9)
