"""Which stages wait for which: what is behind a stage, sets that no path leaves and comes back to, orders to run in."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from weft.models.communication.program import CommunicationError, Program, Stage

__all__ = ["detour", "followers", "in_order", "is_needed"]


def followers(program: Program, stage: str) -> tuple[str, ...]:
    """The stages that read what ``stage`` makes."""
    return tuple(dict.fromkeys(reader for name in program.by_name[stage].outputs for reader in program.readers[name]))


def is_needed(program: Program, stage: str) -> bool:
    """Whether some output, or something carried to the next step, depends on ``stage``."""
    return any(program.kept.intersection(program.by_name[name].outputs) for name in _behind(program, [stage], ()))


def detour(program: Program, stages: Collection[str]) -> tuple[str, str, str] | None:
    """A path that leaves ``stages`` and comes back: where it leaves, a stage outside on it, where it comes back.

    ``None`` where there is none: the set is convex, and can be one stage.
    """
    for stage in (stage.name for stage in program.stages if stage.name in stages):
        for outside in followers(program, stage):
            if outside in stages:
                continue
            for name in _behind(program, [outside], stages):
                back = [reader for reader in followers(program, name) if reader in stages]
                if back:
                    return stage, name, back[0]
    return None


def _behind(program: Program, stages: Iterable[str], around: Collection[str]) -> list[str]:
    """``stages`` and all that wait for them over stages that are not in ``around``."""
    found = dict.fromkeys(stages)
    rest = list(found)
    while rest:
        for name in followers(program, rest.pop()):
            if name not in found and name not in around:
                found[name] = None
                rest.append(name)
    return list(found)


def in_order(program: Program) -> list[Stage]:
    """The stages so that a chain in chunks stands together, behind all that it reads from outside.

    Raises :class:`~weft.models.communication.program.CommunicationError` for two chains that wait for each other.
    """
    units = {name: overlap.stages for overlap in program.overlaps for name in overlap.stages}
    known = {name for name, tensor in program.tensors.items() if tensor.source != "stage"}
    rest, done = list(program.stages), list[Stage]()

    def ready(stage: Stage) -> bool:
        unit = [program.by_name[name] for name in units.get(stage.name, (stage.name,))]
        made = {name for one in unit for name in one.outputs}
        return all(name in known or name in made for one in unit for name in one.inputs)

    while rest:
        stage = next((stage for stage in rest if ready(stage)), None)
        if stage is None:
            names = [entry.name for entry in rest if entry.name in units]
            raise CommunicationError(f"the chains in chunks wait for each other: {', '.join(map(repr, names))}: run "
                                     "one of them whole")
        for name in units.get(stage.name, (stage.name,)):
            found = program.by_name[name]
            rest.remove(found)
            known.update(found.outputs)
            done.append(found)
    return done
