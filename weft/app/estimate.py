"""The estimate of a model's stages as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.app.lib.decided_memory import plan_details, plan_table
from weft.models.candidates.estimate import Estimate, estimate_spec
from weft.models.spec.spec import Spec
from weft.text.tables import table_text

if TYPE_CHECKING:
    from rich.console import Group

    from weft.app.lib.sources import Source
    from weft.models.candidates.build import Candidate

__all__ = ["Report", "estimate_source"]

GIB = 1024**3


@dataclass(frozen=True)
class Report:
    """What :func:`weft.estimate` found; ``str()`` is the table, :meth:`to_json` the numbers with their origins.

    ``decided``: the chains whose memory is decided, where the spec lets it be and some fit, the best bottleneck first.
    """

    estimate: Estimate
    decided: tuple[Candidate, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every GPU has the memory it needs, in the shape asked for or in a chain whose memory is decided."""
        return self.estimate.fits or bool(self.decided)

    def to_json(self) -> dict[str, Any]:
        """All numbers: sizes in bytes, times in seconds; ``origin`` says of each kind where it comes from."""
        found = self.estimate
        counted = "counted" if found.memory_origin == "modelled" else found.memory_origin
        return {
            "name": found.name, "shape": found.shape, "backward": found.backward, "fits": self.fits,
            "micro_batches": found.micro_batches,
            "origin": {"forward, backward": "time_origin of each stage", "parameters": counted,
                       "weights, gradients, optimizer": "parameters x bytes that the spec says",
                       "activation, workspace, sent": found.memory_origin, "transfer": found.transfer_origin},
            "stages": [asdict(stage) for stage in found.stages],
            "devices": [{**asdict(device), "needed": device.needed, "missing": device.missing}
                        for device in found.devices],
            **({"memory_decided": [plan_details(candidate.decided) for candidate in self.decided
                                   if candidate.decided is not None]} if self.decided else {}),
            "notes": list(found.notes)}

    def table(self) -> Group:
        """Two tables, stages and GPUs, and the notes below them."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        found = self.estimate
        stages = Table(title=f"{found.name}: {found.shape}, {len(found.stages)} stages; one micro-batch "
                             f"(memory {found.memory_origin}, transfers {found.transfer_origin})", title_justify="left")
        for heading in ("stage", "GPU", "layers", "parameters", "activations MiB", "in flight", "workspace MiB",
                        "sent MiB", "transfer ms", "forward ms", "backward ms", "times"):
            stages.add_column(heading, justify="left" if heading in ("layers", "times") else "right")
        for stage in found.stages:
            stages.add_row(
                str(stage.stage), str(stage.device), _span(stage.layers), f"{stage.parameters / 1e6:.1f} M",
                _mib(stage.activation), f"x {stage.in_flight}", _mib(stage.workspace), _mib(stage.sent),
                f"{stage.transfer * 1e3:.3f}", f"{stage.forward * 1e3:.2f}", f"{stage.backward * 1e3:.2f}",
                _origins(stage.time_origin))
        devices = Table(title="GiB of each GPU at its peak", title_justify="left")
        for heading in ("GPU", "weights", "gradients", "optimizer", "activations", "workspace", "reserve", "needed",
                        "has", "fits"):
            devices.add_column(heading, justify="right")
        for device in found.devices:
            devices.add_row(str(device.device), *(f"{amount / GIB:.2f}" for amount in (
                device.weights, device.gradients, device.optimizer, device.activations, device.workspace,
                device.reserve, device.needed, device.memory)),
                "yes" if not device.missing else f"no, lacks {device.missing / GIB:.2f}")
        decided = [plan_table(candidate.decided, found.name) for candidate in self.decided
                   if candidate.decided is not None]
        return Group(stages, devices, *decided, *(Text(f"- {note}") for note in found.notes))

    def __str__(self) -> str:
        return table_text(self.table(), width=180)


def estimate_source(source: Source, *, shape: str | None = None) -> Report:
    """See :func:`weft.estimate`."""
    from weft.app.lib.case import read_source

    spec = read_source(source)
    if not isinstance(spec, Spec):
        raise ValueError("a block problem states its own times and memory; estimate is for model specs (.yaml)")
    if shape not in (None, "chain", "v", "loop", "wave"):
        raise ValueError(f"shape is {shape!r}, it must be chain, v, loop or wave")
    found = estimate_spec(spec, shape)  # type: ignore[arg-type]
    if spec.placement.memory != "decide":
        return Report(found)
    from weft.models.candidates.memory_candidates import decided_candidates
    from weft.solver.placement.memory.plan_memory import NoMemoryPlan

    try:
        return Report(found, tuple(decided_candidates(spec, every=False)))
    except NoMemoryPlan as error:
        return Report(replace(found, notes=(f"memory decided: {error}", *found.notes)))


def _span(layers: tuple[str, ...]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} .. {layers[-1]} ({len(layers)})"


def _mib(amount: int) -> str:
    return f"{amount / 1024**2:.1f}"


def _origins(shares: Mapping[str, float]) -> str:
    if len(shares) == 1:
        return next(iter(shares))
    return ", ".join(f"{origin} {share:.0%}" for origin, share in shares.items())
