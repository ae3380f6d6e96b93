"""Arguments that several commands take, and the values that arguments may have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.app.lib.counted import counted, ratio_of
from weft.app.lib.options import SearchOptions
from weft.app.lib.sources import MicroBatches
from weft.solver.objectives import OBJECTIVES

#: Numbers beyond these mean nothing and overflow something: seconds (thirty years), threads and processes,
#: micro-batches (no schedule may have more operations, :data:`weft.solver.step.search.MAX_OPERATIONS`), what else is
#: counted.
_LONG, _WORKERS, _MICRO_BATCHES, _MANY = 1e9, 256, 2_000_000, 10**15

__all__ = ["add_allowed", "add_floor", "add_kinds", "add_objective", "add_repeatable", "add_schedule", "add_search",
           "add_spec", "byte_size", "count", "counts", "counts_of_any", "job_ratio", "memory", "micro_batches",
           "micro_batches_of_any", "natural", "positive", "search_options", "share", "texts", "workers"]

Value = TypeVar("Value")


def add_schedule(command: argparse.ArgumentParser) -> None:
    """A schedule file."""
    command.add_argument("schedule", metavar="SCHEDULE", help="a schedule file (weft.schedule/1)")


def add_allowed(command: argparse.ArgumentParser) -> None:
    """What of the stages may differ from the plan."""
    command.add_argument("--allow-unsplit", action="store_true", help="with --stages: go on where the plan splits a "
                         "backward and the executor cannot split that module's")
    command.add_argument("--allow-other-model", action="store_true", help="with --stages: go on where parameters, ties "
                         "or the sizes of messages are not those that the plan was solved for")


def add_spec(command: argparse.ArgumentParser) -> None:
    """A model spec or block problem, and how many micro-batches run."""
    command.add_argument("spec", metavar="SPEC", help="a model spec (.yaml) or a block problem (.json)")
    command.add_argument("-n", "--micro-batches", type=micro_batches_of_any, metavar="N",
                         help="number of micro-batches (default: as in the spec); with jobs a=N,b=N; if they differ, "
                              "the class of each, as short,2*long")


def add_kinds(command: argparse.ArgumentParser) -> None:
    """Options for micro-batches that differ."""
    differing = command.add_argument_group("several jobs, or micro-batches that differ")
    differing.add_argument("--reorder", action="store_true",
                           help="micro-batches that differ may run in any order")
    differing.add_argument("--any-class", action="store_true",
                           help="the search chooses the class of each micro-batch; -n gives their number")
    differing.add_argument("--ratio", type=job_ratio, metavar="A=P,B=Q",
                           help="micro-batches of each job in a round, which repeats (default: as few as can be)")


def add_search(command: argparse.ArgumentParser, time_limit: float) -> None:
    """What limits and repeats a search, and how it and its result are shown."""
    limits = command.add_argument_group("search and output")
    limits.add_argument("--time-limit", type=positive, default=time_limit, metavar="SECONDS",
                        help=f"end the search after this time (default: {time_limit:g})")
    add_repeatable(limits)
    limits.add_argument("--workers", type=workers, default=1, metavar="N", help="CP-SAT workers (default: 1)")
    limits.add_argument("--quiet", action="store_true", help="do not show progress")
    limits.add_argument("--json", action="store_true", help="print the result as JSON")


#: What each objective means, in the help of a command.
_MEANING = {"makespan": "the least time of a step", "span": "the least time until the next step can begin",
            "rate": "the least time per micro-batch of the steady state",
            "latency": "the least time of one micro-batch, under a floor of throughput"}


def add_objective(command: argparse.ArgumentParser, of: Sequence[str] = OBJECTIVES) -> None:
    """What a schedule is searched for."""
    command.add_argument("--objective", choices=of, default=of[0],
                         help="what to search for: " + "; ".join(f"{name}, {_MEANING[name]}" for name in of)
                              + f" (default: {of[0]})")


def add_floor(command: argparse.ArgumentParser) -> None:
    """A floor of throughput."""
    floor = command.add_mutually_exclusive_group()
    floor.add_argument("--throughput", metavar="RATE", help="lowest throughput, in micro-batches per time, as 12.5/s")
    floor.add_argument("--period", metavar="TIME", help="longest time between two micro-batches, as 80ms")


def search_options(options: argparse.Namespace) -> SearchOptions:
    """The values of the options that :func:`add_search`, :func:`add_objective` and :func:`add_kinds` have added."""
    return SearchOptions(options.time_limit, options.effort, options.seed, options.workers,
                         getattr(options, "objective", OBJECTIVES[0]), getattr(options, "reorder", False),
                         getattr(options, "any_class", False), getattr(options, "ratio", None))


def add_repeatable(command: argparse._ActionsContainer) -> None:
    """What makes a run repeat exactly."""
    command.add_argument("--effort", type=positive, metavar="SECONDS",
                         help="limit CP-SAT's deterministic time instead of the clock: the run repeats exactly")
    command.add_argument("--seed", type=natural, default=0, metavar="N", help="random seed (default: 0)")


# -- values: each raises ArgumentTypeError with the end of a sentence that argparse begins -------------------------


def positive(text: str) -> float:
    """A finite number greater than 0, such as seconds."""
    value = _number(text, float)
    if not 0 < value <= _LONG:
        raise argparse.ArgumentTypeError(f"is {text}, it must be a number greater than 0 and at most {_LONG:.0e}")
    return value


def share(text: str) -> float:
    """A finite number of 0 or more."""
    value = _number(text, float)
    if not 0 <= value <= _LONG:
        raise argparse.ArgumentTypeError(f"is {text}, it must be a number of 0 or more and at most {_LONG:.0e}")
    return value


def count(text: str, most: int = _MANY) -> int:
    """A whole number of at least 1."""
    value = int(_number(text, int))
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"is {text}, it must be a whole number of at least 1"
                                         + ("" if value < 1 else f" and at most {most}"))
    return value


def micro_batches(text: str) -> int:
    """How many micro-batches run."""
    return count(text, _MICRO_BATCHES)


def micro_batches_of_any(text: str) -> MicroBatches:
    """How many micro-batches run, of each job or class where there are some."""
    if not {",", "=", "*"} & set(text):
        return micro_batches(text)
    return _parsed(counted, text)


def job_ratio(text: str) -> dict[str, int]:
    """Micro-batches of each job in a round."""
    return _parsed(ratio_of, text)


def _parsed(parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def workers(text: str) -> int:
    """Threads or processes."""
    return count(text, _WORKERS)


def natural(text: str) -> int:
    """A whole number of at least 0, as a seed may be."""
    value = int(_number(text, int))
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"is {text}, it must be a whole number from 0 to {2**31 - 1}")
    return value


def texts(text: str) -> list[str]:
    """Values between commas."""
    return [part.strip() for part in text.split(",")]


def counts(text: str) -> list[int]:
    """Whole numbers of at least 1 between commas, as micro-batches."""
    return [micro_batches(part) for part in texts(text)]


def counts_of_any(text: str) -> Sequence[int] | MicroBatches:
    """As :func:`counts`, or micro-batches of jobs or classes, which a sweep refuses with a better reason."""
    try:
        return counts(text)
    except argparse.ArgumentTypeError:
        found = micro_batches_of_any(text)
        if isinstance(found, int) or any(part.lstrip("+-").isdecimal() for part in texts(text)):
            raise
        return found


def byte_size(text: str) -> int:
    """A size, such as 64MiB, in bytes; 0 or more."""
    from weft.models.spec.quantities import parse_bytes

    return _quantity(parse_bytes, text)


def memory(text: str) -> int:
    """What a device has, such as 16GiB, in bytes."""
    from weft.models.spec.quantities import parse_memory

    return _quantity(parse_memory, text)


def _quantity(parse: Callable[[object], int], text: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is {text!r}, {error}") from None


def _number(text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"is {text!r}, it must be {what}") from None
