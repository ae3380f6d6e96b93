"""write a schedule for another tool

--format says which; without it the ending does: .csv pytorch, .toml torchtitan, .py nnscaler. pytorch is
torch.distributed.pipelining's CSV of what each rank computes, pytorch-comms the one with sends, receives and
reductions, whose words depend on --torch. megatron is the flags of --pipeline-model-parallel-layout, without the order;
torchtitan is its [parallelism] table and the CSV beside it; nnscaler is a Python module that makes the SchedulePlan;
tessel and perfetto are JSON. What a format cannot express is refused with the reason.

example:
  weft export schedule.json -o order.csv
  weft export schedule.json -o comms.csv --format pytorch-comms --torch 2.15
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from weft.app.export import EXPORTS, export_to
from weft.app.lib.arguments import Option, Scheduled
from weft.app.lib.judged import judged
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, command
from weft.cli.lib.output import require_output, written

__all__ = ["export_schedule", "run"]


def export_schedule(
    schedule: Scheduled,
    path: Annotated[PathLike, Option("where to", "FILE", flags="-o --output")],
    *,
    format: Annotated[str | None, Option("which format (default: what the ending of FILE says)",
                                         choices=tuple(EXPORTS))] = None,
    torch: Annotated[str, Option("the PyTorch version that is to read it, 2.6 or newer", "VERSION")] = "2.13",
) -> list[Path]:
    """Write a schedule for another tool; returns the files written.

    ``format`` is ``pytorch`` (pipelining CSV; the default for ``.csv``), ``pytorch-comms`` (with communication, for
    PyTorch version ``torch``), ``megatron`` (flags), ``torchtitan`` (``.toml``, and a CSV beside it), ``nnscaler``
    (``.py``), ``tessel`` or ``perfetto`` (JSON). Blocks may run micro-batches in any order. Raises ``InvalidSchedule``,
    and ``ValueError`` (``ExportError``) with the reason for a schedule that the format cannot express.
    """
    return export_to(judged(schedule, in_turn=False), path, format=format, torch=torch)


@command(export_schedule)
def run(call: Call) -> int:
    require_output(call.path, "", [Path(call.path).suffix.lower()], [call.schedule])
    written(*call())
    return GOOD
