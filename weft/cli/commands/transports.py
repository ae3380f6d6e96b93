"""test what carries tensors between ranks of this machine

Two ranks are started here, and known tensors of several types, sizes and shapes go from one to the other through every
transport that `weft replay --transport` takes: through sockets, shared memory, and between GPUs NCCL, CUDA IPC and
symmetric memory; with shapes known from the plan, and unknown ones. The received bytes are compared with those sent.

The table has the round-trip time of a message with a one-byte answer and the bandwidth of the largest message, beside
torch.distributed.rpc. Transports that need GPUs which this machine lacks are unchecked. The exit status is 1 where a
transport that should work here does not.

example:
  weft transports
  weft transports --gpus 2 --sizes 4KiB 64MiB
  weft transports --gpus 0 --json
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from weft.app.lib.arguments import Option, byte_size, natural
from weft.cli.lib.command import GOOD, NO, Call, Json, command
from weft.cli.lib.output import require_torch, show

if TYPE_CHECKING:
    from weft.app.transports import Transports


def transports(*, gpus: Annotated[int, Option(
        "try the transports between GPUs on up to N of them, 0 for none", "N", natural)] = 2,
               sizes: Annotated[Sequence[int] | None, Option(
        "bytes of the messages, as 64KiB (default: 4KiB 1MiB 16MiB)", "SIZE", byte_size, times="+")] = None,
               ) -> Transports:
    """Try every transport between two ranks of this machine, on the CPU and on up to ``gpus`` GPUs.

    Known tensors of several types and shapes, with messages of about ``sizes`` bytes (default 4 KiB, 1 MiB and 16 MiB),
    are sent and compared, and calls are timed beside ``torch.distributed.rpc``. ``.good`` says whether all that should
    work here does, ``.unchecked`` what this machine cannot have, ``str()`` is the table, ``.to_json()`` the numbers.

    Raises ``ValueError`` for sizes that no message can have.
    """
    from weft.app.transports import SIZES, try_transports

    return try_transports(gpus, SIZES if sizes is None else sizes)


@command(transports, stops=False)
def run(call: Call, *, as_json: Json = False) -> int:
    require_torch("transports")
    found = call()
    show(found, as_json)
    return GOOD if found.good else NO
