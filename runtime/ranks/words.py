"""The status that each rank publishes in the rendezvous store, and the diagnosis of a fault from it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from torch.distributed.distributed_c10d import Store

SILENCE = 3.0  # a rank whose last status is this old counts as gone


class Word(NamedTuple):
    """A rank's status in the store: its activity, the ranks it waits for, and for how many seconds; the number and name
    of the last collective call; whether its script has ended; ``silent``: by rank, for how many seconds a rank that it
    waits for has published nothing, where that is long; a counter that changes. No time of day: machines' clocks
    differ."""

    text: str
    waits_for: tuple[int, ...] = ()
    spent: float = 0.0
    call: int = 0
    name: str = ""
    ended: bool = False
    silent: Mapping[str, float] = {}
    beat: int = 0


class Activity(NamedTuple):
    """An activity of a rank, and the processes without which it cannot go on."""

    text: str
    waits_for: tuple[int, ...] = ()


class Words:
    """Reads the other ranks' status in ``store``, and writes that of rank ``rank`` of ``world``."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self.heard: dict[int, tuple[Word, float]] = {}  # by rank waited for: its last new status, and when it was read

    def listen(self, others: Iterable[int]) -> None:
        """Note which of ``others`` have published a new status."""
        for other in others:
            word = self.word(other)
            if word is not None and (other not in self.heard or self.heard[other][0] != word):
                self.heard[other] = word, time.monotonic()

    def silence(self, other: int) -> float:
        """For how many seconds, on this rank's own clock, ``other`` has published nothing new."""
        return time.monotonic() - self.heard[other][1] if other in self.heard else 0.0

    def blame(self, now: Activity, spent: float) -> str:
        """What this rank did for too long, and what the rank at the end of the chain of waits is doing."""
        sentence = f"gave up after {spent:.1f} s of {now.text}"
        self.listen(now.waits_for)
        silent = {str(culprit): self.silence(culprit) for culprit in now.waits_for}
        for culprit in now.waits_for:  # a rank that is gone may have had the same activity
            if (word := self.word(culprit)) is not None and silent[str(culprit)] > SILENCE:
                return f"{sentence}; rank {culprit} was last heard of {silent[str(culprit)]:.1f} s ago, {word.text}"
        waiting, seen = now, {self.rank}
        while True:
            for culprit in waiting.waits_for:
                if (word := self.word(culprit)) is None:
                    return f"{sentence}; rank {culprit} was never heard of"
                if word.text != waiting.text:  # else it waits for the same others
                    break
            else:
                return sentence
            if (age := silent.get(str(culprit), 0.0)) > SILENCE:
                return f"{sentence}; rank {culprit} was last heard of {age:.1f} s ago, {word.text}"
            if not word.waits_for or culprit in seen:
                return f"{sentence}; rank {culprit} has been {word.text} for {word.spent:.1f} s"
            seen.add(culprit)
            waiting, silent = Activity(word.text, tuple(word.waits_for)), dict(word.silent)

    def apart(self, now: Activity, number: int, name: str, ended: bool) -> str | None:
        """The error where a rank that this one waits for made a call other than ``name`` as its call ``number``, if
        any."""
        for other in now.waits_for if number else ():
            word = self.word(other)
            if word is not None and word.call == number and word.name != name:
                if word.ended != ended:
                    over, goes_on, call = (other, self.rank, name) if word.ended else (self.rank, other, word.name)
                    return (f"rank {over}'s script has ended, at its last line or by sys.exit, where rank {goes_on} "
                            f"calls {call}, as call {number} of the pipeline: all ranks make the same calls")
                return (f"rank {self.rank} calls {name} where rank {other} calls {word.name}, as call {number} of the "
                        "pipeline: all ranks make the same calls, also at the end of the script, which is a close")
        return None

    def given_up(self) -> dict[str, object] | None:
        try:
            found = self.read("given up")
        except RuntimeError:
            return None
        return found if _is_cause(found, self.world) and found["rank"] != self.rank else None

    def word(self, rank: int) -> Word | None:
        """The last status of ``rank``."""
        found = self.read(f"now/{rank}")
        return Word(*found) if isinstance(found, list) else None

    def read(self, key: str) -> list | dict | None:  # type: ignore[type-arg]
        if not self.store.check([key]):
            return None
        with contextlib.suppress(ValueError):  # anything that reaches the store may write there: no rank's status
            value = json.loads(self.store.get(key))
            return value if isinstance(value, (list, dict)) else None
        return None

    def tell(self, key: str, value: object) -> None:
        try:
            self.store.set(key, json.dumps(value))
        except RuntimeError:
            return  # the store is gone: the others notice that themselves


def some(values: Sequence[object], most: int = 8) -> str:
    """The first of ``values``, and how many more there are."""
    return ", ".join(map(str, values[:most])) + (f" and {len(values) - most} more" if len(values) > most else "")


def _is_cause(found: object, world: int) -> TypeGuard[dict[str, object]]:
    """Whether ``found`` is a valid notice of rank failure: which rank of ``world``, why, and with which exit code. Any
    other value stops no rank."""
    return isinstance(found, dict) and isinstance(found.get("rank"), int) and 0 <= found["rank"] < world and (
        isinstance(found.get("why"), str) and bool(found["why"])) and isinstance(found.get("code"), int)
