"""The stages of a traced model: their modules, inputs and outputs, under the names that the executor uses.

:func:`checked` runs the stages in sequence in one process, and compares results and gradients with the plain model's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from weft.runtime.by_modules.calls import copy_of
from weft.runtime.by_modules.stage import ModuleStage
from weft.runtime.by_modules.traced import TensorName, Traced, argument_name
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.cut import BATCH
from weft.runtime.captured.division import StageModules
from weft.runtime.captured.errors import raised_at
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.interface.training import Ports


class ModuleCut:
    """The stages of ``captured``, which begin at the submodules of its trace; see
    :class:`weft.runtime.captured.division.ModelDivision`."""

    def __init__(self, captured: Traced) -> None:
        self.captured, self.count, self.places = captured, len(captured.entries), ()
        self.takes: list[list[str]] = []  # received from other stages
        self.gives: list[list[str]] = [[] for _ in range(self.count)]
        for s, entry in enumerate(captured.entries):
            arguments = [argument_name(str(entry.at), first) for first in dict.fromkeys(entry.arguments.values())]
            self.takes.append([*arguments, *sorted(entry.values)])
            if s:
                self.gives[s - 1].extend(arguments)
            for name, producer in sorted(entry.values.items()):
                if name not in self.gives[producer]:
                    self.gives[producer].append(name)
        self.gives[-1] = [leaf for leaf in captured.results if isinstance(leaf, TensorName)]

    @cached_property
    def parameters(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """The trained parameters of each stage."""
        by_stage: list[dict[int, nn.Parameter]] = []
        for entry in self.captured.entries:
            own = {id(p): p for module in entry.modules.values() for p in module.parameters()}
            by_stage.append({**own, **entry.parameters})
        return tuple(tuple(p for p in each.values() if p.requires_grad) for each in by_stage)

    def tensors(self, s: int) -> list[Tensor]:
        """The parameters and buffers of the submodules that stage ``s`` runs, and others that it reads."""
        entry = self.captured.entries[s]
        own = [t for module in entry.modules.values() for t in (*module.parameters(), *module.buffers())]
        return list({id(t): t for t in (*own, *entry.parameters.values())}.values())

    def stages(self, only: Sequence[int] | None = None, plain: bool = False) -> StageModules[ModuleStage]:
        """The modules of all stages, or of those in ``only``, with the ports and boundaries of all. ``plain``: random
        numbers come from torch's generators, without seeds."""
        ports = {s: Ports((*self.takes[s], *(BATCH + self.captured.inputs[i].name for i in self._inputs(s))),
                          tuple(self.gives[s])) for s in range(self.count)}
        modules = {s: ModuleStage(self.captured, s, self.takes[s], self._inputs(s), self.gives[s], plain)
                   for s in (range(self.count) if only is None else only)}
        boundaries = {name: self.captured.boundaries[name] for names in self.takes for name in names}
        untrained = frozenset(name for s, names in enumerate(self.gives[:-1]) for name in names
                              if not any(self.parameters[:s + 1]))
        return StageModules(modules, ports, boundaries, self.captured.results, untrained)

    def doubtful(self, results: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """See :meth:`~weft.runtime.captured.division.ModelDivision.doubtful`: all values, as the dependencies inside
        submodules are unknown."""
        return frozenset(), frozenset(name for names in self.gives[:-1] for name in names)

    def ties(self) -> list[dict[int, str]]:
        """The trained parameters of several stages: for each, its name there by stage."""
        names: dict[int, dict[int, str]] = {}
        for s, entry in enumerate(self.captured.entries):
            mine = {id(p): f"{path}.{name}" for path, module in entry.modules.items()
                    for name, p in module.named_parameters() if p.requires_grad}
            mine.update((key, self.captured.names[key]) for key, p in entry.parameters.items()
                        if p.requires_grad and key not in mine)
            for key, name in mine.items():
                names.setdefault(key, {})[s] = name
        return [tied for tied in names.values() if len(tied) > 1]

    def spans(self) -> tuple[tuple[str, str], ...]:
        """The first and the last submodule that each stage runs."""
        return tuple((next(iter(entry.modules), entry.at or "the inputs"), next(reversed(entry.modules), "the results"))
                     for entry in self.captured.entries)

    def _inputs(self, s: int) -> list[int]:
        return [i for i in sorted(self.captured.entries[s].inputs) if isinstance(self.captured.in_leaves[i], Tensor)]


#: The allowed relative error between two orders of summation: a dtype's epsilon to this power.
TOLERANCE = 0.6


def checked(cut: ModuleCut) -> dict[str, Tensor]:
    """Run the stages of ``cut`` on its example; returns the values that pass between them, by name.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if results or gradients of the stages differ from the
    model's.
    """
    traced = cut.captured
    args, kwargs = tree_unflatten(list(traced.in_leaves), traced.in_spec)
    model, stages = copy_of(traced.model), cut.stages(plain=True)  # each with its own attributes
    with preserved_state(traced.model):
        try:
            plain = [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]
            _backward(plain)
        except Exception as error:  # the user's code may raise anything
            raise CaptureError(f"{type(traced.model).__name__} cannot be trained on the example: {raised_at(error)}"
                               ) from error
        expected = _gradients(traced.model)
    with preserved_state(traced.model):
        values, results = _run_stages(cut, stages)
        actual = _gradients(traced.model)
    for i, (one, other) in enumerate(zip(plain, results, strict=True)):
        _require_close(f"the result {i}", one.detach(), other, float(one.detach().double().norm()))
    largest = max((float(g.double().norm()) for g in expected.values()), default=0.0)
    for name in {**expected, **actual}:
        if name not in expected or name not in actual:
            if (name in expected and not expected[name].any()) or (name in actual and not actual[name].any()):
                continue
            raise _mismatch(f"the gradient of {name!r}")
        _require_close(f"the gradient of {name!r}", expected[name], actual[name], largest)
    return values


def _run_stages(cut: ModuleCut, stages: StageModules[ModuleStage]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """One forward and backward of all stages: the values that pass between them, and the results; parameters get their
    gradients."""
    traced = cut.captured
    values = {BATCH + item.name: leaf for item, leaf in zip(traced.inputs, traced.in_leaves, strict=True)
              if isinstance(leaf, Tensor)}
    runs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    for s, module in stages.modules.items():
        xs = [_received(values[name], name) for name in stages.ports[s].takes]
        ys = list(module(*xs))
        runs[s] = xs, ys
        if s < cut.count - 1:
            values.update(zip(stages.ports[s].gives, (y.detach() for y in ys), strict=True))
    gradients: dict[str, Tensor] = {}
    for s in reversed(runs):
        xs, ys = runs[s]
        if s == cut.count - 1:
            _backward(ys)
        else:
            _back([(y, gradients.get(name)) for name, y in zip(stages.ports[s].gives, ys, strict=True)])
        for name, x in zip(stages.ports[s].takes, xs, strict=True):
            if x.grad is not None:
                gradients[name] = gradients[name] + x.grad if name in gradients else x.grad
    return {name: value for name, value in values.items() if not name.startswith(BATCH)}, [
        y.detach() for y in runs[cut.count - 1][1]]


def _received(value: Tensor, name: str) -> Tensor:
    """``value`` as the executor passes it to a stage: detached."""
    x = value.detach()
    return x.requires_grad_() if not name.startswith(BATCH) and (x.is_floating_point() or x.is_complex()) else x


def _backward(results: Sequence[Tensor]) -> None:
    """Backward from all results, with gradients whose elements differ."""
    _back([(y, torch.cos(torch.arange(y.numel(), device=y.device)).reshape(y.shape).to(y.dtype)) for y in results])


def _back(ends: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    pairs = [(y, gradient) for y, gradient in ends if y.requires_grad and gradient is not None]
    if pairs:
        torch.autograd.backward([y for y, _ in pairs], [gradient for _, gradient in pairs])


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _require_close(what: str, one: Tensor, other: Tensor, scale: float) -> None:
    if one.shape != other.shape or one.dtype != other.dtype:
        raise _mismatch(what)
    if torch.equal(one, other) or not (one.is_floating_point() or one.is_complex()):
        if not torch.equal(one, other):
            raise _mismatch(what)
        return
    wide: Callable[[Tensor], Tensor] = lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64)  # noqa: E731
    finite = torch.isfinite(one)
    error = float((wide(one) - wide(other))[finite].norm())
    if not torch.equal(finite, torch.isfinite(other)) or error > torch.finfo(one.dtype).eps ** TOLERANCE * scale:
        raise _mismatch(what)


def _mismatch(what: str) -> CaptureError:
    return CaptureError(f"split: cut so, {what} is not that of the plain model: something passes between submodules "
                        "by another way than tensors that are given, read or returned (an attribute, a random number "
                        "of another library, a checkpoint with use_reentrant=True: give False); or cut elsewhere")
