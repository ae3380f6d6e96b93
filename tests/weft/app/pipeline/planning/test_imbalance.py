"""Ranks that differ by more than twice are reported, with the operator that no cut can part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.planning.imbalance import imbalance_notes
from weft.app.pipeline.planning.row import Row
from weft.runtime.captured.captured import Captured
from weft.solver.problem import Block, BlockKind, Device, Problem


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.rnn, self.two = nn.Linear(4, 4), nn.LSTM(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.rnn(self.one(x))[0])  # type: ignore[no-any-return]


def notes(first: float, second: float, peaks: tuple[int, int], **options: Any) -> list[str]:
    captured = Captured.of(Three(), (torch.randn(3, 2, 4),))
    share = [0.8 if node.name == "lstm" else 0.2 / len(captured.calls) for node in captured.calls]
    row = Row(tuple(share), (None, *[8.0] * (len(share) - 1)), 1, tuple(share), tuple(share))
    problem = Problem("two", (Device("rank0"), Device("rank1")), tuple(
        Block(f"F{s}", BlockKind.FORWARD, (s,), seconds) for s, seconds in enumerate((first, second))))
    return imbalance_notes(problem, peaks, captured, row, PipelineOptions(micro_batches=2, **options))


def test_what_no_cut_can_part_is_named() -> None:
    assert notes(1.0, 1.9, (5, 9)) == []
    time, = notes(1.0, 3.0, (5, 9))
    assert time.startswith("rank 1 computes 3.0 times as long as rank 0 (3000.00 against 1000.00 ms a micro-batch): "
                           "the operator lstm of rnn (LSTM) has 8")
    assert "no cut can part it; make several modules of it" in time
    bytes_, = notes(1.0, 1.0, (50 << 20, 20 << 20))
    assert bytes_.startswith("rank 0 holds 2.5 times as much as rank 1 (50.00 against 20.00 MiB): ")
    assert bytes_.endswith("; memory= limits each rank")
    assert not notes(1.0, 1.0, (50 << 20, 20 << 20), memory=1 << 30)[0].endswith("each rank")


def test_what_the_user_has_cut_is_the_users() -> None:
    assert "): cuts says where stages begin; left out, cuts are searched for" in notes(1.0, 3.0, (5, 9), cuts=[1])[0]
    assert "): split says where stages begin; name other submodules" in notes(1.0, 3.0, (5, 9), split=["two"])[0]
