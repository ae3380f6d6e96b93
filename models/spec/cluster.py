"""The section ``cluster`` of a spec: the GPUs, their memory, and what joins them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from weft.models.files.limits import MAX_GPUS, MAX_GRID_GPUS
from weft.models.hardware.devices import DEVICES
from weft.models.spec.base import Section, refuse
from weft.models.spec.fields import Bandwidth, BytesEach, DeviceEach, Reserve, Seconds, SpeedEach

__all__ = ["Cluster"]


def _memory_or_device(schema: dict[str, Any]) -> None:
    """What each GPU has need not be said where its device is."""
    schema["required"].remove("memory")
    schema["anyOf"] = [{"required": ["memory"]}, {"required": ["device"]}]


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
        f"{', '.join(DEVICES)}. The stages pass the GPUs in their order.",
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
    host_bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth of copies between each GPU and the host's memory, both ways at once "
        "(bytes per second, or text with a unit). With it, placement.memory: decide may offload activations.",
        examples=["12 GB/s"])

    @model_validator(mode="before")
    @classmethod
    def _memory_of_device(cls, values: Any) -> Any:
        """GPUs whose kind is known have the memory of that kind."""
        if not isinstance(values, dict) or "memory" in values or not values.get("device"):
            return values
        named = values["device"] if isinstance(values["device"], list) else [values["device"]]
        if "cpu" in named:  # one has as much as was built in
            return values
        if not all(isinstance(name, str) and name in DEVICES for name in named):
            return {**values, "memory": "1 B"}  # device is at fault, which its own check says
        return {**values, "memory": [DEVICES[name].memory for name in named]}

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        if len(self.memory) not in (1, self.gpus):
            refuse(f"memory lists {len(self.memory)} GPUs, but gpus is {self.gpus}")
        if isinstance(self.device, tuple) and len(self.device) != self.gpus:
            refuse(f"device lists {len(self.device)} GPUs, but gpus is {self.gpus}")
        if self.speed is not None and len(self.speed) != self.gpus:
            refuse(f"speed lists {len(self.speed)} GPUs, but gpus is {self.gpus}")
        if self.links is not None and (self.bandwidth is not None or self.latency is not None):
            refuse("give either links (measured) or bandwidth and latency, not both")
        if self.latency is not None and self.bandwidth is None and self.device is None:
            refuse("latency needs bandwidth or device beside it")
        if self.gpus > 1 and self.links is None and self.bandwidth is None and self.device is None:
            refuse("with several GPUs, give links (such as nvlink-v100), bandwidth (such as 36 GB/s) or a device "
                   "whose bandwidth is known (such as h100)")
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

    @property
    def machines(self) -> int:
        """How many machines the GPUs stand in."""
        return -(-self.gpus // (self.gpus_per_machine or self.gpus))

    @property
    def devices(self) -> tuple[str | None, ...]:
        """What each GPU is; ``None`` for all where it is not said."""
        return self.device if isinstance(self.device, tuple) else (self.device,) * self.gpus

    @property
    def speeds(self) -> tuple[float, ...]:
        """How fast each GPU is, relative to what the costs are of."""
        return self.speed or (1.0,) * self.gpus

    @property
    def kinds(self) -> tuple[tuple[str | None, float], ...]:
        """Device and speed of each GPU: layers take the same time on GPUs of one kind."""
        return tuple(zip(self.devices, self.speeds, strict=True))

    @property
    def is_plain(self) -> bool:
        """Whether all GPUs are of one device and speed 1: costs are those of every GPU."""
        return set(self.kinds) == {(self.devices[0], 1.0)}
