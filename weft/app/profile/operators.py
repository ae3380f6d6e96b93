"""``weft profile``: the distinct operators of a captured model, each timed alone on this device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.app.profile.targets import device_name, device_of
from weft.models.capture.calls import TracedCall, follow
from weft.models.capture.capture import operator_graph
from weft.models.capture.exported_file import read_exported
from weft.models.capture.trials import Trial, distinct_calls, shapes_text
from weft.models.times.measured_times import Figure, MeasuredOperator, MeasuredTimes
from weft.models.times.operator_times import Origin
from weft.runtime.measure.measure import Sample, Timer, available_bytes, memory_of, single_threaded

SAFE = 0.8  # share of the free memory that one operator may need


def profile_operators(path: str | os.PathLike[str], *, repeats: int = 7, device: str | None = None,
                      on_progress: Callable[[int, int, str], None] = lambda done, total, kind: None) -> MeasuredTimes:
    """Every distinct operator of a ``.pt2`` file, run alone on random tensors; the whole model is never run.

    The figures of an operator that would not fit, or that torch cannot run, are derived from the others, and the result
    says so. Ctrl-C ends the measurement; the remaining figures are derived. ``on_progress`` is called with the number
    done and the total.
    """
    where = device_of(device)
    exported = read_exported(path)
    graph = operator_graph(exported)
    distinct = distinct_calls(follow(exported), set(graph.by_name))
    entries: list[MeasuredOperator] = []
    stopped = False
    with single_threaded():
        for i, (call, names) in enumerate(distinct):
            entry = MeasuredOperator(call.kind, shapes_text(call), names, note="interrupted before it was run")
            with contextlib.suppress(KeyboardInterrupt):
                if not stopped:
                    stopped = True
                    on_progress(i, len(distinct), call.kind)
                    entry = _timed(call, replace(entry, note=""), where, repeats)
                    stopped = False
            entries.append(entry)
    return MeasuredTimes(exported.name, device_name(where), torch.__version__, tuple(entries)).filled_in(graph)


def _timed(call: TracedCall, empty: MeasuredOperator, device: torch.device, repeats: int) -> MeasuredOperator:
    """One operator's entry, with a note instead of figures if it could not be run."""
    if call.function is None:
        return replace(empty, note=call.problem)
    need, free = Trial.needed_bytes(call), available_bytes(device)
    if need > SAFE * free:
        return replace(empty, note=f"needs about {need} bytes, {free} are free")
    try:
        figures: dict[str, Any] = _figures(Trial.of(call, device), device, repeats)
        return replace(empty, **figures)
    except Exception as error:  # torch's own refusals are of many types
        first = (str(error) or "no message").splitlines()[0]
        return replace(empty, note=f"{type(error).__name__}: {first}")


def _figures(trial: Any, device: torch.device, repeats: int) -> dict[str, Figure]:
    """Times and memory of one operator, by the name of its field."""
    outputs = [value for value in trial.prepare()() if value.requires_grad]  # kernels are chosen now
    gradients = [torch.randn_like(value) for value in outputs]
    parts = {"part": trial.towards(weights=False), "whole": trial.towards(weights=True)} if outputs else {}
    del outputs
    return {**_times(trial, parts, gradients, device, repeats), **_memory(trial, parts, gradients, device)}


def _times(trial: Any, parts: Mapping[str, Any], gradients: Sequence[torch.Tensor], device: torch.device,
           repeats: int) -> dict[str, Figure]:
    """Seconds forward, and backward towards each of ``parts``."""
    def seconds(laps: list[float]) -> Figure:
        sample = Sample.of(laps)
        return Figure(sample.seconds, Origin.MEASURED, sample.spread, sample.repeats)

    timer = Timer(device)
    laps: dict[str, list[float]] = {"forward": [], "part": [], "whole": []}
    for i in range(-1, repeats):
        run = trial.prepare()
        outputs, lap = timer.lap(run)
        laps["forward"].append(lap)
        outputs = [value for value in outputs if value.requires_grad]
        for which, towards in parts.items():
            if towards:
                laps[which].append(timer.lap(lambda to=towards, ys=outputs: torch.autograd.grad(  # type: ignore[misc]
                    ys, to, gradients, retain_graph=True, allow_unused=True))[1])
        if i < 0:  # everything created by the first backward now exists
            laps = {which: [] for which in laps}
    found = {"forward": seconds(laps["forward"])}
    if laps["part"]:
        found["input_grad"] = seconds(laps["part"])
    if parts and len(parts["whole"]) > len(parts["part"]):
        # The additional time of a weight gradient: the parts may share kernels, such as a norm's.
        whole = seconds(laps["whole"])
        rest = max(0.0, whole.value - (found["input_grad"].value if laps["part"] else 0.0))
        found["weight_grad"] = Figure(rest, Origin.MEASURED, whole.spread, whole.repeats)
    return found


def _memory(trial: Any, parts: Mapping[str, Any], gradients: Sequence[torch.Tensor],
            device: torch.device) -> dict[str, Figure]:
    """Bytes kept for the backward, and the peak allocation of either pass."""
    run = trial.prepare()
    ends, forward = memory_of(lambda: [value.grad_fn for value in run() if value.grad_fn is not None], device)
    peak = forward.peak
    del ends, run
    if parts:
        run = trial.prepare()
        outputs, _ = memory_of(run, device)
        outputs = [value for value in outputs if value.requires_grad]
        _, backward = memory_of(lambda: torch.autograd.grad(outputs, parts["whole"], gradients, allow_unused=True),
                                device)
        peak = max(peak, backward.peak)
    return {"saved": Figure(forward.change, Origin.MEASURED, repeats=1),
            "peak": Figure(peak, Origin.MEASURED, repeats=1)}
