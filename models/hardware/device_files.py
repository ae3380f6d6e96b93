"""A measured device: the file ``weft.device/1`` written by ``weft calibrate``, and its device type.

Seconds of kernels, with their operations and bytes, become rates: of matrix products by size, of memory, and the shares
of these attained by other kernels; a launch is subtracted first, unless it is hidden by earlier kernels. Collectives
are used as measured, and for other numbers of ranks at their measured share of a message's rate.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

import yaml

from weft.models.files.limits import MAX_SPEC_BYTES
from weft.models.hardware.device_type import DeviceError, DeviceType, KernelClass, Pass, Reach
from weft.solver.io.entries import Entry, FormatError, require_format
from weft.solver.io.reading import read_text
from weft.solver.io.writing import write_atomically

DEVICE_FORMAT = "weft.device/1"
#: The endings of such files.
TABLE_FILES = (".json", ".yaml", ".yml")
#: Kernels measured in addition to the classes: a chain of tiny ones, and a memory-bound one.
LAUNCH, MEMORY = "launch", "memory"
_PASSES: tuple[Pass, ...] = ("forward", "backward")
_GROUPS = (LAUNCH, MEMORY, *get_args(KernelClass))
_KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
#: The minimum share: a launch-bound kernel is not informative about its rate.
_LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class KernelSample:
    """One kernel: its class (or ``"launch"``, ``"memory"``), pass, dtype and shape, its operations and bytes moved, the
    median seconds of ``repeats`` runs, and their ``spread``: the range of the middle half over the median."""

    group: str
    which: Pass
    dtype: str
    shape: str
    flops: float
    bytes: int
    seconds: float
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True)
class CollectiveSample:
    """One collective of ``bytes`` on each of ``ranks`` ranks before it."""

    kind: str
    ranks: int
    bytes: int
    seconds: float
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True)
class MessageSample:
    """Messages between neighbours: fixed seconds, and seconds of each byte; ``spread``: among pairs, over the
    median."""

    latency: float
    seconds_a_byte: float
    spread: float
    pairs: int


@dataclass(frozen=True)
class DeviceTable:
    """The measurements of one machine. ``memory``: bytes of each of ``ranks`` ranks. ``load``: runnable processes
    before and after, and available ``cores``. ``hides_launches``: whether kernels are launched while others run, as on
    a GPU."""

    name: str
    torch: str
    ranks: int
    memory: int
    load: tuple[float, float]
    cores: int
    kernels: tuple[KernelSample, ...]
    collectives: tuple[CollectiveSample, ...] = ()
    messages: MessageSample | None = None
    hides_launches: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether other processes were runnable: the measured times are then too long."""
        return self.load[0] > self.cores / 4

    def launch(self, which: Pass) -> float:
        """The minimum seconds of a kernel."""
        return min((k.seconds for k in self.kernels if (k.group, k.which) == (LAUNCH, which)), default=0.0)

    def device_type(self) -> DeviceType:
        """The measured device."""
        products = {(which, dtype): points for which in _PASSES
                    for dtype in dict.fromkeys(k.dtype for k in self.kernels)
                    if (points := self._products(which, dtype))}
        flops = {dtype: max(rate for (_, other), points in products.items() if other == dtype for _, rate in points)
                 for _, dtype in products}
        bandwidth = max(k.bytes / k.seconds for k in self.kernels if k.group == MEMORY)
        message = self.messages or MessageSample(0.0, 1 / bandwidth, 0.0, 0)
        link = 1 / max(message.seconds_a_byte, 1e-15)
        return DeviceType(
            self.name, self.memory, flops, max(flops.values()), bandwidth, link, message.latency, link,
            message.latency, {"forward": self.launch("forward"), "backward": self.launch("backward")},
            dict(self._reaches(flops, bandwidth)), self._origin(),
            rings={kind: {ranks: _ring_share(points, kind, ranks, link) for (other, ranks), points in
                          self._curves.items() if other == kind} for kind in _KINDS},
            collectives=self._curves, products=products, hides_launches=self.hides_launches)

    def _products(self, which: Pass, dtype: str) -> tuple[tuple[float, float], ...]:
        """Operations of one product and its rate, by rising size; a backward has two products."""
        count = 2 if which == "backward" else 1
        return tuple(sorted((k.flops / count, k.flops / self._working(k, count)) for k in self.kernels
                            if (k.group, k.which, k.dtype) == ("gemm", which, dtype)))

    def _working(self, kernel: KernelSample, launches: int = 1) -> float:
        """Its seconds without its launches."""
        if self.hides_launches:
            return kernel.seconds
        return max(kernel.seconds - launches * self.launch(kernel.which), kernel.seconds / 10)

    def _reaches(self, flops: Mapping[str, float], bandwidth: float) -> Iterator[tuple[tuple[Any, Any], Reach]]:
        """For each class and pass the largest share attained by one of its kernels; an unmeasured pass equals the
        other."""
        for group in get_args(KernelClass):
            for which in _PASSES:
                of_group = [k for k in self.kernels if k.group == group and k.dtype in flops]
                chosen = [k for k in of_group if k.which == which] or of_group
                taken = [(k, self._working(k)) for k in chosen]
                compute = max((k.flops / seconds / flops[k.dtype] for k, seconds in taken), default=1.0)
                memory = max((k.bytes / seconds / bandwidth for k, seconds in taken), default=1.0)
                is_product = any(k.flops for k in chosen)
                yield (group, which), Reach(min(1.0, max(compute, _LEAST)) if is_product else 1.0,
                                            1.0 if is_product else min(1.0, max(memory, _LEAST)))

    @property
    def _curves(self) -> dict[tuple[str, int], tuple[tuple[int, float], ...]]:
        """Bytes and seconds by kind and number of ranks, by rising size and never falling."""
        found: dict[tuple[str, int], tuple[tuple[int, float], ...]] = {}
        for sample in sorted(self.collectives, key=lambda s: s.bytes):
            before = found.get((sample.kind, sample.ranks), ())
            seconds = max(sample.seconds, before[-1][1] if before else 0.0)
            found[sample.kind, sample.ranks] = (*before, (sample.bytes, seconds))
        return found

    def _origin(self) -> str:
        spreads = sorted([k.spread for k in self.kernels] + [c.spread for c in self.collectives])
        spread = spreads[len(spreads) // 2]
        return (f"measured by weft calibrate on {self.name}, median spread {spread:.0%}"
                + (f", while the machine was busy (load {self.load[0]:.1f} on {self.cores} cores)" if self.is_busy
                   else ""))


def _ring_share(points: tuple[tuple[int, float], ...], kind: str, ranks: int, link: float) -> float:
    """The share of ``link`` attained by a ring of the largest size."""
    size, seconds = points[-1]
    parts = (ranks - 1) * (2 if kind == "all_reduce" else 1)
    return parts * (size if kind == "all_gather" else size / ranks) / seconds / link


# -- files -------------------------------------------------------------------------------------------------------------


def save_device_table(table: DeviceTable, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.device/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, json.dumps(table_to_json(table), indent=1, allow_nan=False) + "\n")


def table_to_json(table: DeviceTable) -> dict[str, Any]:
    """The ``weft.device/1`` object of ``table``."""
    names = {"group": "class", "which": "pass"}
    samples = {"kernels": [{names.get(key, key): value for key, value in asdict(sample).items()}
                           for sample in table.kernels],
               "collectives": [asdict(sample) for sample in table.collectives]}
    return {"format": DEVICE_FORMAT, "name": table.name, "torch": table.torch, "ranks": table.ranks,
            "memory": table.memory, "load": {"before": table.load[0], "after": table.load[1], "cores": table.cores},
            **({"hides_launches": True} if table.hides_launches else {}),
            **({"messages": asdict(table.messages)} if table.messages else {}), **samples}


def load_device_table(path: str | os.PathLike[str]) -> DeviceTable:
    """Read a ``weft.device/1`` file, JSON or the same as YAML. Raises :class:`DeviceError`."""
    where = os.fspath(path)
    text = read_text(path, MAX_SPEC_BYTES, "a device table", DeviceError)
    try:
        value = json.loads(text) if where.endswith(".json") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise DeviceError(f"{where}: is no device table: {str(error).splitlines()[0]:.100}") from None
    try:
        return table_from_json(value, where)
    except FormatError as error:
        raise DeviceError(str(error)) from None


def table_from_json(value: Any, where: str = "device table") -> DeviceTable:
    """The table of a ``weft.device/1`` object. Raises :class:`~weft.solver.io.entries.FormatError`."""
    entry = Entry(value, where)
    require_format(entry, DEVICE_FORMAT)
    entry.allow("format", "name", "torch", "ranks", "memory", "load", "hides_launches", "messages", "kernels",
                "collectives")
    hides = entry.get("hides_launches", False)
    if not isinstance(hides, bool):
        raise FormatError(f"{where}: hides_launches is {hides!r:.60}, it must be true or false")
    load = entry.child("load")
    load.allow("before", "after", "cores")
    kernels = tuple(_kernel(item) for item in entry.list("kernels"))
    for group in (MEMORY, "gemm"):
        if not any(kernel.group == group and kernel.which == "forward" for kernel in kernels):
            raise FormatError(f"{where}: kernels has no forward of class {group!r}; measure again (weft calibrate)")
    return DeviceTable(
        entry.text("name"), entry.text("torch"), entry.count("ranks", 1), entry.count("memory", 1),
        (float(load.number("before")), float(load.number("after"))), load.count("cores", 1), kernels,
        tuple(_collective(item) for item in entry.list("collectives", required=False)),
        _messages(entry.child("messages")) if entry.has("messages") else None,
        hides)


def _kernel(item: Entry) -> KernelSample:
    item.allow("class", "pass", "dtype", "shape", "flops", "bytes", "seconds", "spread", "repeats")
    which: Any = _one_of(item, "pass", _PASSES)
    return KernelSample(_one_of(item, "class", _GROUPS), which, item.text("dtype"), item.text("shape"),
                        _amount(item, "flops"), item.count("bytes"), _seconds(item), _amount(item, "spread"),
                        item.count("repeats", 1))


def _collective(item: Entry) -> CollectiveSample:
    item.allow("kind", "ranks", "bytes", "seconds", "spread", "repeats")
    return CollectiveSample(_one_of(item, "kind", _KINDS), item.count("ranks", 2), item.count("bytes", 1),
                            _seconds(item), _amount(item, "spread"), item.count("repeats", 1))


def _messages(item: Entry) -> MessageSample:
    item.allow("latency", "seconds_a_byte", "spread", "pairs")
    return MessageSample(_amount(item, "latency"), _amount(item, "seconds_a_byte"), _amount(item, "spread"),
                         item.count("pairs", 1))


def _one_of(item: Entry, field: str, known: tuple[str, ...]) -> str:
    found = item.text(field)
    if found not in known:
        raise FormatError(f"{item.where}: {field} is {found!r:.60}, it must be one of {', '.join(known)}")
    return found


def _amount(item: Entry, field: str) -> float:
    found = float(item.number(field))
    if found < 0:
        raise FormatError(f"{item.where}: {field} is {found}, it must be 0 or more")
    return found


def _seconds(item: Entry) -> float:
    found = _amount(item, "seconds")
    if not found:
        raise FormatError(f"{item.where}: seconds is 0, it must be more")
    return found
