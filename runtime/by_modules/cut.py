"""A traced model as stages: their inputs and outputs, with the names that the executor uses.

Stages one after another, in one process, compared with the plain model: the same results and the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from weft.runtime.by_modules.calls import copied
from weft.runtime.by_modules.stage import ModuleStage
from weft.runtime.by_modules.traced import TensorName, Traced, argument_name
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.cut import BATCH
from weft.runtime.captured.division import StageModules
from weft.runtime.captured.looks import untouched
from weft.runtime.captured.told import raised_at
from weft.runtime.interface.training import Ports


class ModuleCut:
    """The stages of ``captured``, which begin at the submodules of its trace; see
    :class:`weft.runtime.captured.division.ModelDivision`."""

    def __init__(self, captured: Traced) -> None:
        self.captured, self.count, self.places = captured, len(captured.entries), ()
        self.takes: list[list[str]] = []  # values of other stages
        self.gives: list[list[str]] = [[] for _ in range(self.count)]
        for s, entry in enumerate(captured.entries):
            arguments = [argument_name(str(entry.at), first) for first in dict.fromkeys(entry.arguments.values())]
            self.takes.append([*arguments, *sorted(entry.values)])
            if s:
                self.gives[s - 1].extend(arguments)
            for name, giver in sorted(entry.values.items()):
                if name not in self.gives[giver]:
                    self.gives[giver].append(name)
        self.gives[-1] = [leaf for leaf in captured.results if isinstance(leaf, TensorName)]

    @cached_property
    def parameters(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """The trained parameters of each stage."""
        found: list[dict[int, nn.Parameter]] = []
        for entry in self.captured.entries:
            own = {id(p): p for module in entry.modules.values() for p in module.parameters()}
            found.append({**own, **entry.parameters})
        return tuple(tuple(p for p in each.values() if p.requires_grad) for each in found)

    def tensors(self, s: int) -> list[Tensor]:
        """The parameters and buffers of the submodules that stage ``s`` runs, and others that it reads."""
        entry = self.captured.entries[s]
        held = [t for module in entry.modules.values() for t in (*module.parameters(), *module.buffers())]
        return list({id(t): t for t in (*held, *entry.parameters.values())}.values())

    def stages(self, only: Sequence[int] | None = None, plain: bool = False) -> StageModules[ModuleStage]:
        """The modules of all stages, or of those in ``only``; ports and boundaries are those of all. ``plain``: random
        numbers come from torch's generators without seeds."""
        ports = {s: Ports((*self.takes[s], *(BATCH + self.captured.inputs[i].name for i in self._inputs(s))),
                          tuple(self.gives[s])) for s in range(self.count)}
        modules = {s: ModuleStage(self.captured, s, self.takes[s], self._inputs(s), self.gives[s], plain)
                   for s in (range(self.count) if only is None else only)}
        boundaries = {name: self.captured.looks[name] for names in self.takes for name in names}
        untrained = frozenset(name for s, names in enumerate(self.gives[:-1]) for name in names
                              if not any(self.parameters[:s + 1]))
        return StageModules(modules, ports, boundaries, self.captured.results, untrained)

    def doubtful(self, results: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """See :meth:`~weft.runtime.captured.division.ModelDivision.doubtful`: not known of submodules."""
        return frozenset(), frozenset(name for names in self.gives[:-1] for name in names)

    def ties(self) -> list[dict[int, str]]:
        """The trained parameters of several stages: by stage, its name there."""
        held: dict[int, dict[int, str]] = {}
        for s, entry in enumerate(self.captured.entries):
            mine = {id(p): f"{path}.{name}" for path, module in entry.modules.items()
                    for name, p in module.named_parameters() if p.requires_grad}
            mine.update((key, self.captured.names[key]) for key, p in entry.parameters.items()
                        if p.requires_grad and key not in mine)
            for key, name in mine.items():
                held.setdefault(key, {})[s] = name
        return [names for names in held.values() if len(names) > 1]

    def spans(self) -> tuple[tuple[str, str], ...]:
        """The first and the last submodule that each stage runs."""
        return tuple((next(iter(entry.modules), entry.at or "the inputs"), next(reversed(entry.modules), "the results"))
                     for entry in self.captured.entries)

    def _inputs(self, s: int) -> list[int]:
        return [i for i in sorted(self.captured.entries[s].inputs) if isinstance(self.captured.in_leaves[i], Tensor)]


#: The power of a type's epsilon by which two sums of the same numbers may differ.
TOLERANCE = 0.6


def checked(cut: ModuleCut) -> dict[str, Tensor]:
    """The values that pass between the stages of ``cut`` in its example, by name.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if results or gradients of the stages differ from the
    model's.
    """
    traced = cut.captured
    args, kwargs = tree_unflatten(list(traced.in_leaves), traced.in_spec)
    model, stages = copied(traced.model), cut.stages(plain=True)  # each with its own attributes
    with untouched(traced.model):
        try:
            plain = [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]
            _backward(plain)
        except Exception as error:  # of the user's own code
            raise CaptureError(f"{type(traced.model).__name__} cannot be trained on the example: {raised_at(error)}"
                               ) from error
        wanted = _gradients(traced.model)
    with untouched(traced.model):
        values, results = _chained(cut, stages)
        found = _gradients(traced.model)
    for i, (one, other) in enumerate(zip(plain, results, strict=True)):
        _require_close(f"the result {i}", one.detach(), other, float(one.detach().double().norm()))
    largest = max((float(g.double().norm()) for g in wanted.values()), default=0.0)
    for name in {**wanted, **found}:
        if name not in wanted or name not in found:
            if (name in wanted and not wanted[name].any()) or (name in found and not found[name].any()):
                continue
            raise _other(f"the gradient of {name!r}")
        _require_close(f"the gradient of {name!r}", wanted[name], found[name], largest)
    return values


def _chained(cut: ModuleCut, stages: StageModules[ModuleStage]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The values that pass between the stages, and the results; parameters get their gradients."""
    traced = cut.captured
    values = {BATCH + item.name: leaf for item, leaf in zip(traced.inputs, traced.in_leaves, strict=True)
              if isinstance(leaf, Tensor)}
    runs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    for s, module in stages.modules.items():
        xs = [_entered(values[name], name) for name in stages.ports[s].takes]
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


def _entered(value: Tensor, name: str) -> Tensor:
    """The value as a stage of the executor gets it: detached."""
    x = value.detach()
    return x.requires_grad_() if not name.startswith(BATCH) and (x.is_floating_point() or x.is_complex()) else x


def _backward(results: Sequence[Tensor]) -> None:
    """Backward from all results, with gradients that are different everywhere."""
    _back([(y, torch.cos(torch.arange(y.numel(), device=y.device)).reshape(y.shape).to(y.dtype)) for y in results])


def _back(ends: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    led = [(y, gradient) for y, gradient in ends if y.requires_grad and gradient is not None]
    if led:
        torch.autograd.backward([y for y, _ in led], [gradient for _, gradient in led])


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _require_close(what: str, one: Tensor, other: Tensor, scale: float) -> None:
    if one.shape != other.shape or one.dtype != other.dtype:
        raise _other(what)
    if torch.equal(one, other) or not (one.is_floating_point() or one.is_complex()):
        if not torch.equal(one, other):
            raise _other(what)
        return
    wide: Callable[[Tensor], Tensor] = lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64)  # noqa: E731
    finite = torch.isfinite(one)
    error = float((wide(one) - wide(other))[finite].norm())
    if not torch.equal(finite, torch.isfinite(other)) or error > torch.finfo(one.dtype).eps ** TOLERANCE * scale:
        raise _other(what)


def _other(what: str) -> CaptureError:
    return CaptureError(f"split: cut so, {what} is not that of the plain model: something passes between submodules "
                        "by another way than tensors that are given, read or returned (an attribute, a random number "
                        "of another library, a checkpoint with use_reentrant=True: give False); or cut elsewhere")
