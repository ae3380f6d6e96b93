"""``weft export``: a schedule for another tool."""

from __future__ import annotations

import argparse
from pathlib import Path

from weft import api
from weft.app.export import EXPORTS
from weft.cli.lib.arguments import add_schedule
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import require_output

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    add_schedule(command)
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="where to")
    command.add_argument("--format", choices=EXPORTS, help="which format (default: what the ending of FILE says)")
    command.add_argument("--torch", default="2.13", metavar="VERSION",
                         help="the PyTorch version that is to read it, 2.6 or newer (default: 2.13)")


def _run(options: argparse.Namespace) -> int:
    require_output(options.output, "", [Path(options.output).suffix.lower()], [options.schedule])
    for path in api.export_schedule(options.schedule, options.output, format=options.format, torch=options.torch):
        print(f"written to {path}")
    return GOOD


COMMAND = Command(
    name="export",
    summary="write a schedule for another tool",
    paragraphs=(
        "--format says which; without it the ending does: .csv pytorch, .toml torchtitan, .py nnscaler. pytorch "
        "is torch.distributed.pipelining's CSV of what each rank computes, pytorch-comms the one with sends, "
        "receives and reductions, whose words depend on --torch. megatron is the flags of "
        "--pipeline-model-parallel-layout, without the order; torchtitan is its [parallelism] table and the CSV "
        "beside it; nnscaler is a Python module that makes the SchedulePlan; tessel and perfetto are JSON. What a "
        "format cannot express is refused with the reason.",
    ),
    example=(
        "weft export schedule.json -o order.csv\n"
        "weft export schedule.json -o comms.csv --format pytorch-comms --torch 2.15"
    ),
    arguments=_arguments,
    run=_run,
)
