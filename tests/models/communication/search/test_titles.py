"""Short names."""

from __future__ import annotations

from tests.support.communication import pipelined, tensor_parallel
from weft.models.communication.passes.fuse import fuse
from weft.models.communication.passes.split import split
from weft.models.communication.search.titles import title, titles


def test_titles_are_stages_in_order() -> None:
    program = tensor_parallel()
    assert title(program) == "MM-AR-C"
    assert title(split(program, "total", 0)) == "MM-RS-AG-C"
    assert title(split(program, "total", into="reduce")) == "MM-R-B-C"
    assert title(pipelined()) == "AR-P2P-C"
    assert title(fuse(split(program, "total", 0), ["total", "gather(total)", "biased"])) == "MM-(RS-AG-C)-C"
    assert titles([program, pipelined(), program]) == ["MM-AR-C", "AR-P2P-C", "MM-AR-C #2"]
