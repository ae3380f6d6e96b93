"""``weft profile``: distinct operators of a captured model, or the stages of a training, timed on this device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from weft.models.capture.calls import Call
    from weft.models.times.measured_times import Figure, MeasuredOperator, MeasuredTimes
    from weft.runtime.interface.training import Training
    from weft.runtime.measure.stage_costs import MeasuredStages

__all__ = [
    "OperatorLine", "ProfileFault", "device_name", "load_stages", "profile_operators", "profile_stages", "stage_lines",
]

SAFE = 0.8  # share of the free memory that one operator may need


class OperatorLine:
    """Shows on standard error which operator is being timed, if that is a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()

    def __enter__(self) -> OperatorLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int, kind: str) -> None:
        """``done`` of ``total`` operators have been timed, one of ``kind`` is next."""
        if self._shown:
            print(f"\r\x1b[K{done}/{total} {kind}", end="", file=sys.stderr, flush=True)


class ProfileFault(ValueError):
    """What was to be profiled cannot be; the message names it and says why."""


def profile_operators(path: str | os.PathLike[str], *, repeats: int = 7, device: str | None = None,
                      on_progress: Callable[[int, int, str], None] = lambda done, total, kind: None) -> MeasuredTimes:
    """Every distinct operator of a ``.pt2`` file, run alone on random tensors; the model as a whole never is.

    An operator that would not fit, or that torch cannot run, is filled in from the others, and the result says so.
    Ctrl-C ends the measuring; what is left is filled in. ``on_progress`` is told how many of how many are done.
    """
    import torch

    from weft.models.capture.calls import follow
    from weft.models.capture.capture import operator_graph
    from weft.models.capture.exported_file import read_exported
    from weft.models.capture.trials import distinct_calls, shapes_text
    from weft.models.times.measured_times import MeasuredOperator, MeasuredTimes
    from weft.runtime.measure.measure import single_threaded

    where = _device(device)
    exported = read_exported(path)
    graph = operator_graph(exported)
    distinct = distinct_calls(follow(exported), set(graph.by_name))
    entries: list[MeasuredOperator] = []
    stopped = False
    with single_threaded():
        for i, (call, names) in enumerate(distinct):
            try:
                if not stopped:
                    on_progress(i, len(distinct), call.kind)
                entry = _timed(call, names, where, repeats) if not stopped else MeasuredOperator(
                    call.kind, shapes_text(call), names, note="interrupted before it was run")
            except KeyboardInterrupt:
                stopped = True
                entry = MeasuredOperator(call.kind, shapes_text(call), names, note="interrupted before it was run")
            entries.append(entry)
    return MeasuredTimes(exported.name, device_name(where), torch.__version__, tuple(entries)).filled_in(graph)


def _timed(call: Call, names: tuple[str, ...], device: torch.device, repeats: int) -> MeasuredOperator:
    """One operator's entry, with a note instead of figures where it could not be run."""
    from weft.models.capture.trials import Trial, shapes_text
    from weft.models.times.measured_times import MeasuredOperator
    from weft.runtime.measure.measure import available_bytes

    empty = MeasuredOperator(call.kind, shapes_text(call), names)
    if call.function is None:
        return _with(empty, note=call.problem)
    need, free = Trial.needed_bytes(call), available_bytes(device)
    if need > SAFE * free:
        return _with(empty, note=f"needs about {need} bytes, {free} are free")
    try:
        return _with(empty, **_figures(Trial.of(call, device), device, repeats))
    except Exception as error:  # torch's own refusals are of many types
        first = (str(error) or "no message").splitlines()[0]
        return _with(empty, note=f"{type(error).__name__}: {first}")


def _figures(trial: Any, device: torch.device, repeats: int) -> dict[str, Figure]:
    import torch

    from weft.models.times.measured_times import Figure
    from weft.models.times.operator_times import Origin
    from weft.runtime.measure.measure import Sample, Timer, memory_of

    def seconds(laps: list[float]) -> Figure:
        sample = Sample.of(laps)
        return Figure(sample.seconds, Origin.MEASURED, sample.spread, sample.repeats)

    timer = Timer(device)
    outputs = [value for value in trial.prepare()() if value.requires_grad]  # kernels are chosen now
    gradients = [torch.randn_like(value) for value in outputs]
    laps: dict[str, list[float]] = {"forward": [], "part": [], "whole": []}
    parts = {"part": trial.towards(weights=False), "whole": trial.towards(weights=True)} if outputs else {}
    for i in range(-1, repeats):
        run = trial.prepare()
        outputs, lap = timer.lap(run)
        laps["forward"].append(lap)
        outputs = [value for value in outputs if value.requires_grad]
        for which, towards in parts.items():
            if towards:
                laps[which].append(timer.lap(lambda to=towards, ys=outputs: torch.autograd.grad(  # type: ignore[misc]
                    ys, to, gradients, retain_graph=True, allow_unused=True))[1])
        if i < 0:  # whatever was made at the first backward is there now
            laps = {which: [] for which in laps}
    found = {"forward": seconds(laps["forward"])}
    if laps["part"]:
        found["input_grad"] = seconds(laps["part"])
    if parts and len(parts["whole"]) > len(parts["part"]):
        # What a weight gradient adds: the parts share kernels where they are one, such as a norm's.
        whole = seconds(laps["whole"])
        rest = max(0.0, whole.value - (found["input_grad"].value if laps["part"] else 0.0))
        found["weight_grad"] = Figure(rest, Origin.MEASURED, whole.spread, whole.repeats)
    del outputs
    run = trial.prepare()
    ends, forward = memory_of(lambda: [value.grad_fn for value in run() if value.grad_fn is not None], device)
    found["saved"] = Figure(forward.change, Origin.MEASURED, repeats=1)
    peak = forward.peak
    del ends, run
    if parts:
        run = trial.prepare()
        outputs, _ = memory_of(run, device)
        outputs = [value for value in outputs if value.requires_grad]
        _, backward = memory_of(lambda: torch.autograd.grad(outputs, parts["whole"], gradients, allow_unused=True),
                                device)
        peak = max(peak, backward.peak)
    found["peak"] = Figure(peak, Origin.MEASURED, repeats=1)
    return found


def _with(entry: MeasuredOperator, **fields: Any) -> MeasuredOperator:
    from dataclasses import replace

    return replace(entry, **fields)


# -- stages ------------------------------------------------------------------------------------------------------------


def profile_stages(stages: str | Training, *, repeats: int = 7, device: str | None = None,
                   ranks: int = 1) -> MeasuredStages:
    """The stages of a training, or of the one that ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION`` gives.

    With more than one of ``ranks``, each is a process that measures while the others do.

    Raises :class:`ProfileFault` where it gives none, :class:`~weft.runtime.measure.stage_costs.MeasureError` for one
    that cannot be measured.
    """
    import torch

    from weft.app.profile.ranks import profile_together
    from weft.runtime.measure.measure_stages import measure_stages, measured_ties
    from weft.runtime.measure.stage_costs import MeasuredStages

    where = _device(device)
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
    """A table for people: seconds, spread and memory of every pass of every stage."""
    from weft.text.units import bytes_text, time_text

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
                yield (f"  {mode:5s} {letter}  {' '.join(time_text(run.time.seconds, 's')):>10s} "
                       f"(spread {run.time.spread:4.0%})  memory {'-' if run.memory.change < 0 else '+'}"
                       f"{bytes_text(abs(run.memory.change))}, at most {bytes_text(run.memory.peak)} at once")


def load_stages(stages: str) -> Training:
    """What the function named by ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION`` gives, called without arguments.

    Raises :class:`ProfileFault`.
    """
    from weft.runtime.interface.factory import FactoryError, load_factory

    try:
        return load_factory(stages)()
    except FactoryError as error:
        raise ProfileFault(str(error)) from error


def _device(name: str | None) -> torch.device:
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(name)
    except RuntimeError:
        raise ProfileFault(f"--device is {name!r}, it must be cpu or cuda") from None
    if found.type not in ("cpu", "cuda") or (found.type == "cuda" and not torch.cuda.is_available()):
        raise ProfileFault(f"--device is {name!r}, but torch here has no such device")
    return found


def device_name(device: torch.device) -> str:
    """What a file of figures calls it."""
    import platform

    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, 1 thread)"
