"""``weft calibrate``: this machine as a device table, kernels of one rank, messages and collectives among several."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Group, RenderableType

from weft.app.lib.results import Tabular
from weft.app.profile.targets import ProfileFault, device_name, device_of
from weft.models.hardware.device_files import (
    CollectiveSample,
    DeviceTable,
    KernelSample,
    MessageSample,
    save_device_table,
    table_to_json,
)
from weft.runtime.measure.kernels import measure_kernels
from weft.runtime.measure.measure import available_bytes
from weft.runtime.ranks.gpus import lacks_gpus
from weft.runtime.ranks.launch import end_all_if_one_fails, launch_local
from weft.text.tables import table_of
from weft.text.units import bytes_text

#: Bytes of the messages and collectives, and of those of a quick calibration.
_SIZES, _QUICK = (2**12, 2**16, 2**20, 2**24), (2**12, 2**18)
#: A measurement whose middle half ranges over more than this share of the median is reported.
_WIDE = 0.25
#: Time limit of the ranks in seconds.
_PATIENCE = 900.0


@dataclass(frozen=True)
class Calibration(Tabular):
    """The result of :func:`weft.calibrate`; ``str()`` is a table."""

    measured: DeviceTable

    @property
    def warnings(self) -> list[str]:
        """Problems of the measurement, one sentence each."""
        table, found = self.measured, list[str]()
        if table.is_busy:
            found.append(f"the machine was busy: {table.load[0]:.1f} processes wanted its {table.cores} cores before "
                         f"anything was measured, {table.load[1]:.1f} after; times may be as many times too long, "
                         "measure again when it is idle")
        spreads = [sample.spread for sample in table.kernels] + [sample.spread for sample in table.collectives]
        wide = sum(spread > _WIDE for spread in spreads)
        if wide:
            found.append(f"{wide} of {len(spreads)} measurements spread by more than {_WIDE:.0%} of their median")
        return found

    def to_json(self) -> dict[str, Any]:
        """The ``weft.device/1`` object."""
        return table_to_json(self.measured)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table. Raises ``OSError``."""
        save_device_table(self.measured, path)

    def table(self) -> RenderableType:
        """Every measurement with its rate and spread."""
        texts = ("class", "pass", "dtype", "shape")
        kernels = table_of(f"{self.measured.name}: kernels of one rank", (
            *texts, "time", "spread", "GFLOP/s", "GB/s"), texts, box=None)
        for sample in self.measured.kernels:
            kernels.add_row(sample.group, sample.which, sample.dtype, sample.shape, _time(sample.seconds),
                            f"{sample.spread:.0%}", *(f"{amount / sample.seconds / 1e9:.1f}" if amount else "" for
                                                      amount in (sample.flops, sample.bytes)))
        together = table_of(f"collectives of {self.measured.ranks} ranks and fewer", (
            "kind", "ranks", "bytes", "time", "spread"), ("kind",), box=None)
        for one in self.measured.collectives:
            together.add_row(one.kind, str(one.ranks), bytes_text(one.bytes), _time(one.seconds),
                             f"{one.spread:.0%}")
        message = self.measured.messages
        messages = [] if message is None else [
            f"a message takes {_time(message.latency)} and {1e-9 / max(message.seconds_a_byte, 1e-15):.2f} "
            f"GB/s ({message.spread:.0%} apart among {message.pairs} pairs)"]
        return Group(kernels, *([together] if self.measured.collectives else []), *messages,
                     *(f"warning: {warning}" for warning in self.warnings))


def calibrate_machine(device: str | None = None, ranks: int | None = None, *, quick: bool = False,
                      on_progress: Callable[[str], None] = lambda title: None) -> Calibration:
    """Measure this machine. See :func:`weft.calibrate`. Raises :class:`~weft.app.profile.targets.ProfileFault` if a
    rank fails."""
    where = device_of(device)
    most = torch.cuda.device_count() if where.type == "cuda" else os.cpu_count() or 1
    count = min(most, 8) if ranks is None else ranks
    if where.type == "cuda" and lacks_gpus(count):
        raise ProfileFault(f"--ranks is {count}, but this machine has {most} GPUs: NCCL joins one rank a GPU")
    before = _load()
    kernels = tuple(KernelSample(**asdict(time)) for time in measure_kernels(where, quick=quick,
                                                                          on_progress=on_progress))
    collectives: tuple[CollectiveSample, ...] = ()
    messages: MessageSample | None = None
    if count > 1:
        on_progress(f"messages and collectives of {count} ranks")
        collectives, messages = _together(where.type, count, quick)
    return Calibration(DeviceTable(device_name(where), torch.__version__, count, _memory(where, count),
                                   (before, _load()), os.cpu_count() or 1, kernels, collectives, messages,
                                   hides_launches=where.type == "cuda"))


def _together(device: str, ranks: int, quick: bool) -> tuple[tuple[CollectiveSample, ...], MessageSample]:
    """The measurements of this machine's ranks."""
    ended = launch_local(ranks, [sys.executable, "-m", "weft.runtime.measure.rank_costs", device,
                                 ",".join(map(str, _QUICK if quick else _SIZES)), "3" if quick else "7"],
                         timeout=_PATIENCE, beside=end_all_if_one_fails)
    bad = next((end for end in ended if end.code or end.late), None)
    if bad is not None:
        errors = bad.errors.strip().splitlines()
        raise ProfileFault(f"a rank failed while messages were measured: {errors[-1] if errors else bad.code}")
    found = json.loads(ended[0].output.splitlines()[-1])
    return (tuple(CollectiveSample(**sample) for sample in found["collectives"]), MessageSample(**found["messages"]))


def _memory(device: torch.device, ranks: int) -> int:
    """Memory of each rank in bytes: as reported by CUDA, or an even share of a CPU's free memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return available_bytes(device) // ranks


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _load() -> float:
    """Runnable processes in the last minute; 0 if the system does not report it."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return 0.0
