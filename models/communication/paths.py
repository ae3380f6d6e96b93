"""Which stages wait for which: ancestors, and sets of stages that no path leaves and comes back to."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from weft.models.communication.program import Program

__all__ = ["detour", "followers", "is_needed"]


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
