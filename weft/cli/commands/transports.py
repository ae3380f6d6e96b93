"""``weft transports``: what carries tensors on this machine."""

from __future__ import annotations

import argparse

from weft import api
from weft.cli.lib.arguments import byte_size, natural
from weft.cli.lib.command import GOOD, NO, Command
from weft.cli.lib.output import require_torch, show

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--gpus", type=natural, default=2, metavar="N",
                         help="try the transports between GPUs on up to N of them, 0 for none (default: 2)")
    command.add_argument("--sizes", type=byte_size, nargs="+", metavar="SIZE",
                         help="bytes of the messages, as 64KiB (default: 4KiB 1MiB 16MiB)")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _run(options: argparse.Namespace) -> int:
    require_torch("transports")
    found = api.transports(gpus=options.gpus, sizes=options.sizes)
    show(found, options.json)
    return GOOD if found.good else NO


COMMAND = Command(
    name="transports",
    summary="test what carries tensors between ranks of this machine",
    paragraphs=(
        "Two ranks are started here, and known tensors of several types, sizes and shapes go from one to the other "
        "through every transport that `weft replay --transport` takes: through sockets, shared memory, and between "
        "GPUs NCCL, CUDA IPC and symmetric memory; with shapes known from the plan, and unknown ones. "
        "The received bytes are compared with those sent.",
        "The table has the round-trip time of a message with a one-byte answer and the bandwidth of the largest "
        "message, beside torch.distributed.rpc. Transports that need GPUs which this machine lacks are unchecked. The "
        "exit status is 1 where a transport that should work here does not.",
    ),
    example="weft transports\nweft transports --gpus 2 --sizes 4KiB 64MiB\nweft transports --gpus 0 --json",
    arguments=_arguments,
    run=_run,
    stops=False,
)
