"""The cost of each stage of a training on this device: the time of F, B, I and W, and the change and peak of memory.

A stage runs alone, as in the executor, by :class:`~weft.runtime.train.stage.StageRunner`, with random gradients. The
memory of a pass is the change in allocated bytes from before its input exists until its results have been passed on: so
it includes input and output only if the stage keeps them. ``peak`` includes both, and temporary memory. Parameter
gradients exist from the start, as they do from the second micro-batch on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weft.runtime.interface.training import Training
from weft.runtime.measure.measure import Sample, Timer, available_bytes, memory_of, single_threaded
from weft.runtime.measure.stage_costs import MODES, PassCost, StageCosts
from weft.runtime.measure.stage_feeds import Feed, feeds_of
from weft.runtime.train.stage import StageRunner, deferred_parameters

#: The share of available memory above which the estimated need of a stage is too large, so that it is skipped.
SAFE = 0.8
#: The most bytes swept between passes: more than any cache.
SWEPT = 512 * 2**20


def measure_stages(training: Training, *, device: torch.device | None = None, repeats: int = 7, held: int = 0,
                   begin: int = 0, only: Collection[int] | None = None,
                   slots: bool = False, modes: Mapping[str, str] = MODES) -> list[StageCosts]:
    """The costs of all stages of ``training``, or of those in ``only``. The training has all stages of a chain, or of a
    graph (then with ports).

    Stages are measured in sequence, from ``begin`` on and then from stage 0. A stage built like an earlier one is not
    measured again. ``training.stages`` may be a mapping that builds stages at lookup, so that the whole model is never
    in memory. Medians are over ``repeats`` micro-batches. ``held``: bytes of weights and gradients of a rank; between
    two passes of one stage, a rank runs its other stages, so the measurement sweeps as many bytes, or caches would be
    warmer than in a run. ``slots``: the inputs of a pass are in separate memory, as received messages are, and do not
    count as its memory. ``modes``: kinds of backward with their passes. Raises :class:`MeasureError` for an incomplete
    training.
    """
    where = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    feeds = feeds_of(training, where)
    count = len(training.stages)
    costs: dict[int, StageCosts] = {}
    measured: dict[Any, int] = {}
    with single_threaded():
        wanted = range(count) if only is None else sorted(only)
        for s in range(max(wanted, default=0) if only is not None else begin):
            feeds.record_outputs(s, training.stages[s].to(where))  # they are the inputs of later stages
        for s in (*(s for s in wanted if s >= begin), *(s for s in wanted if s < begin)):
            module = training.stages[s].to(where)
            feed = feeds.feed(s, module)
            first = measured.setdefault(repr((_signature(module), feed.likeness, feed.trains)), s)
            cost = (_measure_stage(feed, module, where, repeats, held, slots, modes) if first == s
                    else replace(costs[first], same_as=first))
            costs[s] = replace(cost, stage=s, takes=feed.takes, owes=feed.owes,
                               parameters=sum(p.numel() for p in module.parameters()), deferred=_deferred(module))
            del module, feed
    return [costs[s] for s in wanted]


def _deferred(module: nn.Module) -> int:
    """The number of parameters whose weight gradient is deferred to W."""
    return sum(p.numel() for p in deferred_parameters(module))


def measured_ties(training: Training) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The tied parameters of ``training``, which has all stages: the name in the first stage, and the stages of each.
    """
    tied = [(tie[min(tie)], tuple(sorted(tie))) for tie in training.ties]
    if not isinstance(training.stages, dict):  # modules are built at lookup, so shared parameters are unknown
        return tuple(tied)
    named = [{training.stages[s].get_parameter(name) for s, name in tie.items()} for tie in training.ties]
    holders: dict[nn.Parameter, dict[int, str]] = {}
    for stage, module in sorted(training.stages.items()):
        for name, parameter in module.named_parameters():
            holders.setdefault(parameter, {})[stage] = name
    return (*tied, *((stages[min(stages)], tuple(stages)) for parameter, stages in holders.items()
                     if len(stages) > 1 and parameter.requires_grad and not any(parameter in some for some in named)))


def _measure_stage(feed: Feed, module: nn.Module, device: torch.device, repeats: int, held: int,
                   slots: bool, modes: Mapping[str, str]) -> StageCosts:
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    trained = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    buffers = sum(b.numel() * b.element_size() for b in module.buffers())
    need, free = parameters + feed.kept_bytes, available_bytes(device)
    if need > SAFE * free:
        return StageCosts(0, parameters, buffers, feed.output_bytes, skipped=(
            f"needs about {need} bytes beside its weights, {free} are free"))
    stage = _Stage(feed, module, device)
    between = torch.zeros(min(SWEPT, max(0, held - 2 * parameters)), dtype=torch.uint8, device=device)
    passes = ({mode: stage.measure(mode, repeats, between, slots) for mode in modes} if feed.trains
              else dict.fromkeys(modes, stage.measure("full", repeats, between, slots)))
    for parameter in module.parameters():
        parameter.grad = None
    return StageCosts(0, parameters, buffers, feed.output_bytes, passes,
                      trained_bytes=trained if trained < parameters else None)


class _Stage:
    """One stage with its feed."""

    def __init__(self, feed: Feed, module: nn.Module, device: torch.device) -> None:
        self.feed, self.module, self.device = feed, module, device

    def measure(self, mode: str, repeats: int, between: Tensor, slots: bool) -> dict[str, PassCost]:
        """The cost of each pass of one kind of backward; a stage that does not train has the forward alone. ``between``
        is swept before each timed pass."""
        runner = StageRunner(self.module, function=self.feed.function, split=mode == "split",
                             constant=self.feed.constant)
        try:
            for _, run in self._passes(runner, mode, slots=False):  # warm-up: allocates gradients, selects kernels
                run()
            memories = {letter: memory_of(partial(_dropping, run), self.device)[1]
                        for letter, run in self._passes(runner, mode, slots)}
            laps: dict[str, list[float]] = {letter: [] for letter in memories}
            timer = Timer(self.device)
            gc.disable()
            for _ in range(repeats):
                for letter, run in self._passes(runner, mode, slots=True):
                    between.add_(1)
                    laps[letter].append(timer.lap(run)[1])
        finally:
            gc.enable()
            runner.close()
        return {letter: PassCost(Sample.of(laps[letter]), memory) for letter, memory in memories.items()}

    def _passes(self, runner: StageRunner, mode: str, slots: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The passes in order. With ``slots``, their inputs are allocated beforehand, otherwise within the pass."""
        def given(make: Callable[[], Any]) -> Callable[[], Any]:
            ready = make() if slots else None
            return make if ready is None else lambda: ready

        xs = given(self.feed.inputs)
        if not self.feed.trains:
            yield "F", lambda: runner.infer_of(0, *xs())
            return
        yield "F", lambda: runner.forward(0, *xs())
        gradients = given(self.feed.gradients)
        if mode == "full":
            yield "B", lambda: runner.backward(0, *gradients())
        else:
            yield "I", lambda: runner.input_grad(0, *gradients())
            yield "W", lambda: runner.weight_grad(0)


def _dropping(run: Callable[[], Any]) -> None:
    """Call ``run`` and drop its result."""
    run()


def _signature(module: nn.Module) -> Any:
    """A key that is equal for stages with the same modules and settings, which run the same kernels."""
    def settings(part: nn.Module) -> Any:
        plain = {key: value for key, value in vars(part).items() if isinstance(value, int | float | str | bool | None)}
        own = [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in part.named_parameters(recurse=False)]
        return type(part), part.extra_repr(), sorted(plain.items(), key=lambda item: item[0]), own

    return [(name, settings(part)) for name, part in module.named_modules()]
