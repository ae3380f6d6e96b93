"""The transports that work on this machine: two ranks test each, and the results are reported.

On a CPU all transports are tested in one pair of processes, alternating with torch's RPC. On GPUs each has its own pair
of processes, so that a crash does not affect the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Group, RenderableType

from weft.app.lib.results import Tabular
from weft.runtime.measure.transport_check import RPC
from weft.runtime.ranks.gpus import nccl_shares_gpus
from weft.runtime.ranks.launch import Ended, launch_local
from weft.runtime.transports.one_host.shared_memory import can_share
from weft.text.tables import table_of
from weft.text.units import bytes_text, shown_time

#: Sizes in bytes of the timed messages.
SIZES = (4096, 2**20, 2**24)
ON_CPU, ON_GPUS = ("gloo", "gloo:sockets", "shared"), ("nccl", "shared", "symmetric")
#: Time limit of a pair of ranks in seconds.
_PATIENCE = 200.0


@dataclass(frozen=True, slots=True)
class TransportTried:
    """A transport between stages on ``device`` (``"cpu"`` or ``"cuda"``), or torch's RPC.

    ``fault``: the error, or the reason why it could not be used; empty if all messages arrived intact. ``expected``:
    whether it should work here; ``missing``, if not, the machine's missing feature. ``seconds``: by bytes, the median
    of a call (a message and a byte back); ``seconds_unknown``, the same with messages whose shape is unknown to the
    plan.
    """

    name: str
    device: str
    fault: str
    missing: str = ""
    seconds: dict[int, float] = field(default_factory=dict)
    seconds_unknown: dict[int, float] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        """Whether all messages arrived intact."""
        return not self.fault and not self.missing

    @property
    def fails(self) -> bool:
        """Whether it should work here but does not."""
        return bool(self.fault) and not self.missing and self.name != RPC

    def to_json(self) -> dict[str, Any]:
        """Times in seconds, by bytes."""
        return {"transport": self.name, "device": self.device, "works": self.works, "fails": self.fails,
                "reason": self.missing or self.fault, "seconds": {str(size): s for size, s in self.seconds.items()},
                "seconds_of_unknown_shapes": {str(size): s for size, s in self.seconds_unknown.items()}}


@dataclass(frozen=True, slots=True)
class Transports(Tabular):
    """The tests on this machine, with messages of ``sizes`` bytes; ``gpus``: its number of GPUs, of ``wanted``."""

    tried: tuple[TransportTried, ...]
    sizes: tuple[int, ...]
    gpus: int
    wanted: int

    @property
    def good(self) -> bool:
        """Whether every transport that should work does."""
        return not any(tried.fails for tried in self.tried)

    @property
    def unchecked(self) -> list[str]:
        """One sentence for each transport unavailable on this machine."""
        return [f"{tried.name} between GPUs was not checked: {tried.missing}" if tried.device == "cuda" else
                f"{tried.name} was not checked: {tried.missing}" for tried in self.tried if tried.missing]

    def to_json(self) -> dict[str, Any]:
        """As ``weft transports --json`` prints it."""
        return {"good": self.good, "gpus": self.gpus, "sizes": list(self.sizes),
                "transports": [tried.to_json() for tried in self.tried], "unchecked": self.unchecked}

    def table(self) -> RenderableType:
        """Each transport with its times beside RPC's."""
        texts = ("transport", "on", "works")
        table = table_of("Transports between two ranks of this machine: a message, and a byte back", (
            *texts, *map(bytes_text, self.sizes), "bandwidth"), texts, box=None)
        for tried in self.tried:
            if tried.missing:
                continue
            for what, seconds in (("", tried.seconds), (" (unknown shapes)", tried.seconds_unknown)):
                if seconds or not what:
                    table.add_row(tried.name + what, "GPU" if tried.device == "cuda" else "CPU",
                                  "yes" if tried.works else "no", *(_time(seconds.get(size)) for size in self.sizes),
                                  _bandwidth(seconds))
        faults = [f"{tried.name} on {'GPUs' if tried.device == 'cuda' else 'the CPU'} does not work: {tried.fault}"
                  for tried in self.tried if tried.fault]
        return Group(table, *faults, *self.unchecked)


def try_transports(gpus: int = 2, sizes: Sequence[int] = SIZES) -> Transports:
    """Try every transport between two ranks: on the CPU, and on up to ``gpus`` GPUs (0: none). Raises ``ValueError``
    for invalid message sizes."""
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes is {list(sizes)}, it must be bytes of at least one message")
    sizes = tuple(dict.fromkeys(sizes))
    found = min(torch.cuda.device_count(), gpus) if torch.cuda.is_available() else 0
    here = [name for name in ON_CPU if name != "shared" or can_share()]
    tried = _pair("cpu", [*here, RPC], sizes)
    tried += [TransportTried(name, "cpu", "", "it needs Linux on x86-64") for name in ON_CPU if name not in here]
    for name in (*ON_GPUS, RPC):
        missing = _lacks(name, found, gpus)
        if name != RPC or not missing:
            tried += [TransportTried(name, "cuda", "", missing)] if missing else _pair("cuda", [name], sizes)
    return Transports(tuple(tried), sizes, found, gpus)


def _lacks(name: str, gpus: int, wanted: int) -> str:
    """The machine's missing requirements for transport ``name`` between GPUs."""
    needed = 1 if name == "shared" or (name == "nccl" and nccl_shares_gpus()) else 2
    if wanted < needed:
        return f"--gpus is {wanted}, it needs {needed}"
    if gpus < needed:
        return f"this machine has {gpus or 'no'} GPU, it needs {needed}"
    if name == "shared" and not can_share():
        return "it needs Linux on x86-64"
    if name == "symmetric" and not torch.cuda.can_device_access_peer(0, 1):
        return "GPU 0 cannot reach the memory of GPU 1"
    if name == "nccl" and not torch.distributed.is_nccl_available():
        return "this torch is built without NCCL"
    return ""


def _pair(device: str, names: Sequence[str], sizes: Sequence[int]) -> list[TransportTried]:
    """The reports of two ranks on ``names``."""
    with tempfile.TemporaryDirectory() as folder:
        ended = launch_local(2, [sys.executable, "-m", "weft.runtime.measure.transport_check", folder, device,
                                 ",".join(names), ",".join(map(str, sizes))], timeout=_PATIENCE)
    faults: dict[str, str] = {}
    seconds: dict[int, dict[str, float]] = {}
    for said in _said(ended[0].output):
        if "name" in said:
            faults[said["name"]] = said["wrong"] or said["refused"]
        else:
            seconds[said["size"]] = said["seconds"]
    end = _end(ended)
    if end:  # the running transport failed, and the later ones were not tried
        left = [name for name in names if name not in faults]
        faults.update({name: end if name == left[0] else f"not tried, since {left[0]} ended the ranks"
                       for name in left})
        if len(seconds) < len(sizes):
            faults.update({name: fault or f"while calls were timed: {end}" for name, fault in faults.items()})
    return [TransportTried(name, device, faults.get(name, ""), "",
                           {size: row[name] for size, row in seconds.items() if name in row},
                           {size: row[f"{name}?"] for size, row in seconds.items() if f"{name}?" in row})
            for name in names]


def _said(output: str) -> Iterator[dict[str, Any]]:
    """Rank 0's own lines: libraries write others, and a killed rank may end within a line.
    """
    for line in output.splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found


def _end(ended: Sequence[Ended]) -> str:
    """The reason for a failed run: a timeout, the last line of a rank, or its exit status."""
    if not any(end.code for end in ended):
        return ""
    first = min((end for end in ended if end.code), key=lambda end: end.seconds)
    if first.late:
        return f"the ranks were not done after {_PATIENCE:.0f} s"
    lines = [line for line in first.errors.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else f"a rank ended with exit status {first.code}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else shown_time(seconds, "s")


def _bandwidth(seconds: dict[int, float]) -> str:
    """Of the largest message."""
    if not seconds:
        return ""
    size = max(seconds)
    return f"{size / seconds[size] / 1e9:.2f} GB/s"
