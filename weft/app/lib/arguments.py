"""Arguments of public functions as shell options: their help, and the conversion of text to values."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeAlias, TypeVar

from weft.app.lib.sources import MicroBatches, PathLike, Source

if TYPE_CHECKING:
    from weft.solver.problem import Number
    from weft.solver.schedule import Schedule

#: Larger numbers are meaningless and would overflow: seconds (thirty years), threads and processes, micro-batches (no
#: schedule may have more operations, :data:`weft.solver.step.search.MAX_OPERATIONS`), other counts.
_LONG, _WORKERS, _MICRO_BATCHES, _MANY = 1e9, 256, 2_000_000, 10**15

Given = ParamSpec("Given")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

#: Groups of options in a command's help.
KINDS, LIMITS = "several jobs, or micro-batches that differ", "search and output"


@dataclass(frozen=True, slots=True)
class Option:
    """The annotation in ``Annotated`` of an argument that is also a shell option.

    ``help``: its text, to which a meaningful default is added. ``metavar``: the placeholder of the value. ``parse``
    converts text to the value, and raises ``ValueError`` with the end of a sentence. ``flags``, separated by spaces,
    replace ``--`` and the name. ``times``: ``"append"`` if the option may be repeated, ``"+"`` if several values
    follow. ``default``: of a keyword declared in a ``TypedDict``. Options with the same ``apart`` are mutually
    exclusive.
    """

    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] = str
    flags: str = ""
    choices: Sequence[str] | None = None
    times: str = ""
    default: Any = None
    group: str = ""
    apart: str = ""


def taking(asked: Callable[Given, Asked]) -> Callable[[Callable[[Asked], Answer]], Callable[Given, Answer]]:
    """A decorator: the function is called with the fields of the dataclass ``asked`` and receives one instance."""
    def decorate(function: Callable[[Asked], Answer]) -> Callable[Given, Answer]:
        @functools.wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
            return function(asked(*args, **kwargs))

        asked.__init__.__qualname__ = function.__name__  # in errors
        call.asked = asked  # type: ignore[attr-defined]
        call.__signature__ = plain(inspect.signature(asked).replace(  # type: ignore[attr-defined]
            return_annotation=function.__annotations__["return"]))
        return call

    return decorate


def plain(signature: inspect.Signature) -> inspect.Signature:
    """``signature`` as Python shows it: with plain types, without an :class:`Option` or a constant of a file."""
    return signature.replace(parameters=[parameter.replace(annotation=re.sub(
        r"^Annotated\[(.*?), (Option\(|_[A-Z]+\]).*$", r"\1", str(parameter.annotation)))
        for parameter in signature.parameters.values()])


# -- values: each raises ValueError with the end of a sentence begun by the command line -- ------------------------


def positive(text: str) -> float:
    """A finite number greater than 0, such as seconds."""
    value = _number(text, float)
    if not 0 < value <= _LONG:
        raise ValueError(f"is {text}, it must be a number greater than 0 and at most {_LONG:.0e}")
    return value


def share(text: str) -> float:
    """A finite number of 0 or more."""
    value = _number(text, float)
    if not 0 <= value <= _LONG:
        raise ValueError(f"is {text}, it must be a number of 0 or more and at most {_LONG:.0e}")
    return value


def count(text: str, most: int = _MANY) -> int:
    """A whole number of at least 1."""
    value = int(_number(text, int))
    if not 1 <= value <= most:
        raise ValueError(f"is {text}, it must be a whole number of at least 1"
                         + ("" if value < 1 else f" and at most {most}"))
    return value


def micro_batches(text: str) -> int:
    """The number of micro-batches."""
    return count(text, _MICRO_BATCHES)


def micro_batches_of_any(text: str) -> MicroBatches:
    """The number of micro-batches, for each job or class if there are any."""
    return counted(text) if {",", "=", "*"} & set(text) else micro_batches(text)


def counted(text: str) -> MicroBatches:
    """``"8"``, ``"short,long,long"``, ``"a=8,b=4"`` or ``"a=short/long,b=4"``; ``"4*short,2*long"`` repeats.

    Raises ``ValueError`` for other texts.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"is {text!r}, it must be a number, classes between commas, or job=number between commas")
    if not any("=" in part for part in parts):
        return _counted(parts)
    found: dict[str, int | list[str]] = {}
    for part in parts:
        job, equals, value = (piece.strip() for piece in part.partition("="))
        if not (job and equals and value) or job in found:
            raise ValueError(f"is {text!r}: {part!r} must be job=number, each job once")
        found[job] = _counted([piece.strip() for piece in value.split("/")])
    return found


def degrees_of(text: str) -> dict[str, Any]:
    """``tensor=8,data=auto`` as a mapping, with numbers and booleans converted; ``auto`` alone: none. Raises
    ``ValueError``."""
    found: dict[str, Any] = {}
    for part in [] if text.strip() == "auto" else text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value or name in found:
            raise ValueError(f"{text!r:.80} is no list such as tensor=8,pipeline=4,data=auto")
        found[name] = int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)
    return found


def ratio_of(text: str) -> dict[str, int]:
    """``"a=2,b=1"``. Raises ``ValueError`` for other texts."""
    found = counted(text)
    if not isinstance(found, dict) or not all(isinstance(share, int) for share in found.values()):
        raise ValueError(f"is {text!r}, it must be job=number between commas, as a=2,b=1")
    return {job: share for job, share in found.items() if isinstance(share, int)}


def _counted(parts: list[str]) -> int | list[str]:
    if len(parts) == 1 and parts[0].lstrip("+-").isdecimal():
        return micro_batches(parts[0])
    found: list[str] = []
    for part in parts:
        times, star, name = (piece.strip() for piece in part.partition("*"))
        if star and times.isdecimal() and name:
            if len(found) + int(times) > _MICRO_BATCHES:
                raise ValueError(f"lists more than {_MICRO_BATCHES} micro-batches")
            found += [name] * int(times)
        else:
            found.append(part)
    if not found:
        raise ValueError("lists no micro-batch")
    return found


def workers(text: str) -> int:
    """Threads or processes."""
    return count(text, _WORKERS)


def natural(text: str) -> int:
    """A whole number of at least 0, as a seed may be."""
    value = int(_number(text, int))
    if not 0 <= value < 2**31:
        raise ValueError(f"is {text}, it must be a whole number from 0 to {2**31 - 1}")
    return value


def texts(text: str) -> list[str]:
    """Values separated by commas."""
    return [part.strip() for part in text.split(",")]


def counts(text: str) -> list[int]:
    """Whole numbers of at least 1 separated by commas, such as micro-batches."""
    return [micro_batches(part) for part in texts(text)]


def counts_of_any(text: str) -> Sequence[int] | MicroBatches:
    """As :func:`counts`, or micro-batches of jobs or classes, which a sweep refuses with a better reason."""
    try:
        return counts(text)
    except ValueError:
        found = micro_batches_of_any(text)
        if isinstance(found, int) or any(part.lstrip("+-").isdecimal() for part in texts(text)):
            raise
        return found


def byte_size(text: str) -> int:
    """A size, such as 64MiB, in bytes; 0 or more."""
    from weft.models.spec.quantities import parse_bytes

    return _quantity(parse_bytes, text)


def memory(text: str) -> int:
    """A device's memory, such as 16GiB, in bytes."""
    from weft.models.spec.quantities import parse_memory

    return _quantity(parse_memory, text)


def _quantity(parse: Callable[[object], int], text: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"is {text!r}, {error}") from None


def _number(text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"is {text!r}, it must be {what}") from None


#: Arguments of several functions: the number of micro-batches, the source, and a schedule.
Counted: TypeAlias = Annotated[MicroBatches | None, Option(
    "number of micro-batches (default: as in the spec or schedule); with jobs a=N,b=N; if they differ, the class of "
    "each, as short,2*long", "N", micro_batches_of_any, "-n --micro-batches")]
Solved: TypeAlias = Annotated[Source, Option(
    "a model spec in YAML (`weft schema` prints what may stand in it) or a block problem (a .json file in the format "
    "weft.problem/1)", "SPEC")]
Scheduled: TypeAlias = Annotated["Schedule | PathLike", Option("a schedule file (weft.schedule/1)", "SCHEDULE")]
#: A floor of throughput.
Throughput: TypeAlias = Annotated["Number | str | None", Option(
    "lowest throughput, in micro-batches per time, as 12.5/s", "RATE", apart="floor")]
LongestPeriod: TypeAlias = Annotated["Number | str | None", Option(
    "longest time between two micro-batches, as 80ms", "TIME", apart="floor")]
#: The tools whose answers may be requested, as in :data:`weft.runtime.export.tools.TOOLS`.
TOOL_NAMES = ("megatron", "torchtitan", "pytorch", "deepspeed", "nnscaler")
ForTool: TypeAlias = Annotated[str | None, Option(
    "search only what this tool can run, timed in the order that it runs", choices=TOOL_NAMES, flags="--for")]
#: Options of many searches side by side.
Processes: TypeAlias = Annotated[int | None, Option("processes (default: one a core)", "N", workers)]
Cache: TypeAlias = Annotated[PathLike | bool | None, Option(
    "keep what is solved there (default: ~/.cache/weft)", "DIR", apart="cache")]
#: Permitted differences between the stages and the plan.
AllowUnsplit: TypeAlias = Annotated[bool, Option(
    "with --stages: go on where the plan splits a backward and the executor cannot split that module's")]
AllowOtherModel: TypeAlias = Annotated[bool, Option(
    "with --stages: go on where parameters, ties or the sizes of messages are not those that the plan was solved for")]
