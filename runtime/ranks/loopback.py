"""The part of this machine's network that ranks use where all are on it: the loopback interface."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from functools import cache
from typing import Any

_NAMES = ("lo", "lo0")
_BACKLOG = 2048  # connections waiting to be accepted: two of each rank, all at once


@cache
def loopback_interface() -> str | None:
    """The name of the loopback interface (Linux: ``lo``, macOS: ``lo0``); ``None`` where none has such a name."""
    try:
        there = {name for _, name in socket.if_nameindex()}
    except OSError:
        return None
    return next((name for name in _NAMES if name in there), None)


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, stands for loopback addresses only."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def own_name_is_loopback() -> str | None:
    """This machine's name and the loopback address that gloo would resolve it to; ``None`` where other machines can
    reach its address. Debian writes such a line (127.0.1.1) into ``/etc/hosts``."""
    name = socket.gethostname()
    for family, kind, protocol, _, address in _addresses(name):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)  # gloo takes the first at which it can listen
            host = str(address[0]).partition("%")[0]
            return f"{name} ({host})" if ipaddress.ip_address(host).is_loopback else None
    return f"{name} (no address at which it can listen)"


def _addresses(name: str) -> list[Any]:
    """As ``socket.getaddrinfo`` returns them; none for a name that does not resolve."""
    try:
        return list(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except OSError:
        return []


def listening(host: str, port: int) -> int:
    """A socket that listens at ``port`` of the loopback address ``host`` and nowhere else: its file descriptor, for
    whoever takes it over. Raises ``OSError`` where the port is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
        return found.detach()
