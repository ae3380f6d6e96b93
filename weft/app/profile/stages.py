"""``weft profile --stages``: the stages of a training run timed on this device, by one process or by several
concurrently."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.app.profile.ranks import profile_together
from weft.app.profile.targets import ProfileFault, device_name, device_of, load_stages
from weft.runtime.interface.training import Training
from weft.runtime.measure.measure_stages import measure_stages, measured_ties
from weft.runtime.measure.stage_costs import MeasuredStages
from weft.text.units import bytes_text, shown_time


def profile_stages(stages: str | Training, *, repeats: int = 7, device: str | None = None,
                   ranks: int = 1) -> MeasuredStages:
    """The stages of a training run, given or returned by ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``.

    With several ``ranks``, each is a process that measures concurrently with the others.

    Raises :class:`ProfileFault` if it returns none, :class:`~weft.runtime.measure.stage_costs.MeasureError` for one
    that cannot be measured.
    """
    where = device_of(device)
    if ranks < 1:
        raise ProfileFault(f"ranks is {ranks}, it must be at least 1")
    if ranks > 1:
        if not isinstance(stages, str):
            raise ProfileFault(f"{ranks} ranks that measure at once are processes of their own: name the stages as "
                               "FILE.py:FUNCTION or MODULE:FUNCTION")
        return profile_together(stages, ranks, repeats=repeats, device=where.type)
    training = load_stages(stages) if isinstance(stages, str) else stages
    return MeasuredStages(device_name(where), torch.__version__,
                          tuple(measure_stages(training, device=where, repeats=repeats)), measured_ties(training))


def stage_lines(measured: MeasuredStages) -> Iterator[str]:
    """A table of seconds, spread and memory of every pass of every stage."""
    yield f"{len(measured.stages)} stages on {measured.device}"
    for cost in measured.stages:
        alike = "" if cost.same_as is None else f" (built like stage {cost.same_as}, measured there)"
        yield f"stage {cost.stage}{alike}: weights {bytes_text(cost.parameter_bytes)}, hands on " + bytes_text(
            cost.output_bytes) + (f", {cost.deferred / cost.parameters:.0%} of the weights' gradients can wait for W"
                                  if cost.parameters and cost.deferred is not None else "")
        if cost.skipped is not None:
            yield f"  not measured: {cost.skipped}"
        for mode, passes in cost.passes.items():
            for letter, run in passes.items():
                yield (f"  {mode:5s} {letter}  {shown_time(run.time.seconds, 's'):>10s} "
                       f"(spread {run.time.spread:4.0%})  memory {'-' if run.memory.change < 0 else '+'}"
                       f"{bytes_text(abs(run.memory.change))}, at most {bytes_text(run.memory.peak)} at once")
