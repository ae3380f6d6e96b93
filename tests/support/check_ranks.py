"""What each rank of a test of the check of transports runs: one that works, and one that changes a number.

``python -m tests.support.check_ranks`` under two ranks; rank 0 prints what was found.
"""

from __future__ import annotations

import json
from unittest import mock

import torch

from weft.runtime.measure.transport_check import RPC, check_transport, time_methods
from weft.runtime.ranks.session import Session, join
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.one_host.one_sided import OneSided

NAMES, SIZES = ("gloo:sockets", "shared"), (3000,)


def damaged(self: OneSided, landing: object) -> dict[str, torch.Tensor]:
    """What a transport that loses a number has in a slot."""
    found = {**kept(self, landing)}  # type: ignore[arg-type]
    return {name: tensor + 1 for name, tensor in found.items()}


kept = OneSided.slot


def checked(session: Session) -> dict[str, object]:
    found: dict[str, object] = {name: check_transport(session, name, SIZES) for name in NAMES}
    with mock.patch.object(OneSided, "slot", damaged):
        found["damaged"] = check_transport(session, "shared", (64,))
    try:
        check_transport(session, "symmetric", (64,))
    except TransportError as error:
        found["symmetric"] = str(error)
    times = time_methods(session, NAMES, 5000, seconds_each=0.01)
    return {**found, "timed": sorted(times), "all positive": min(times.values()) > 0, "rpc": RPC in times}


def main() -> None:
    with join(900.0) as session:
        session.watch.begin()
        found = checked(session)
    if session.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
