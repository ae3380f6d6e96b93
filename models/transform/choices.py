"""The open decisions of a plan: alternatives of which a search takes one, and unplaced operators.

A plan's calls are recorded, so that each combination of decisions is the plan rebuilt with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from weft.models.transform import transformations
from weft.models.transform.planned import Planned
from weft.models.transform.program import PlanError, PlanProgram

Transformation: TypeAlias = Callable[[Planned], Planned]
#: A split, several of them, a custom transformation, or nothing.
SplitOption: TypeAlias = tuple[str, int] | Sequence[tuple[str, int]] | Transformation | None


@dataclass(frozen=True)
class OneOf:
    """Devices of which a search takes one, or one group."""

    options: tuple[tuple[int, ...], ...]


def one_of(*options: int | Iterable[int]) -> OneOf:
    """Leave the devices of operators to the search: ``plan.assign("head", one_of(0, 3, (0, 1, 2, 3)))``.

    Raises :class:`~weft.models.transform.program.PlanError` for less than two.
    """
    for option in options:
        if not isinstance(option, int) and not (isinstance(option, Iterable) and not isinstance(option, str)):
            raise PlanError(f"one_of: {option!r} is no device; give whole numbers, or groups of them")
    found = tuple(dict.fromkeys((option,) if isinstance(option, int) else tuple(option) for option in options))
    if () in found:
        raise PlanError("one_of: a group has no devices")
    if len(found) < 2:
        raise PlanError("one_of: a search chooses between two devices or groups at least")
    return OneOf(found)


@dataclass(frozen=True)
class PlanChoice:
    """``options`` by their titles: the effect of each on a plan."""

    name: str
    options: Mapping[str, Transformation]

    def first(self, planned: Planned) -> Planned:
        """The first applicable option. Raises the last one's exception if none is applicable."""
        for i, transformation in enumerate(self.options.values()):
            try:
                return transformation(planned)
            except PlanError:
                if i + 1 == len(self.options):
                    raise
        raise PlanError(f"the choice {self.name!r} has no options")


@dataclass(frozen=True)
class Variant:
    """A plan with all open decisions made: the option of each choice."""

    options: Mapping[str, str]
    planned: Planned

    @property
    def title(self) -> str:
        """``choice: option`` of each."""
        return "; ".join(f"{name}: {option}" for name, option in self.options.items()) or "as written"


@dataclass(frozen=True)
class Refused:
    """Options that give no valid plan together, and the reason."""

    options: Mapping[str, str]
    reason: str


def variants(program: PlanProgram, calls: Sequence[Transformation | PlanChoice]) -> Iterator[Variant | Refused]:
    """Every combination of one option of each choice."""
    choices = [call for call in calls if isinstance(call, PlanChoice)]
    for titles in itertools.product(*(choice.options for choice in choices)):
        options = dict(zip((choice.name for choice in choices), titles, strict=True))
        planned = Planned(program)
        try:
            for call in calls:
                planned = call.options[options[call.name]](planned) if isinstance(call, PlanChoice) else call(planned)
        except PlanError as error:
            yield Refused(options, str(error))
            continue
        yield Variant(options, planned)


def unassigned(planned: Planned) -> tuple[str, ...]:
    """The operators without a device, and without a followed operator that has one."""
    operations = planned.program.by_name
    return tuple(name for name, operation in operations.items() if name not in planned.devices
                 and (operation.follows is None or operation.follows not in operations))


def choice_of_devices(operators: str, devices: OneOf) -> PlanChoice:
    """Of the devices of operators."""
    def put(where: tuple[int, ...]) -> Transformation:
        return lambda planned: transformations.assign(planned, operators, where)

    return PlanChoice(f"devices of {operators}", {_numbers(where): put(where) for where in devices.options})


def choice_of_splits(operators: str, options: Sequence[SplitOption]) -> PlanChoice:
    """Of the splits of operators; ``None``: unsplit.

    Raises :class:`~weft.models.transform.program.PlanError` for less than two options.
    """
    def made(option: SplitOption) -> tuple[str, Transformation]:
        if option is None:
            return "whole", lambda planned: planned
        if callable(option):
            return getattr(option, "__name__", "own"), option
        several = option if isinstance(option, Sequence) and not isinstance(option, str) else ()
        cuts = cast("list[tuple[str, int]]", [option] if several and isinstance(several[0], str) else list(several))
        if not cuts or any(not isinstance(cut, Sequence) or isinstance(cut, str) or len(cut) != 2 for cut in cuts):
            raise PlanError(f"{operators}: the option {option!r} is no split; give (name, parts), a list of such, a "
                            "function, or None")

        def split(planned: Planned) -> Planned:
            for along, parts in cuts:
                planned = transformations.split(planned, operators, along, parts)
            return planned

        return " ".join(f"{along} in {parts}" for along, parts in cuts), split

    found = dict(map(made, options))
    if len(found) < 2:
        raise PlanError(f"{operators}: a choice is between two different options at least")
    return PlanChoice(f"split of {operators}", found)


def _numbers(devices: Sequence[int]) -> str:
    return ("device " if len(devices) == 1 else "devices ") + ", ".join(map(str, devices))
