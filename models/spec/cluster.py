"""The section ``cluster`` of a spec: the GPUs, their memory, and their links."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, ValidationInfo, model_validator

from weft.models.files.limits import MAX_GPUS, MAX_GRID_GPUS
from weft.models.hardware.devices import DEVICES
from weft.models.spec.base import Section, refuse
from weft.models.spec.fields import Bandwidth, BytesEach, DeviceEach, Name, Reserve, Seconds, SpeedEach, device_each

#: Maximum number of tiers.
_MOST_TIERS = 8


def _memory_or_device(schema: dict[str, Any]) -> None:
    """A GPU's memory is optional if its device is given."""
    schema["required"].remove("memory")
    schema["anyOf"] = [{"required": ["memory"]}, {"required": ["device"]}]


class ClusterTier(Section):
    """GPUs in a row that something joins: a machine, a rail, a rack."""

    name: Name = Field(description="What it is called: machine, rail, rack or any other name.", examples=["machine"])
    size: int | None = Field(default=None, ge=2, le=MAX_GPUS, description="GPUs in one of them: a multiple of the "
                             "tier's before. Default, in the last tier: all.", examples=[8])
    bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth of each of its GPUs to another one that no smaller tier joins with it, "
        "one way (bytes per second, or text with a unit). Default, in the first tier: what device has in a machine.",
        examples=["450 GB/s"])
    latency: Seconds | None = Field(
        default=None, description="Time that a transfer or collective of any size takes at least. Default: in the "
        "first tier what device has in a machine, in others between machines; 0 without device.", examples=["10 us"])
    sharing: float = Field(default=1.0, ge=1, le=MAX_GPUS, strict=False, description=(
        "How many GPUs share that bandwidth when they send at once: 8 where eight GPUs have one network card, 2 where "
        "the uplinks carry half of what their GPUs may send (oversubscription). Default 1."), examples=[8])


#: The tiers of a cluster.
Tiers: TypeAlias = Annotated[tuple[ClusterTier, ...], Field(strict=False, min_length=1, max_length=_MOST_TIERS)]
TIERS = ("What joins the GPUs, from the innermost tier, in place of gpus_per_machine, links and the other bandwidths "
         "and latencies: a list such as a machine and a rack. GPU 0 and so many from there on are the first machine, "
         "and so on. A transfer takes the rate of the smallest tier that holds both GPUs; a collective does its part "
         "in each tier.")


class Cluster(Section):
    """The GPUs and what joins them."""

    model_config = ConfigDict(json_schema_extra=_memory_or_device)

    gpus: int = Field(ge=1, le=MAX_GRID_GPUS, description="Number of GPUs.", examples=[4])
    memory: BytesEach = Field(description="Memory of each GPU (bytes, or text with a unit), or a list with one entry "
                              "for each. Default: what CUDA reports of device.",
                              examples=["32 GiB", ["32 GiB", "32 GiB", "16 GiB", "16 GiB"]])
    reserve: Reserve = Field(
        default=1024**3, description="Kept free on every GPU for the framework: CUDA context, communication buffers, "
        "fragmentation. Default 1 GiB.", examples=["1 GiB"])
    links: Literal["nvlink-v100", "network-v100"] | None = Field(
        default=None, description="Measured transfer times by size: nvlink-v100 (two V100 of one machine) or "
        "network-v100 (V100 of two machines). Several GPUs need this, bandwidth or device.")
    bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth between any two GPUs of a machine (bytes per second, or text with a "
        "unit). Default: what device has by its data sheet.", examples=["36 GB/s"])
    latency: Seconds | None = Field(
        default=None, description="Time that a transfer of any size takes at least, within a machine. Default: 0 with "
        "bandwidth, else what device has.", examples=["10 us"])
    device: DeviceEach | None = Field(
        default=None, description="What the GPUs are, for modelled costs and links, or a list with one entry for each: "
        f"{', '.join(DEVICES)}, or a table that weft calibrate wrote (.json, .yaml). The stages pass the GPUs in their "
        "order.",
        examples=["a100-80gb", ["v100", "v100", "h100", "h100"]])
    speed: SpeedEach | None = Field(
        default=None, description="How fast each GPU is, relative to what the costs are of: a list with a number for "
        "each. The time of a layer is divided by it. Default: all 1.", examples=[[1, 1, 2, 2]])
    gpus_per_machine: int | None = Field(
        default=None, ge=1, le=MAX_GPUS, description="GPUs in one machine: GPU 0 and so many from there on stand in "
        "the first, and so on. Transfers and collectives between machines go over the network. Default: all GPUs are "
        "in one.", examples=[8])
    machine_bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth between GPUs of two machines (bytes per second, or text with a unit). "
        "Default: the measured times of network-v100 where links is given, else what device has.",
        examples=["100 Gbit/s"])
    machine_latency: Seconds | None = Field(
        default=None, description="Time that a transfer of any size between machines takes at least. Default: 0 with "
        "machine_bandwidth, else what device has.", examples=["30 us"])
    tiers: Tiers | None = Field(default=None, description=TIERS, examples=[[
        {"name": "machine", "size": 8, "bandwidth": "450 GB/s"},
        {"name": "rail", "size": 256, "bandwidth": "50 GB/s", "latency": "10 us"},
        {"name": "rack", "bandwidth": "50 GB/s", "latency": "20 us", "sharing": 4}]])
    host_bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth of copies between each GPU and the host's memory, both ways at once "
        "(bytes per second, or text with a unit). With it, placement.memory: decide may offload activations.",
        examples=["12 GB/s"])

    @model_validator(mode="before")
    @classmethod
    def _memory_of_device(cls, values: Any, info: ValidationInfo) -> Any:
        """GPUs of a known type have its memory."""
        if not isinstance(values, dict) or "memory" in values or not values.get("device"):
            return values
        named = values["device"] if isinstance(values["device"], list) else [values["device"]]
        if "cpu" in named:  # a GPU with its built-in memory
            return values
        try:
            checked = device_each(named, info)
        except ValueError:
            return {**values, "memory": "1 B"}  # a faulty device is reported by its own check
        return {**values, "memory": [DEVICES[name].memory for name in checked]}

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        if len(self.memory) not in (1, self.gpus):
            refuse(f"memory lists {len(self.memory)} GPUs, but gpus is {self.gpus}")
        if isinstance(self.device, tuple) and len(self.device) != self.gpus:
            refuse(f"device lists {len(self.device)} GPUs, but gpus is {self.gpus}")
        if self.speed is not None and len(self.speed) != self.gpus:
            refuse(f"speed lists {len(self.speed)} GPUs, but gpus is {self.gpus}")
        if self.tiers is not None:
            self._check_tiers(self.tiers)
            return self
        if self.links is not None and (self.bandwidth is not None or self.latency is not None):
            refuse("give either links (measured) or bandwidth and latency, not both")
        if self.latency is not None and self.bandwidth is None and self.device is None:
            refuse("latency needs bandwidth or device beside it")
        if self.gpus > 1 and self.links is None and self.bandwidth is None and self.device is None:
            refuse("with several GPUs, give links (such as nvlink-v100), bandwidth (such as 36 GB/s), tiers or a "
                   "device whose bandwidth is known (such as h100)")
        self._check_machines()
        return self

    def _check_machines(self) -> None:
        given = next((name for name in ("machine_bandwidth", "machine_latency") if getattr(self, name) is not None), "")
        if given and self.gpus_per_machine is None:
            refuse(f"{given} is between machines; say how many GPUs one has (gpus_per_machine)")
        if self.machine_latency is not None and self.machine_bandwidth is None and (
                self.links is not None or self.device is None):
            refuse("machine_latency needs machine_bandwidth beside it")
        if (self.machines > 1 and self.machine_bandwidth is None and self.links is None
                and self.device is None):
            refuse(f"{self.gpus} GPUs stand in {self.machines} machines (gpus_per_machine is {self.gpus_per_machine}); "
                   "give the bandwidth between them (machine_bandwidth, such as 100 Gbit/s) or a device whose network "
                   "is known (such as h100)")

    def _check_tiers(self, tiers: Sequence[ClusterTier]) -> None:
        given = next((name for name in ("links", "bandwidth", "latency", "gpus_per_machine", "machine_bandwidth",
                                        "machine_latency") if getattr(self, name) is not None), None)
        if given is not None:
            refuse(f"tiers and {given} both say what joins the GPUs; leave {given} out")
        sizes = [tier.size for tier in tiers]
        inside = sizes[-2] or 1 if len(sizes) > 1 else 1
        sizes[-1] = sizes[-1] or max(2, -(-self.gpus // inside)) * inside
        for k, (tier, size) in enumerate(zip(tiers, sizes, strict=True)):
            if size is None:
                refuse(f"tiers[{k}].size is missing: how many GPUs has one {tier.name}?")
            if tier.bandwidth is None and (k or not isinstance(self.device, str)):
                refuse(f"tiers[{k}].bandwidth is missing: {tier.name} has no rate; give it, such as 50 GB/s"
                       + ("" if k else ", or one device"))
        for k, (inner, outer) in enumerate(pairwise(sizes), 1):
            if outer <= inner or outer % inner:  # type: ignore[operator]
                refuse(f"tiers[{k}].size is {outer}, but {tiers[k].name} holds whole tiers of {inner} GPUs "
                       f"({tiers[k - 1].name}); give a multiple of {inner} above it")
        if sizes[-1] < self.gpus:  # type: ignore[operator]
            refuse(f"tiers end with {tiers[-1].name}, of {sizes[-1]} GPUs, but gpus is {self.gpus}; add a tier that "
                   "joins them, or leave the last size out")

    @property
    def per_machine(self) -> int:
        """GPUs of one machine, the innermost tier."""
        if self.tiers is not None:
            return self.tiers[0].size or self.gpus
        return self.gpus_per_machine or self.gpus

    @property
    def machines(self) -> int:
        """The number of machines."""
        return -(-self.gpus // self.per_machine)

    @property
    def devices(self) -> tuple[str | None, ...]:
        """The type of each GPU; ``None`` for all if not given."""
        return self.device if isinstance(self.device, tuple) else (self.device,) * self.gpus

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speed of each GPU, relative to the device of the costs."""
        return self.speed or (1.0,) * self.gpus

    @property
    def kinds(self) -> tuple[tuple[str | None, float], ...]:
        """Device and speed of each GPU: layers take the same time on GPUs of one kind."""
        return tuple(zip(self.devices, self.speeds, strict=True))

    @property
    def is_plain(self) -> bool:
        """Whether all GPUs are of one device and speed 1: costs are those of every GPU."""
        return set(self.kinds) == {(self.devices[0], 1.0)}
