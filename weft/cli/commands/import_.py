"""read another tool's schedule

FILE is a CSV of torch.distributed.pipelining, with or without communication, or a Tessel schedule (.json). It is
checked as far as a run depends on it: complete, runnable, sends and receives in one order. Times are the earliest that
its order allows, with the durations of --problem, or one unit for a forward and for each half of a backward. A schedule
that breaks weft's rules is reported (exit status 1) and written all the same. If it breaks only the order of
micro-batches, as PyTorch's LoopedBFS does, it can be drawn, explained, planned and exported; if it breaks memory,
drawn.

example:
  weft import order.csv --problem gpt.yaml -o theirs.json && weft draw theirs.json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from weft.app.lib.arguments import Option
from weft.app.lib.arguments import micro_batches as counted
from weft.app.lib.sources import PathLike, Source
from weft.cli.lib.command import GOOD, NO, Call, command
from weft.cli.lib.output import JSON, require_output, save
from weft.cli.lib.summary import summary

if TYPE_CHECKING:
    from weft.solver.schedule import Schedule

__all__ = ["import_schedule", "run"]


def import_schedule(
    path: Annotated[PathLike, Option("a PyTorch pipelining CSV or a Tessel schedule (.json)", "FILE")],
    *,
    problem: Annotated[Source | None, Option("a block problem, or for a CSV a model spec, to time it on",
                                             "SPEC")] = None,
    micro_batches: Annotated[int | None, Option("refuse a file of another number", "N", counted,
                                                "-n --micro-batches")] = None,
) -> Schedule:
    """Somebody's schedule, to be checked, timed and drawn: a PyTorch pipelining ``.csv`` of either flavour, or a Tessel
    ``.json``.

    ``problem``, a block problem or for a CSV a model spec, says how long blocks take and what they hold; without one a
    forward and each half of a backward take one unit. What it breaks of weft's rules is for :func:`check` to say; what
    is odd about a CSV's communication stands in ``schedule.solver["notes"]``. Raises ``FormatError``, with row and
    cell, for a file that no rank could run.
    """
    from weft.app.export import import_from

    return import_from(path, problem=problem, micro_batches=micro_batches)


@command(import_schedule)
def run(call: Call, *, output: Annotated[str, Option("write the schedule there (format weft.schedule/1)", "FILE",
                                                     flags="-o --output")]) -> int:
    from weft.solver.judge.validate import violations

    require_output(output, "a schedule", JSON, [call.path, call.problem])
    schedule = call()
    save(schedule, output)
    print(summary(schedule))
    faults = violations(schedule)
    for fault in faults:
        print(f"fault     {fault}")
    print(f"written to {output}")
    return NO if faults else GOOD
