from __future__ import annotations

import pytest

from weft.models.phases.density import density_at, dts_density
from weft.models.spec.phases import DtsDensity, MeasuredDensity, Temperature

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
