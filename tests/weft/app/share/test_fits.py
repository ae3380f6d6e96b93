"""Whether jobs fit together: by how much they do not, and which of them do."""

from __future__ import annotations

import pytest

from tests.support.sharing import one_gpu
from weft.app.share.fits import missing, require_fit
from weft.models.share.job import job_of
from weft.solver import BlockKind, Budget, Device, Infeasible
from weft.solver.problem import Block, Problem


def test_jobs_fit_where_one_step_of_each_fits_beside_what_all_hold() -> None:
    jobs = [one_gpu("a", 1, 1, memory=4, static=6, takes=3), one_gpu("b", 1, 1, memory=9, static=1, takes=2)]
    assert missing(jobs, Budget()) == {}
    require_fit(jobs, Budget())


def test_by_how_much_a_step_does_not_fit() -> None:
    jobs = [one_gpu("a", 1, 1, memory=4, static=6, takes=3), one_gpu("b", 1, 1, memory=8, static=2, takes=2)]
    [lack] = missing(jobs, Budget()).values()
    assert (lack.amount, lack.job) == (1, "a")
    with pytest.raises(Infeasible, match=r"a and b do not fit together: gpu has 1 B too little .*one step of a.*"
                                         r"Alone, a fits; b fits"):
        require_fit(jobs, Budget())


def test_what_is_held_all_the_time_counts_with_what_a_step_takes() -> None:
    jobs = [one_gpu("a", 1, 1, memory=2, static=8, takes=1), one_gpu("b", 1, 1, memory=5, static=5)]
    [lack] = missing(jobs, Budget()).values()
    assert (lack.amount, lack.job) == (4, "a")


def test_which_pairs_of_three_fit() -> None:
    gib = 2**30
    jobs = [one_gpu(name, 1, 1, memory=(10 - static) * gib, static=static * gib)
            for name, static in (("a", 6), ("b", 5), ("c", 3))]
    with pytest.raises(Infeasible, match=r"a, b and c do not fit together: gpu has 4\.0 GiB too little \(all the time "
                                         r"they hold a 6\.0 GiB, b 5\.0 GiB, c 3\.0 GiB\)\. Of the pairs, a and b lack "
                                         r"1\.0 GiB; a and c fit; b and c fit"):
        require_fit(jobs, Budget())


def test_a_job_with_choices_fits_where_one_option_does() -> None:
    problem = Problem("a", (Device("gpu", 4),), tuple(
        Block("C", BlockKind.OTHER, (0,), 1, workspace=(takes,), when={"way": str(takes)}) for takes in (9, 3)),
        choices={"way": ("9", "3")})
    other = Problem("b", (Device("gpu", 4),), (Block("C", BlockKind.OTHER, (0,), 1),))
    assert missing([job_of("a", problem), job_of("b", other)], Budget()) == {}
