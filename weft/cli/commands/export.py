"""write a schedule for another tool

--format says which; without it the ending does: .csv pytorch, .toml torchtitan, .py nnscaler. pytorch is
torch.distributed.pipelining's CSV of what each rank computes, pytorch-comms the one with sends, receives and
reductions, whose words depend on --torch. megatron is the arguments of Megatron-LM, deepspeed a Python module with the
layers of each stage: both run an order of their own, with whole backwards, and what a step takes under it is said.
torchtitan is its [parallelism] table and the CSV beside it; nnscaler is a Python module that makes the SchedulePlan,
with whole backwards; tessel and perfetto are JSON. What a format cannot express is refused with the reason.

example:
  weft export schedule.json -o order.csv
  weft export schedule.json -o comms.csv --format pytorch-comms --torch 2.15
"""

from __future__ import annotations

from pathlib import Path

from weft.app.export import export_schedule, run_lines
from weft.cli.lib.command import GOOD, Call, command
from weft.cli.lib.output import require_output, written


@command(export_schedule)
def run(call: Call) -> int:
    require_output(call.path, "", [Path(call.path).suffix.lower()], [call.schedule])
    paths = call()
    for line in run_lines(call.schedule, call.path, call.format):
        print(line)
    written(*paths)
    return GOOD
