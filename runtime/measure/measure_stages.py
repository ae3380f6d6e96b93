"""The cost of each stage of a training on this device: the time of F, B, I and W, and the memory each takes and frees.

A stage is run as in the executor, by :class:`~weft.runtime.train.stage.StageRunner`, alone and with random gradients.
The memory of a pass is the change in allocated bytes from before its input exists until its results have been passed
on: so a pass pays for its input and output only where the stage keeps them. ``peak`` counts them, and the pass's
temporary memory. Parameter gradients exist from the start, as they do from the second micro-batch on.
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

#: Share of the free memory; a stage expected to need more is skipped.
SAFE = 0.8
#: Bytes after which no cache keeps its previous content.
SWEPT = 512 * 2**20


def measure_stages(training: Training, *, device: torch.device | None = None, repeats: int = 7, held: int = 0,
                   begin: int = 0, only: Collection[int] | None = None,
                   slots: bool = False, modes: Mapping[str, str] = MODES) -> list[StageCosts]:
    """The costs of all stages of ``training``, which has every stage of a chain, or of a graph (then with ports); or of
    those in ``only``.

    Stages are measured one after another, from stage ``begin`` on and then from stage 0, and a stage built like an
    earlier one is not measured again; ``training.stages`` may be any mapping, so one that builds stages at lookup never
    has the whole model in memory. Medians are over ``repeats`` micro-batches. ``held`` is the bytes of weights and
    gradients of a rank: between two passes of one stage a rank passes through those of its others, and so does the
    measurement, or the caches would be warmer than in a run. With ``slots`` the inputs of a pass lie in separate
    memory, as messages do, and do not count as its memory. ``modes``: kinds of backward with their passes. Raises
    :class:`MeasureError` for any other training.
    """
    where = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    feeds = feeds_of(training, where)
    count = len(training.stages)
    found: dict[int, StageCosts] = {}
    likenesses: dict[Any, int] = {}
    with single_threaded():
        wanted = range(count) if only is None else sorted(only)
        for s in range(max(wanted, default=0) if only is not None else begin):
            feeds.pass_by(s, training.stages[s].to(where))  # earlier stages make the inputs of a stage
        for s in (*(s for s in wanted if s >= begin), *(s for s in wanted if s < begin)):
            module = training.stages[s].to(where)
            feed = feeds.feed(s, module)
            first = likenesses.setdefault(repr((_likeness(module), feed.likeness, feed.trains)), s)
            cost = (_measure_stage(feed, module, where, repeats, held, slots, modes) if first == s
                    else replace(found[first], same_as=first))
            found[s] = replace(cost, stage=s, takes=feed.takes, owes=feed.owes,
                               parameters=sum(p.numel() for p in module.parameters()), deferred=_deferred(module))
            del module, feed
    return [found[s] for s in wanted]


def _deferred(module: nn.Module) -> int:
    """The number of parameters whose weight gradient waits for W."""
    return sum(p.numel() for p in deferred_parameters(module))


def measured_ties(training: Training) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The parameters that stages of ``training``, which has all, share: of each its name in the first of its stages,
    and these stages."""
    tied = [(tie[min(tie)], tuple(sorted(tie))) for tie in training.ties]
    if not isinstance(training.stages, dict):  # each module is made at its lookup
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
        """Every pass of one kind of backward, of a stage that does not train the forward; ``between`` is swept before
        each timed pass."""
        runner = StageRunner(self.module, function=self.feed.function, split=mode == "split",
                             constant=self.feed.constant)
        try:
            for _, run in self._passes(runner, mode, slots=False):  # allocates gradients, chooses kernels
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
        """The passes in order; their inputs are made beforehand with ``slots``, else within them."""
        def given(make: Callable[[], Any]) -> Callable[[], Any]:
            made = make() if slots else None
            return make if made is None else lambda: made

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
    """Run it, and drop its result."""
    run()


def _likeness(module: nn.Module) -> Any:
    """Equal for stages that run the same kernels on equal inputs: same modules, same settings."""
    def settings(part: nn.Module) -> Any:
        plain = {key: value for key, value in vars(part).items() if isinstance(value, int | float | str | bool | None)}
        own = [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in part.named_parameters(recurse=False)]
        return type(part), part.extra_repr(), sorted(plain.items(), key=lambda item: item[0]), own

    return [(name, settings(part)) for name, part in module.named_modules()]
