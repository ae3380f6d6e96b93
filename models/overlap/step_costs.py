"""What a step with the whole model on every GPU is made of: layers in groups, collectives, the update, what is held."""

from __future__ import annotations

from dataclasses import dataclass

from weft.models.candidates.build import bytes_per_parameter
from weft.models.candidates.family_costs import device_of
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.candidates.layer_groups import grouped_layers, slowest_layers
from weft.models.candidates.stages import StageCost
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import model_cluster
from weft.models.layers.collectives import Collective, group_time
from weft.models.spec.sections import Spec, Training

__all__ = ["StepCosts", "held_bytes", "layer_groups"]


def layer_groups(spec: Spec, most: int) -> list[StageCost]:
    """The layers of ``spec`` on its slowest GPU, in ``most`` groups of about as many parameters or fewer."""
    return grouped_layers(slowest_layers(gpu_costs(spec).layers), most)


def held_bytes(spec: Spec, *, sliced: bool) -> int:
    """Bytes of a parameter that each GPU holds; ``sliced``: with its slice of the optimizer state only."""
    run = spec.run
    assert isinstance(run, Training)
    state = run.optimizer_bytes_per_parameter
    return bytes_per_parameter(spec) - (state - -(-state // spec.cluster.gpus) if sliced else 0)


@dataclass(frozen=True)
class StepCosts:
    """Prices of a step of ``spec``."""

    spec: Spec

    @property
    def run(self) -> Training:
        """How it is trained."""
        assert isinstance(self.spec.run, Training)
        return self.spec.run

    def seconds(self, kind: Collective, size: int) -> float:
        """A collective of ``size`` bytes on each GPU: as the spec's device does, or rings over the cluster's links."""
        name, cluster = device_of(self.spec), self.spec.cluster
        return group_time(kind, size, range(cluster.gpus), model_cluster(cluster).network,
                          None if name is None else DEVICES[name]).seconds

    def update(self, parameters: int) -> float:
        """The optimizer on so many parameters: its state is read and written, gradients read, parameters written."""
        name = device_of(self.spec)
        if name is None or not parameters:
            return 0.0
        device = DEVICES[name]
        moved = parameters * (self.run.gradient_bytes + 2 * self.run.optimizer_bytes_per_parameter
                              + self.run.parameter_bytes)
        return device.launch["forward"] + moved / (device.bandwidth * device.reach["pointwise", "forward"].memory)
