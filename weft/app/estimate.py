"""The estimate of a model's stages as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from weft.app.lib.decided_memory import plan_details, plan_table
from weft.app.lib.results import Tabular
from weft.models.candidates.estimate import GIVEN, Estimate, estimate_spec
from weft.models.candidates.stages import Shape
from weft.models.grid.degrees import Degrees
from weft.models.grid.pipeline import even_cut, grid_space, pipeline_spec
from weft.models.spec.spec import Spec, with_values
from weft.text.tables import table_of

if TYPE_CHECKING:
    from rich.console import Group

    from weft.app.lib.sources import Source
    from weft.models.candidates.build import ModelCandidate
    from weft.models.hardware.device_type import DeviceType

GIB, MIB = 1024**3, 1024**2

#: Number of grids whose even stages are examined, by rising estimate.
_TRIED_GRIDS = 8
#: More rows than this are summarised in three: the minimum, median and maximum of each column. JSON has them all.
_MOST_ROWS = 16


@dataclass(frozen=True)
class EstimateReport(Tabular):
    """The result of :func:`weft.estimate`; ``str()`` is the table, :meth:`to_json` the numbers with their origins.

    ``decided``: the chains with memory decisions, if the spec allows them and some fit, the best bottleneck first.
    """

    WIDTH = 180
    estimate: Estimate
    decided: tuple[ModelCandidate, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every GPU has enough memory, in the requested shape or in a chain with memory decisions."""
        return self.estimate.fits or bool(self.decided)

    def to_json(self) -> dict[str, Any]:
        """All numbers: sizes in bytes, times in seconds; ``origin`` states the source of each kind."""
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
        from rich.text import Text

        found = self.estimate
        count = len(found.stages)
        stages = table_of(f"{found.name}: {found.shape}, {count} stage{'s' * (count > 1)}; one micro-batch "
                          f"(memory {found.memory_origin}, transfers {found.transfer_origin})", (
            "stage", "GPU", "layers", "parameters", "activations MiB", "in flight", "workspace MiB", "sent MiB",
            "transfer ms", "forward ms", "backward ms", "times"), ("layers", "times"))
        rows = [(str(stage.stage), str(stage.device), _span(stage.layers), stage.parameters / 1e6,
                 stage.activation / MIB, stage.in_flight, stage.workspace / MIB, stage.sent / MIB,
                 stage.transfer * 1e3, stage.forward * 1e3, stage.backward * 1e3, _origins(stage.time_origin))
                for stage in found.stages]
        for row in _summarised(rows):
            formats = ("", "", "", ".1f", ".1f", ".0f", ".1f", ".1f", ".3f", ".2f", ".2f", "")
            cells = [cell if isinstance(cell, str) else format(cell, how)
                     for cell, how in zip(row, formats, strict=True)]
            stages.add_row(*cells[:3], f"{cells[3]} M", cells[4], f"x {cells[5]}", *cells[6:])
        reserve = max(device.reserve for device in found.devices) / GIB
        devices = table_of(f"GiB of each GPU at its peak; needed includes the reserve, {reserve:.2f}", (
            "GPU", "weights", "gradients", "optimizer", "activations", "workspace", "needed", "has", "fits"))
        lacking = max(device.missing for device in found.devices)
        held = [(str(device.device), *(amount / GIB for amount in (
            device.weights, device.gradients, device.optimizer, device.activations, device.workspace, device.needed,
            device.memory)), "yes" if not device.missing else f"no, lacks {device.missing / GIB:.2f}")
            for device in found.devices]
        for amounts in _summarised(held):
            last = amounts[-1] or ("yes" if not lacking else f"no, lacks {lacking / GIB:.2f}")
            devices.add_row(amounts[0], *(f"{amount:.2f}" for amount in amounts[1:-1]), last)
        decided = [plan_table(candidate.decided, found.name) for candidate in self.decided
                   if candidate.decided is not None]
        return Group(stages, devices, *decided, *(Text(f"- {note}") for note in found.notes))


def estimate_source(source: Source, *, shape: str | None = None, parallel: Mapping[str, Any] | None = None,
                    **asked: int | str | None) -> EstimateReport:
    """See :func:`weft.estimate`; ``asked``: for a config.json, the arguments of
    :func:`weft.app.config_spec.config_specs`."""
    from weft.app.config_spec import config_specs, grid_of_config, is_config
    from weft.app.lib.sources import read_source

    if shape not in (None, "chain", "v", "loop", "wave"):
        raise ValueError(f"shape is {shape!r}, it must be chain, v, loop or wave")
    given = {name: value for name, value in asked.items() if value is not None}
    if not is_config(source):
        spec = read_source(source)
        if given:
            name = next(iter(given)).replace("_", "-")
            raise ValueError(f"{name} is for a config.json, which says the model alone; a spec says the rest itself")
        if parallel is not None:
            if not isinstance(spec, Spec):
                raise ValueError("parallel is for model specs and configs, and this is a block problem: leave it out")
            spec = with_values(spec, {"parallel": dict(parallel)}, "the degrees asked for")
        return _estimated(spec, shape)
    if parallel is not None:
        return _estimated(grid_of_config(source, parallel, **given), shape)  # type: ignore[arg-type]
    smallest = None
    for spec, note in config_specs(source, **given):  # type: ignore[arg-type]
        found = estimate_spec(spec, shape)  # type: ignore[arg-type]
        smallest = EstimateReport(replace(found, notes=(note, _step_note(found), *found.notes)))
        if smallest.fits:
            break
    assert smallest is not None
    return smallest


def _step_note(found: Estimate) -> str:
    """The stages' estimate, without a schedule."""
    slowest = max(stage.forward + stage.backward for stage in found.stages)
    rounds = found.micro_batches + len(found.devices) - 1
    return (f"by 1F1B a step takes about {rounds} times the slowest stage, {rounds * slowest * 1e3:.0f} ms, without "
            "transfers and optimizer; weft solve says what it takes")


def _estimated(spec: object, shape: str | None) -> EstimateReport:
    if not isinstance(spec, Spec):
        raise ValueError("a block problem states its own times and memory; estimate is for model specs (.yaml)")
    if spec.parallel is not None:
        if shape is not None:
            raise ValueError("shape is of GPUs one by one; a grid's stages are a chain, or go round and round with "
                             "virtual: leave it out")
        return _grid_estimated(spec)
    found = estimate_spec(spec, shape)  # type: ignore[arg-type]
    if spec.placement.memory != "decide":
        return EstimateReport(found)
    from weft.models.candidates.memory_candidates import decided_candidates
    from weft.solver.placement.memory.plan_memory import NoMemoryPlan

    try:
        return EstimateReport(found, tuple(decided_candidates(spec, every=False)))
    except NoMemoryPlan as error:
        return EstimateReport(replace(found, notes=(f"memory decided: {error}", *found.notes)))


def _grid_estimated(spec: Spec) -> EstimateReport:
    """The estimate of the most promising grid, one GPU a stage; with open degrees, the first by estimate whose even
    stages fit."""
    space = grid_space(spec)
    grids = sorted((grid for wave in space.waves() for grid in wave), key=lambda grid: grid.estimate)
    fixed, report = space.fixed(), None
    if fixed is not None:
        grids = [replace(grid, degrees=fixed) for grid in grids[:1]]
    for grid in grids[:_TRIED_GRIDS]:
        degrees = grid.degrees
        count = {layer.cost.name: layer.cost.parameters for layer in space.ranks.of(degrees)}
        pipeline = pipeline_spec(spec, space, degrees)
        cut = tuple(last - first for first, last in pairwise(even_cut(len(count), degrees.stages)))
        shape: Shape = "chain" if degrees.virtual == 1 else "loop"
        found = estimate_spec(pipeline.model_copy(update={"placement": pipeline.placement.model_copy(update={
            "cut": cut, "shapes": (shape,), "chunks": degrees.virtual})}), shape)
        found = _as_grid(found, degrees, count, space.links.device)
        note = (f"{degrees.title}: {degrees.gpus} GPUs, of each stage one of {degrees.of_stage}; a batch of "
                f"{space.batch} sequences, {found.micro_batches} micro-batches of {degrees.micro_batch} for each "
                f"of {degrees.data} replicas; a step takes about {grid.estimate * 1e3:.0f} ms and at least "
                f"{grid.bound * 1e3:.0f} ms, its end included, whatever cut and order; weft solve says what "
                "it takes")
        others = [f"{other.degrees.title}: about {other.estimate * 1e3:.0f} ms" for other in grids if other is not grid]
        notes = [note, *([f"of {len(grids)} grids listed also " + "; ".join(others[:3])] if others else []),
                 "weights are all that a GPU always holds: parameters, gradients and optimizer states, as far as they "
                 "are not divided"]
        report = EstimateReport(replace(found, notes=(*notes, *found.notes)))
        if report.fits:
            break
    assert report is not None  # waves raise without a grid
    return report


def _as_grid(found: Estimate, degrees: Degrees, count: Mapping[str, int], device: DeviceType) -> Estimate:
    """``found``, whose costs are modelled, with its layers' parameters by name and, with chunks, the micro-batches in
    flight of interleaved 1F1B: a rank runs (virtual - 1) p + 2 (p - 1 - rank) forwards ahead, p of a chunk in turn
    (Narayanan et al., 2021), and one more."""
    p, v = degrees.pipeline, degrees.virtual
    stages = tuple(replace(stage, parameters=sum(count[name] for name in stage.layers), time_origin={"modelled": 1.0})
                   for stage in found.stages)
    notes = (f"times on {device.name} are modelled (roofline, and rings by tiers): {device.origin}",
             *(note for note in found.notes if note != GIVEN))
    found = replace(found, memory_origin="modelled", transfer_origin="modelled", notes=notes)
    if v == 1:
        return replace(found, stages=stages)
    ahead = [min((v - 1) * p + 2 * (p - 1 - rank) + 1, v * found.micro_batches) for rank in range(p)]
    stages = tuple(replace(stage, in_flight=sum(k % (p * v) // p == stage.stage // p
                                                for k in range(ahead[stage.device]))) for stage in stages)
    devices = tuple(replace(device, activations=sum(stage.activation * stage.in_flight for stage in stages
                                                    if stage.device == device.device)) for device in found.devices)
    return replace(found, stages=stages, devices=devices,
                   notes=tuple(note for note in found.notes if "in flight (1F1B) do not fit" not in note))


def _span(layers: tuple[str, ...]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} .. {layers[-1]} ({len(layers)})"


def _summarised(rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """``rows``; if there are many, the range of each numeric column, without texts that differ."""
    if len(rows) <= _MOST_ROWS:
        return rows

    def at(column: Sequence[Any], share: float) -> Any:
        if isinstance(column[0], str):
            return column[0] if len(set(column)) == 1 else ""
        return sorted(column)[round(share * (len(column) - 1))]

    return [(name, *(at(column, share) for column in list(zip(*rows, strict=True))[1:]))
            for name, share in (("min", 0.0), ("med", 0.5), ("max", 1.0))]


def _origins(shares: Mapping[str, float]) -> str:
    if len(shares) == 1:
        return next(iter(shares))
    return ", ".join(f"{origin} {share:.0%}" for origin, share in shares.items())
