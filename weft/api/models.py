"""What is known of a model: its operators, times and memory, before any schedule."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.app.lib.sources import PathLike

if TYPE_CHECKING:
    from torch.nn import Module

    from weft.app.estimate import EstimateReport
    from weft.models.graph.operators import OperatorGraph
    from weft.models.spec.spec import Spec
    from weft.models.times.measured_times import MeasuredTimes
    from weft.runtime.interface.training import Training
    from weft.runtime.measure.stage_costs import MeasuredStages

__all__ = ["capture", "estimate", "profile", "profile_stages", "schema"]


def estimate(source: PathLike | Spec, *, shape: str | None = None, gpus: int | None = None, device: str | None = None,
             micro_batch: int | None = None, sequence: int | None = None, batch: int | None = None) -> EstimateReport:
    """What each stage of a model spec holds, sends and costs, before any search, and whether it fits the GPUs.

    The stages are those of ``shape`` (``chain``, ``v``, ``loop``, and ``wave`` where the spec gives a cut; default the
    first that the spec allows) under 1F1B. Every number says its origin: measured, interpolated, modelled or given;
    modelled ones with their known error. Of a Hugging Face ``config.json`` say ``gpus`` and ``device``, and what else
    differs: sequences of ``sequence`` tokens (default 4096, or the most it was made for), in micro-batches of
    ``micro_batch`` (1) and steps of ``batch``; it is estimated as the shallowest pipelines that fit, and replicas of
    them on the GPUs left. ``str()`` is the table, ``.to_json()`` the numbers, ``.fits`` the verdict.

    Raises ``ValueError`` (``SpecError`` and its like) for a spec that means nothing or has no costs.
    """
    from weft.app.estimate import estimate_source

    return estimate_source(source, shape=shape, gpus=gpus, device=device, micro_batch=micro_batch, sequence=sequence,
                           batch=batch)


def capture(source: PathLike | Module, inputs: tuple[Any, ...] | None = None,
            keywords: Mapping[str, Any] | None = None) -> OperatorGraph:
    """The operators of a model: of a ``.pt2`` file of ``torch.export.save``, or of a module called with ``inputs``.

    Of a file nothing is unpickled and no code runs but torch's own on tensors without data; a module is exported with
    ``torch.export.export(source, inputs, keywords)``. ``notes`` of the result say what its numbers assume. Raises
    :class:`weft.models.capture.exported.ExportError`.
    """
    from weft.models.capture.capture import capture_file, capture_module

    if isinstance(source, str | os.PathLike):
        return capture_file(source)
    return capture_module(source, inputs or (), keywords)


def profile(model: PathLike, *, repeats: int = 7, device: str | None = None) -> MeasuredTimes:
    """Each distinct operator of a ``.pt2`` file timed alone on this device, forward and backward, with its memory.

    The model as a whole never runs; what would not fit is skipped and filled in, and the result says so. Raises
    :class:`weft.models.capture.exported.ExportError`.
    """
    from weft.app.profile.operators import profile_operators

    return profile_operators(model, repeats=repeats, device=device)


def profile_stages(stages: str | Training, *, repeats: int = 7, device: str | None = None,
                   ranks: int = 1) -> MeasuredStages:
    """Time and memory of F, B, I and W of every stage of a training, each stage run alone by the executor's own runner.

    ``stages`` is a :class:`weft.runtime.Training` with all stages, or ``FILE.py:FUNCTION`` that
      gives one. With ``ranks``, as many processes measure at once: on CPUs of one host ranks slow each other down,
      which is then in the figures. :func:`weft.runtime.measure.stage_costs.measured_problem` makes a problem of the
      result. Raises
    ``ValueError``.
    """
    from weft.app.profile.stages import profile_stages as measure

    return measure(stages, repeats=repeats, device=device, ranks=ranks)


#: What :func:`schema` knows.
SCHEMAS = ("spec", "problem", "schedule", "placement", "memory_plans", "placed_step")


def schema(of: str = "spec") -> Mapping[str, Any]:
    """The JSON Schema of a file: ``of`` is one of :data:`SCHEMAS`, a model spec by default.

    Raises ``ValueError`` for anything else.
    """
    if of not in SCHEMAS:
        raise ValueError(f"there is no schema of {of!r}, there are those of {', '.join(SCHEMAS)}")
    if of == "spec":
        from weft.models.spec.spec import spec_schema

        return spec_schema()
    if of in ("placement", "memory_plans", "placed_step"):
        from weft.app.place.schemas import PLACEMENT_SCHEMAS

        return PLACEMENT_SCHEMAS[f"weft.{of}/1"]
    from weft.solver.io.schemas import problem_schema, schedule_schema

    return problem_schema() if of == "problem" else schedule_schema()
