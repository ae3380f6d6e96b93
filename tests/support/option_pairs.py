"""Options that one command documents together, in rows such that every two of their values meet in one.

``RULES`` are the combinations that mean nothing. A row to which no rule applies runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

#: Of :data:`tests.support.kinds_of_input.KINDS`.
KINDS_OF_PAIRS = ("block", "classes", "layers")
_LIMITS = (("--effort 0.02", "--effort 0.01 --time-limit 3000", "--effort 0.02 --seed 3"),
           ("", "--json"))
_KINDS = (("", "--reorder"), ("", "--any-class"), ("{n}", "-n 4"))

#: Of each command, the values of each option; the empty text leaves it out, ``{n}`` says how many micro-batches run.
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "solve": (("", "--objective span", "--objective rate", "--objective latency --period 500s",
               "--objective latency --throughput 0.01"), ("", "--overlap auto"), *_KINDS, *_LIMITS),
    "compare": (("", "--objective span"), *_KINDS, *_LIMITS),
    "latency": (("--points 2", "--period 500s", "--throughput 0.01"), ("{n}", "-n 4"), *_LIMITS),
    "sweep": (("", "--memory 1x,2x", "--memory 3"), ("{n}", "-n 4", "-n 2,4"), ("", "--recompute both"),
              ("", "--shapes chain", "--chunks 1"), *_LIMITS),
}
_FIXED = {"sweep": "--no-cache --no-refine --workers 1"}


@dataclass(frozen=True)
class Rule:
    """What is refused: ``command`` with all of the ``options``, without any of ``without``, on an input of ``kinds``;
    ``words`` of the sentence."""

    words: str
    kinds: str
    command: str = ""
    options: str = ""
    without: str = ""

    def applies(self, kind: str, line: str) -> bool:
        """Whether the command ``line`` is refused on ``kind``."""
        return (kind in self.kinds.split() and line.startswith(self.command)
                and all(f" {option} " in f"{line} " for option in self.options.split(",") if option)
                and not any(f" {option} " in f"{line} " for option in self.without.split(",") if option))


_ALL = " ".join(KINDS_OF_PAIRS)
RULES: tuple[Rule, ...] = (
    Rule("reorder is for micro-batches that differ", "block layers", options="--reorder"),
    Rule("any-class is for micro-batches that differ", "block layers", options="--any-class"),
    Rule("overlap is for a model spec", "block classes", options="--overlap auto"),
    Rule("for which overlap is not searched", _ALL, options="--overlap auto,--objective latency"),
    Rule("a latency is of one micro-batch", "classes", "latency"),
    Rule("a latency is of one micro-batch", "classes", "solve", "--objective latency"),
    Rule("the order of micro-batches is searched for the least makespan", "classes",
         options="--objective span,--reorder", without="--any-class"),
    Rule("the class of each micro-batch is searched for the least makespan", "classes",
         options="--objective span,--any-class"),
    Rule("list the class of each", "classes", options="-n 4", without="--any-class"),
    Rule("give how many there are", "classes", options="--any-class", without="-n 4"),
    Rule("'rate' means nothing for so few rounds of 3 micro-batches", "classes", "solve", "--objective rate",
         without="--reorder,--any-class"),
    Rule("the order of micro-batches is searched for the least makespan", "classes",
         options="--objective rate,--reorder", without="--any-class"),
    Rule("the class of each micro-batch is searched for the least makespan", "classes",
         options="--objective rate,--any-class"),
    Rule("a sweep is of a model or of a block problem without", "classes", "sweep"),
    Rule("without a unit that is 3 bytes", "layers", "sweep", "--memory 3"),
    Rule("recompute cannot vary", "block", "sweep", "--recompute both"),
    Rule("shapes cannot vary", "block", "sweep", "--shapes chain"),
    Rule("chunks cannot vary", "block", "sweep", "--chunks 1"),
)


def reasons(kind: str, line: str) -> list[str]:
    """Words of the sentences, one of which refuses the command ``line`` on ``kind``; none where it runs."""
    return [rule.words for rule in RULES if rule.applies(kind, line)]


def pairwise(command: str, kind: str) -> Iterator[str]:
    """Command lines with ``{src}``: every two values of two options are in one of them, in one that runs if any does
    on an input of ``kind``."""
    options = COMMANDS[command]
    lines = {row: " ".join(filter(None, (command, "{src}", *row, _FIXED.get(command, ""), "--quiet")))
             for row in product(*options)}
    running = [row for row, line in lines.items() if not reasons(kind, line)]
    missing = {pair for row in lines for pair in _pairs(row)}
    for rows in (running, list(lines)):
        left = missing.intersection(pair for row in rows for pair in _pairs(row))
        missing -= left
        while left:
            best = max(rows, key=lambda row: len(left.intersection(_pairs(row))))
            left.difference_update(_pairs(best))
            yield lines[best]


def _pairs(row: Sequence[str]) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    return list(combinations(enumerate(row), 2))
