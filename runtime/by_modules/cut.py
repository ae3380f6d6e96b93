"""A traced model as stages: what they take from and give to each other, with the names that the executor uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from weft.runtime.by_modules.stage import ModuleStage
from weft.runtime.by_modules.traced import Made, Traced, argument_name
from weft.runtime.captured.cut import BATCH
from weft.runtime.interface.training import Boundary, Ports

__all__ = ["ModuleCut", "ModuleStages"]


@dataclass(frozen=True)
class ModuleStages:
    """See :class:`weft.runtime.captured.division.Parts`."""

    modules: Mapping[int, ModuleStage]
    ports: Mapping[int, Ports]
    boundaries: Mapping[str, Boundary]
    results: tuple[Any, ...]
    untrained: frozenset[str]


class ModuleCut:
    """The stages of ``captured``, which begin at the submodules that it was traced for; see
    :class:`weft.runtime.captured.division.Division`."""

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
        self.gives[-1] = [leaf for leaf in captured.results if isinstance(leaf, Made)]

    @cached_property
    def parameters(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """The trained parameters that each stage holds."""
        found: list[dict[int, nn.Parameter]] = []
        for entry in self.captured.entries:
            own = {id(p): p for module in entry.modules.values() for p in module.parameters()}
            found.append({**own, **entry.parameters})
        return tuple(tuple(p for p in each.values() if p.requires_grad) for each in found)

    def tensors(self, s: int) -> list[Tensor]:
        """The parameters and buffers of the submodules that stage ``s`` runs, and what it reads beside them."""
        entry = self.captured.entries[s]
        held = [t for module in entry.modules.values() for t in (*module.parameters(), *module.buffers())]
        return list({id(t): t for t in (*held, *entry.parameters.values())}.values())

    def stages(self, only: Sequence[int] | None = None, plain: bool = False) -> ModuleStages:
        """The modules of all stages, or of those in ``only``; ports and boundaries are those of all. ``plain``: random
        numbers come from torch's generators as they are."""
        ports = {s: Ports((*self.takes[s], *(BATCH + self.captured.inputs[i].name for i in self._inputs(s))),
                          tuple(self.gives[s])) for s in range(self.count)}
        modules = {s: ModuleStage(self.captured, s, self.takes[s], self._inputs(s), self.gives[s], plain)
                   for s in (range(self.count) if only is None else only)}
        boundaries = {name: self.captured.looks[name] for names in self.takes for name in names}
        untrained = frozenset(name for s, names in enumerate(self.gives[:-1]) for name in names
                              if not any(self.parameters[:s + 1]))
        return ModuleStages(modules, ports, boundaries, self.captured.results, untrained)

    def ties(self) -> list[dict[int, str]]:
        """The trained parameters that several stages hold: by stage, the name that each has there."""
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
