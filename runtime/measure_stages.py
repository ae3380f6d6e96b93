"""What each stage of a training costs on this device: the time of F, B, I and W, and the memory each takes and frees.

A stage is run as the executor runs it, by :class:`~runtime.stage.StageRunner`, alone and with random gradients. The
memory of a pass is the change of what is allocated from before its input is there until its results have been handed
on: so a pass pays for its input and output only where the stage keeps them. ``peak`` counts them, and what the pass
needs meanwhile. Parameter gradients are there from the start, as they are from the second micro-batch on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from runtime.measure import Sample, Timer, available_bytes, memory_of, single_threaded
from runtime.stage import StageRunner
from runtime.stage_costs import MODES, MeasureError, PassCost, StageCosts
from runtime.training import Boundary, Training

__all__ = ["measure_stages"]

#: Share of the free memory that a stage may be expected to need before it is skipped.
SAFE = 0.8


def measure_stages(training: Training, *, device: torch.device | None = None, repeats: int = 7) -> list[StageCosts]:
    """The costs of all stages of ``training``, which holds every stage of a chain.

    Stages are measured one after another, and one that is built like an earlier one is not measured again;
    ``training.stages`` may be any mapping, so one that builds a stage when it is asked never has the whole model in
    memory. Medians are over ``repeats`` micro-batches. Raises :class:`MeasureError` for a training that is no such
    chain.
    """
    where = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = len(training.stages)
    if training.ports is not None:
        raise MeasureError("the training has ports, so its stages are a graph; only those of a chain are measured")
    if sorted(training.stages) != list(range(count)) or len(training.boundaries) != count - 1:
        raise MeasureError(f"the training must hold all stages 0 to n-1 and n-1 boundaries, it holds the stages "
                           f"{sorted(training.stages)} and {len(training.boundaries)} boundaries")
    if training.loss is None or training.targets is None:
        raise MeasureError("the training has no loss or no targets, so its last stage has no backward to measure")
    found: list[StageCosts] = []
    likenesses: dict[Any, int] = {}
    with single_threaded():
        for s in range(count):
            module = training.stages[s].to(where)
            likeness = _likeness(training, s, module)
            first = likenesses.setdefault(likeness, s)
            if first == s:
                found.append(_measure_stage(training, s, module, where, repeats))
            else:
                twin = found[first]
                found.append(StageCosts(s, twin.parameter_bytes, twin.buffer_bytes, twin.output_bytes, twin.passes,
                                        first, twin.skipped))
            del module
    return found


def _measure_stage(training: Training, s: int, module: nn.Module, device: torch.device, repeats: int) -> StageCosts:
    stage = _Stage(training, s, module, device)
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    buffers = sum(b.numel() * b.element_size() for b in module.buffers())
    need, free = parameters + stage.foreseen(), available_bytes(device)
    if need > SAFE * free:
        return StageCosts(s, parameters, buffers, stage.output_bytes, skipped=(
            f"needs about {need} bytes beside its weights, {free} are free"))
    passes = {mode: stage.measure(mode, repeats) for mode in MODES}
    for parameter in module.parameters():
        parameter.grad = None
    return StageCosts(s, parameters, buffers, stage.output_bytes, passes)


class _Stage:
    """One stage with what it is fed."""

    def __init__(self, training: Training, s: int, module: nn.Module, device: torch.device) -> None:
        assert training.loss is not None and training.targets is not None
        self.module, self.device, self.first = module, device, s == 0
        boundaries = _boundaries(training)
        self.source = None if s == 0 else boundaries[s - 1]
        self.sink = None if s == len(boundaries) else boundaries[s]
        self._data = training.inputs(0, 0) if s == 0 else None
        self._target = None if self.sink is not None else training.targets(0, 0).to(device)
        self._loss = training.loss
        self.output_bytes = 0 if self.sink is None else _size(self.sink.shape, self.sink.dtype)

    def input(self) -> Tensor:
        """A new input, as if it had just arrived."""
        if self._data is not None:
            return torch.as_tensor(self._data).to(self.device, copy=True)
        assert self.source is not None
        return torch.randn(self.source.shape, dtype=self.source.dtype, device=self.device)

    def gradient(self) -> Tensor:
        """A new gradient of the output; 1 where the stage gives a loss."""
        if self.sink is None:
            return torch.ones((), device=self.device)
        return torch.randn(self.sink.shape, dtype=self.sink.dtype, device=self.device)

    def loss(self, y: Tensor) -> Tensor:
        return self._loss(y, self._target)  # type: ignore[arg-type]

    def foreseen(self) -> int:
        """Bytes that a forward will keep and a backward need beside them, from shapes alone, on the safe side."""
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            place = tensor.untyped_storage()
            kept[place._cdata] = place.nbytes()
            return tensor

        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode, saved_tensors_hooks(keep, lambda tensor: tensor):
            x = self.input()
            y = self.module(x.requires_grad_() if x.is_floating_point() else x)
            y = y if self.sink is not None else self.loss(y)
        return sum(kept.values()) + 4 * max([self.output_bytes, *kept.values()])

    def measure(self, mode: str, repeats: int) -> dict[str, PassCost]:
        """Every pass of one kind of backward."""
        function = self.module if self.sink is not None else lambda x: self.loss(self.module(x))
        runner = StageRunner(self.module, function=function, split=mode == "split", constant=(0,) if self.first else ())
        try:
            for run in self._passes(runner, mode).values():  # gradients are made, kernels chosen
                run()
            memories = {letter: memory_of(run, self.device)[1] for letter, run in self._passes(runner, mode).items()}
            laps: dict[str, list[float]] = {letter: [] for letter in MODES[mode]}
            timer = Timer(self.device)
            gc.disable()
            for _ in range(repeats):
                for letter, run in self._timed(runner, mode):
                    laps[letter].append(timer.lap(run)[1])
        finally:
            gc.enable()
            runner.close()
        return {letter: PassCost(Sample.of(laps[letter]), memories[letter]) for letter in MODES[mode]}

    def _passes(self, runner: StageRunner, mode: str) -> dict[str, Callable[[], None]]:
        """The passes in order; each makes what it is given, and drops what it gives."""
        def forward() -> None:
            runner.forward(0, self.input())

        def backward() -> None:
            runner.backward(0, self.gradient())

        def input_grad() -> None:
            runner.input_grad(0, self.gradient())

        def weight_grad() -> None:
            runner.weight_grad(0)

        every = {"F": forward, "B": backward, "I": input_grad, "W": weight_grad}
        return {letter: every[letter] for letter in MODES[mode]}

    def _timed(self, runner: StageRunner, mode: str) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The same with what they are given made beforehand."""
        x = self.input()
        yield "F", lambda: runner.forward(0, x)
        gradient = self.gradient()
        if mode == "full":
            yield "B", lambda: runner.backward(0, gradient)
        else:
            yield "I", lambda: runner.input_grad(0, gradient)
            yield "W", lambda: runner.weight_grad(0)


def _likeness(training: Training, s: int, module: nn.Module) -> Any:
    """Equal for stages that run the same kernels on the same sizes: same modules, same settings, same boundaries."""
    def settings(part: nn.Module) -> Any:
        plain = {key: value for key, value in vars(part).items() if isinstance(value, int | float | str | bool | None)}
        own = [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in part.named_parameters(recurse=False)]
        return type(part), part.extra_repr(), sorted(plain.items(), key=lambda item: item[0]), own

    boundaries = _boundaries(training)
    last = len(boundaries)
    return (repr([(name, settings(part)) for name, part in module.named_modules()]), s == 0, s == last,
            None if s == 0 else boundaries[s - 1], None if s == last else boundaries[s])


def _boundaries(training: Training) -> Sequence[Boundary]:
    assert not isinstance(training.boundaries, Mapping)
    return training.boundaries


def _size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return size
