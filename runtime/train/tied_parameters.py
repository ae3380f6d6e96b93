"""Parameters common to several stages: tied ones, and objects that stages of a rank share.

Every parameter belongs to one *group*: the set of its stages. A plan has a REDUCE for each group, so the groups must be
known before its program is proven; shared objects are known only on their rank, so ranks exchange their knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan
from weft.runtime.ranks.session import Session, SessionError
from weft.runtime.train.parallel import is_sharded
from weft.runtime.train.sharding import is_divided, local_of


class HeldTies(NamedTuple):
    """One rank's knowledge of parameters of several stages: for each tie the stages, with those of this rank that share
    the object; and the stages of each object that no tie names."""

    ties: list[tuple[int, ...]]
    objects: list[tuple[int, ...]]


def holding(training: Training) -> HeldTies:
    """The knowledge of the rank with ``training``. Raises :class:`~weft.runtime.ranks.session.SessionError` for a tie
    that names a missing parameter."""
    holders = _holders(training)
    named = [set(_named(training, tie).values()) for tie in training.ties]
    return HeldTies([tuple(sorted(set(tie).union(*(holders.get(p, ()) for p in found))))
                     for tie, found in zip(training.ties, named, strict=True)],
                    [tuple(sorted(stages)) for parameter, stages in holders.items()
                     if len(stages) > 1 and not any(parameter in found for found in named)])


def shared_stages(found: Iterable[HeldTies]) -> list[tuple[int, ...]]:
    """The sets of stages that share parameters, from the knowledge of all ranks."""
    every = list(found)
    ties = [tuple(sorted({stage for stages in same for stage in stages}))
            for same in zip(*(each.ties for each in every), strict=True)]
    return sorted({*ties, *(stages for each in every for stages in each.objects)})


def _holders(training: Training) -> dict[nn.Parameter, set[int]]:
    """The stages of each trained parameter."""
    found: dict[nn.Parameter, set[int]] = {}
    for stage, module in training.stages.items():
        for parameter in module.parameters():
            if parameter.requires_grad:
                found.setdefault(parameter, set()).add(stage)
    return found


def _named(training: Training, tie: Mapping[int, str]) -> dict[int, nn.Parameter]:
    """The parameters of this rank that ``tie`` names, by stage."""
    found = {}
    for stage in sorted(set(tie) & set(training.stages)):
        named = dict(training.stages[stage].named_parameters(remove_duplicate=False))
        if tie[stage] not in named:
            raise SessionError(f"ties name the parameter {tie[stage]!r} of stage {stage}, whose module has "
                               f"{', '.join(named) or 'none'}")
        found[stage] = named[tie[stage]]
    return found


class Tie(NamedTuple):
    """The parameters of this rank in one tie; those whose gradients are summed; the ranks over which (none if each sums
    its own); whether this rank counts it in the norm; and its stages."""

    parameters: tuple[nn.Parameter, ...]
    added: tuple[nn.Parameter, ...]
    ranks: tuple[int, ...]
    counted: bool
    stages: tuple[int, ...]


class TiedParameters:
    """The ties in rank ``session.rank``'s part of ``plan``, for ``training``.

    ``ties`` are those of :attr:`~weft.runtime.interface.training.Training.ties` with a parameter on this rank;
    ``groups`` has, for each trainable parameter of this rank, its stages; ``shared`` are the groups of several stages,
    on any rank; ``spans`` the sets of ranks whose gradients are summed. All ranks make theirs together. Raises
    :class:`~weft.runtime.ranks.session.SessionError` for invalid ties.
    """

    def __init__(self, plan: Plan, session: Session, training: Training) -> None:
        self.ranks, self.rank, self.training = plan.stage_groups or (), session.rank, training
        self._require_plain()
        named = [_named(training, tie) for tie in training.ties]
        self._require_one_tie_each(named)
        everyone = session.exchange(holding(training), "comparing shared parameters")
        self.shared = shared_stages(everyone)
        held = [tuple(sorted({stage for each in everyone for stage in each.ties[i]}))
                for i in range(len(training.ties))]
        spans = [self._span(tie) for tie in training.ties]
        self.spans = [ranks for ranks, split in spans if split]
        self.ties = [self._tie(*facts) for facts in zip(training.ties, named, spans, held, strict=True) if facts[1]]
        tied = {parameter: tie.stages for tie in self.ties for parameter in tie.parameters}
        self.groups = {parameter: tied.get(parameter, tuple(sorted(stages)))
                       for parameter, stages in _holders(training).items()}

    def _require_plain(self) -> None:
        seen: set[tuple[int, str]] = set()
        for tie in self.training.ties:
            if len(tie) < 2:
                raise SessionError(f"the tie {dict(tie)} must name a parameter of at least two stages")
            for stage, name in tie.items():
                if not 0 <= stage < len(self.ranks):
                    raise SessionError(f"ties name stage {stage}, but there are the stages 0 to {len(self.ranks) - 1}")
                if (stage, name) in seen:
                    raise SessionError(f"two ties name {name!r} of stage {stage}: make them one")
                seen.add((stage, name))

    def _require_one_tie_each(self, named: Sequence[Mapping[int, nn.Parameter]]) -> None:
        first: dict[nn.Parameter, int] = {}
        for number, found in enumerate(named):
            for stage, parameter in found.items():
                if first.setdefault(parameter, number) != number:
                    raise SessionError(f"{dict(self.training.ties[first[parameter]])} and "
                                       f"{dict(self.training.ties[number])} tie one parameter object, that of stage "
                                       f"{stage}: make them one tie")

    def _span(self, tie: Mapping[int, str]) -> tuple[tuple[int, ...], bool]:
        """The ranks of the parameters of ``tie``, and whether they differ from stage to stage."""
        ranks = {self.ranks[stage] for stage in tie}
        return tuple(sorted({rank for group in ranks for rank in group})), len(ranks) > 1

    def _tie(self, tie: Mapping[int, str], named: Mapping[int, nn.Parameter], span: tuple[tuple[int, ...], bool],
             stages: tuple[int, ...]) -> Tie:
        ranks, split = span
        found = list(named.values())
        groups: dict[nn.Parameter, tuple[int, ...]] = {}
        for stage, parameter in named.items():
            if split and is_sharded(parameter):
                raise SessionError(f"ties name {tie[stage]!r} of stage {stage}, which is sharded: it can only be tied "
                                   "to parameters on the same ranks, share by share")
            if groups.setdefault(parameter, self.ranks[stage]) != self.ranks[stage]:
                raise SessionError(f"{tie[stage]!r} of stage {stage} is the same parameter object in stages on "
                                   "different ranks: give each stage its own, the tie keeps them equal")
            if not torch.equal(local_of(found[0]), local_of(parameter)):
                raise SessionError(f"tied parameters begin with different values: {dict(tie)}")
        added = tuple(p for p, group in groups.items() if not split or group[0] == self.rank)
        return Tie(tuple(groups), added, ranks if split else (),
                   counted=self.rank == self.ranks[min(tie)][0] or (not split and is_sharded(found[0])), stages=stages)


def require_equal_starts(session: Session, training: Training) -> None:
    """Rank 0 compares checksums of all parameters that must begin equal: ties, replicas, copies on a stage's ranks."""
    sums: dict[str, tuple[float, float]] = {}
    for stage, module in training.stages.items():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            share = (f" on rank {session.rank}" if is_sharded(parameter) else
                     f" of peer {session.peer}" if is_divided(parameter) else "")
            sums[f"{name!r} of stage {stage}{share}"] = _checksum(local_of(parameter))
    found = session.gather(sums)
    if found is None:
        return
    known: dict[str, tuple[float, float]] = {}
    for process, each in enumerate(found):
        for name, value in each.items():
            if known.setdefault(name, value) != value:
                raise SessionError(f"the parameter {name} begins with other values on process {process} than "
                                   "on one before: give all the same, or mark it with weft.runtime.sharded")
    for tie in training.ties:
        values = {known.get(f"{name!r} of stage {stage}") for stage, name in tie.items()} - {None}
        if len(values) > 1:
            raise SessionError(f"tied parameters begin with different values: {dict(tie)}")


def _checksum(parameter: Tensor) -> tuple[float, float]:
    wide = parameter.detach().double().reshape(-1)
    return float(wide.sum()), float(torch.linalg.vector_norm(wide))
