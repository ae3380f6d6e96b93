"""The ``spec=`` of :func:`weft.pipeline`: a description of the machine in place of detection and measurement.

A YAML file or an equal mapping. ``cluster`` has the entries of a model spec's (``docs/FORMATS.md``), all optional.
Defaults: no memory limit on a CPU, the memory of the GPU otherwise, and measured links. ``placement`` selects the
placements of stages on ranks and the kinds of backward to try.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from weft.app.pipeline.lib.options import BACKWARDS, SHAPES
from weft.models.files.limits import MAX_GPUS, MAX_SPEC_BYTES
from weft.models.layers.cluster import Network, model_cluster
from weft.models.spec.base import Section, refuse
from weft.models.spec.cluster import TIERS, Cluster, Tiers
from weft.models.spec.fields import Bandwidth, BytesEach, DeviceEach, Name, Reserve, Seconds
from weft.models.spec.spec import SpecError, checked
from weft.solver.io.reading import read_text

__all__ = ["MachineSpec", "SpecError", "load_machine_spec"]


class MachineCluster(Section):
    """The ranks' devices and what joins them."""

    gpus: int | None = Field(default=None, ge=1, le=MAX_GPUS, description="Number of ranks. Default: as many as run.")
    memory: BytesEach | None = Field(default=None, description="Memory of each rank (bytes, or text with a unit), or a "
                                     "list with one entry for each.")
    reserve: Reserve = Field(default=0, description="Of that, what is kept free on every rank. Default 0.")
    links: Literal["nvlink-v100", "network-v100"] | None = Field(
        default=None, description="Measured transfer times of two V100, by size.")
    bandwidth: Bandwidth | None = Field(default=None, description="Bandwidth between any two ranks of a machine.")
    latency: Seconds | None = Field(default=None, description="Time that a transfer of any size takes at least.")
    device: DeviceEach | None = Field(default=None, description="What the GPUs are, for modelled links, or a list with "
                                      "one entry for each.")
    gpus_per_machine: int | None = Field(default=None, ge=1, le=MAX_GPUS, description="Ranks in one machine.")
    machine_bandwidth: Bandwidth | None = Field(default=None, description="Bandwidth between two machines.")
    machine_latency: Seconds | None = Field(default=None, description="Time that a transfer between machines takes at "
                                            "least.")
    tiers: Tiers | None = Field(default=None, description=TIERS)

    @model_validator(mode="after")
    def _check(self) -> MachineCluster:
        if self.has_links:
            self._cluster(self.gpus or max(2, self.gpus_per_machine or 0, self._listed))
        return self

    @property
    def has_links(self) -> bool:
        """Whether any entry describes links."""
        return any(value is not None for value in (self.links, self.bandwidth, self.latency, self.device,
                                                   self.machine_bandwidth, self.machine_latency, self.tiers))

    @property
    def _listed(self) -> int:
        return len(self.device) if isinstance(self.device, tuple) else 0

    def network(self, ranks: int) -> Network | None:
        """The network of ``ranks`` ranks; ``None`` if no entry describes it."""
        return model_cluster(self._cluster(ranks)).network if self.has_links else None

    def _cluster(self, ranks: int) -> Cluster:
        """The same as a model spec's ``cluster``, with its checks."""
        given = {name: value for name in Cluster.model_fields if name in MachineCluster.model_fields
                 and name not in ("gpus", "memory", "reserve") and (value := getattr(self, name)) is not None}
        if isinstance(self.device, tuple):
            given["device"] = list(self.device)
        try:
            return Cluster.model_validate({"gpus": ranks, "memory": "1 B", **given})
        except ValidationError as error:
            refuse(error.errors()[0]["msg"])


class MachinePlacement(Section):
    """Which placements are tried."""

    shapes: tuple[Literal["chain", "v"], ...] = Field(default=SHAPES, strict=False, min_length=1, description=(
        "chain: one stage a rank. v: two, down the ranks and back up. Default chain."))
    backward: tuple[Literal["full", "split"], ...] = Field(default=BACKWARDS, strict=False, min_length=1, description=(
        "full: one backward block a stage. split: input gradient and weight gradient apart. Default both."))


class MachineSpec(Section):
    """A description of the machine."""

    name: Name | None = Field(default=None, description="Of the machine, for people.")
    cluster: MachineCluster = Field(default=MachineCluster(), description="The ranks' devices and what joins them.")
    placement: MachinePlacement = Field(default=MachinePlacement(), description="Which placements are tried.")


def load_machine_spec(spec: str | os.PathLike[str] | Mapping[str, Any] | None, ranks: int) -> MachineSpec:
    """``spec``, a path, a mapping or nothing, for ``ranks`` ranks. Raises :class:`SpecError`."""
    if spec is None or (isinstance(spec, Mapping) and not spec):
        return MachineSpec()
    if isinstance(spec, Mapping):
        where, lines = "spec", False
        try:
            text = yaml.safe_dump(_plain(spec), sort_keys=False)
        except (yaml.YAMLError, RecursionError) as error:
            raise SpecError(f"spec: YAML cannot represent its values ({str(error).splitlines()[0]:.100})") from None
    elif isinstance(spec, str | os.PathLike):
        where, lines = os.fspath(spec), True
        text = read_text(Path(spec), MAX_SPEC_BYTES, "a spec", SpecError)
    else:
        raise SpecError(f"spec is {type(spec).__name__}, it must be the path of a YAML file, a mapping, or left out")
    found, _ = checked(MachineSpec, text, where, {("cluster",): MachineCluster, ("placement",): MachinePlacement},
                       lines=lines)
    cluster = found.cluster
    for entry, count in (("gpus", cluster.gpus), ("memory", len(cluster.memory or ()) or None),
                         ("device", len(cluster.device) if isinstance(cluster.device, tuple) else None)):
        if count is not None and count != ranks and not (entry == "memory" and count == 1):
            given = f"is {count}" if entry == "gpus" else f"lists {count} ranks"
            raise SpecError(f"{where}: cluster.{entry} {given}, but {ranks} ranks run: start as many, or describe "
                            "these")
    return found


def _plain(value: Any) -> Any:
    """``value`` with plain dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
