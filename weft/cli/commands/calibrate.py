"""measure this machine as a device for specs

Kernels run alone on one rank: matrix products by size and dtype, attention, memory, launches, norms and the like. Then
ranks of this machine, one a GPU or core (--ranks N), send each other messages and run collectives: by gloo on CPUs, by
NCCL on GPUs. It takes minutes. The table has every measurement with its spread, and says whether the machine was busy.

A spec's cluster.device and `weft estimate --device` take the table in place of a name.

example:
  weft calibrate -o here.json
  weft calibrate --device cpu --ranks 4 --quick
  weft estimate config.json --gpus 8 --device here.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from weft.app.lib.arguments import Option, workers
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command, into
from weft.cli.lib.output import JSON, keep_and_show, require_output, require_torch

if TYPE_CHECKING:
    from weft.app.calibrate import Calibration


def calibrate(*, device: Annotated[str | None, Option("where (default: GPUs if there are some)", "cpu|cuda")] = None,
              ranks: Annotated[int | None, Option("processes that send each other messages (default: one for each GPU "
                                                  "or core, at most 8)", "N", workers)] = None,
              quick: Annotated[bool, Option("a look at small sizes, in seconds")] = False,
              on_progress: Callable[[str], None] = lambda title: None) -> Calibration:
    """Measure this machine in minutes: kernels by size and dtype, memory, launches, messages and collectives.

    The result's ``.save(path)`` writes a device table (``weft.device/1``) that a spec's ``cluster.device`` and
    ``weft.estimate(device=)`` read; ``.warnings`` says where it is not to be trusted, ``str()`` is the table,
    ``.to_json()`` the numbers. On a CPU a rank computes on one thread. Raises ``ValueError``.
    """
    from weft.app.calibrate import calibrate_machine

    return calibrate_machine(device, ranks, quick=quick, on_progress=on_progress)


@command(calibrate)
def run(
    call: Call,
    *,
    output: Annotated[str | None, into("write the table there")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    require_torch("calibrate")
    require_output(output, "the table", JSON, [])

    def on_progress(title: str) -> None:
        if not quiet:
            print(f"measuring {title}", file=sys.stderr)

    keep_and_show(call(on_progress=on_progress), "the table", [output] if output else None, as_json)
    return GOOD
