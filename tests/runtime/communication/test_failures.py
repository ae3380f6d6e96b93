"""What ranks tell each other."""

from __future__ import annotations

from tests.support.one_rank import one_rank
from weft.runtime.communication.failures import Failure


def test_the_first_that_is_told_stays() -> None:
    with one_rank():
        told, other = Failure("a"), Failure("b")
        assert told.read() is None
        told.write("rank 1 failed")
        told.write("rank 2 failed")
        assert Failure("a").read() == "rank 1 failed" and other.read() is None


def test_where_there_is_no_store_nothing_is_told() -> None:
    told = Failure("a")
    told.write("rank 1 failed")
    assert told.read() is None
