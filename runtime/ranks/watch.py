"""The watchdog: when one rank dies or hangs, every rank stops within a set time and says what it was doing.

Each rank reports its activity (:meth:`Watch.doing`). A thread publishes it in the rendezvous store, reads there whether
another rank gave up, and gives up itself when the rank has had one activity for longer than the timeout. Giving up is
``os._exit``: a rank that waits inside a communication library, or sleeps, cannot be stopped more gently. The sentence
on standard error names the rank, the instruction and the micro-batch, and the likely culprit
(:mod:`weft.runtime.ranks.words`): the rank that all others wait for, directly or through others.

The store lives in rank 0's process. If that process is stopped, or its host cut off, a call of the store never returns;
so a second thread, which does not use the store, ends the rank when the first has not come back in time.
"""
from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NoReturn

from torch.distributed.distributed_c10d import Store

from weft.runtime.ranks.words import SILENCE, Activity, Word, Words

__all__ = ["CLOSED", "Activity", "Unwatched", "Watch", "output_is_closed"]

BEAT = 0.2  # seconds between two polls of the watching thread
LEAVING = 0.005  # seconds between two polls of a leaving rank for the others
GRACE = 1.0  # seconds from losing the store to giving up: rank 0 may just have finished a little earlier
JOINING = 15.0  # seconds that ranks which have all arrived may take to connect, on a busy machine
CLOSED = 128 + signal.SIGPIPE  # exit code where the reader of the output has gone, as in shells
LOADING = 120.0  # seconds that anything may take until work begins: importing, building a model


class Watch:
    """Watches this rank's work, and the others', inside its ``with`` block. Where several threads do a rank's work,
    each reports its own activity, and none may keep one activity for longer than the timeout.

    A signal ends the rank, unless its own loop polls for signals (:meth:`heed`). ``store`` is a rendezvous store of
    this watch only (its thread blocks on it). ``timeout`` is in seconds, for one instruction or one wait; until
    :meth:`joined` it is :data:`JOINING`, if that is more, and from then until :meth:`begin` :data:`LOADING`, if that is
    more.
    """

    def __init__(self, store: Store, rank: int, world: int, timeout: float) -> None:
        self.store, self.rank, self.world, self.timeout = store, rank, world, timeout
        self.words = Words(store, rank, world)
        self._limit = max(timeout, JOINING)
        self.asked: int | None = None
        self._call = (0, "")  # number and name of the last call that all ranks make together
        self.ended = False  # whether the rank's script has come to its end, by itself or by sys.exit
        self._beat = 0
        self._handlers: dict[int, Any] | None = None  # the previous handlers; ``None``: signals end the rank
        # By thread, its activity and since when: one assignment, so other threads see both or neither.
        self._doing = {threading.get_ident(): (Activity("starting"), time.monotonic())}
        self._resting = Activity("starting")
        self._over = threading.Event()
        self._ending = threading.Lock()  # the first thread to give up reports; any other waits for the exit
        self._looked, self._done_looking = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="weft watch", daemon=True)
        self._second = threading.Thread(target=self._look_on, name="weft watch of the store", daemon=True)

    def __enter__(self) -> Watch:
        # SIGTERM (from torchrun, when another rank died) and Ctrl-C go to the watching thread: the main thread may sit
        # inside a library, where Python handlers do not run.
        if not _masks:  # several watches may run in one process
            _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS))
        _watching.append(self)
        self._thread.start()
        self._second.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._done_looking.set()
        for number, handler in (self._handlers or {}).items():
            signal.signal(number, handler)
        _watching.remove(self)
        if not _watching:
            signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())

    def finish(self) -> None:
        """All ranks have finished: peers may disappear from now on."""
        self._over.set()

    def joined(self) -> None:
        """All ranks have joined and now load their work, which may take longer than a wait."""
        self._limit = max(self.timeout, LOADING)

    def begin(self) -> None:
        """Loading is over: from now on the timeout applies."""
        self._limit = self.timeout

    def doing(self, text: str, waits_for: Iterable[int] = ()) -> None:
        """Report this rank's activity from now on; ``waits_for`` are the ranks it cannot go on without."""
        self.at(Activity(text, tuple(rank for rank in waits_for if rank != self.rank)))

    def at(self, activity: Activity) -> None:
        """The same, with an existing activity."""
        self._doing[threading.get_ident()] = activity, time.monotonic()

    def call(self, name: str) -> None:
        """This rank begins a collective call. If another rank's call of this number is not ``name``, the two would wait
        for each other, or take each other's messages: all ranks end."""
        self._call = self._call[0] + 1, name

    def leave(self) -> None:
        """In the last collective call: wait until all ranks are in it. Nothing is sent meanwhile that a busy rank could
        mistake for its own message, and the store stays until every rank has arrived."""
        self.doing("waiting for all ranks to finish", range(self.world))
        self.store.set(f"left/{self.rank}", "")
        while not self.store.check([f"left/{rank}" for rank in range(self.world)]):
            time.sleep(LEAVING)

    def rest(self, at: str = "waiting for its own lanes") -> None:
        """This thread waits for other threads of its rank, or is in ``at``, an activity of its own: it is not watched
        until it reports again; the others are."""
        self._resting = Activity(at)
        self._doing.pop(threading.get_ident(), None)

    @property
    def text(self) -> str:
        """This thread's activity; where it has none, the rank's longest-running activity."""
        mine = self._doing.get(threading.get_ident())
        return (mine or self._now)[0].text

    @property
    def _now(self) -> tuple[Activity, float]:
        """The rank's longest-running activity, and since when."""
        doing = list(self._doing.values())
        return min(doing, key=lambda one: one[1], default=(self._resting, time.monotonic()))

    def lost(self) -> str | None:
        """Which ranks are gone, where a library reports a broken connection but not whose: those whose status has not
        changed for :data:`SILENCE` seconds; ``None`` if all others still run. If a rank gave up in that time, this rank
        ends with that reason.
        """
        try:
            first = {rank: self.words.read(f"now/{rank}") for rank in range(self.world) if rank != self.rank}
            until = time.monotonic() + SILENCE
            while time.monotonic() < until:
                if self.words.given_up() is not None:
                    self.give_up("")
                time.sleep(BEAT)
            gone = [rank for rank, word in first.items() if self.words.read(f"now/{rank}") == word]
        except RuntimeError:
            return "lost rank 0 (and the rendezvous store with it)"
        if not gone:
            return None
        last = first[gone[0]]
        return (f"lost rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))}"
                + (f", last heard of {last[0]}," if isinstance(last, list) else ", never heard of,"))

    def give_up(self, why: str, code: int = 1) -> NoReturn:
        """Tell all ranks ``why``, and end this process with exit code ``code``."""
        self._ending.acquire()
        cause = self.words.given_up()
        if cause is None:
            cause = {"rank": self.rank, "why": why, "code": code}
            self.words.tell("given up", cause)
            self._say(f"weft: rank {self.rank}: {why}")
        elif cause["code"] != CLOSED:  # the user who closed the output of one rank knows why all end
            self._say(f"weft: rank {self.rank}: stopped while {self.text}, because rank {cause['rank']} gave up: "
                      f"{cause['why']}")
        if self.rank == 0:
            time.sleep(5 * BEAT)  # rank 0 may host the store: let the others read it
        os._exit(_failed(cause["code"]))

    def _look(self) -> None:
        while not self._over.is_set():
            now, since = self._now
            self._looked = time.monotonic()
            spent = self._looked - since
            try:
                self.say(now, spent)
                if self.words.given_up() is not None:
                    self.give_up("")
                if spent > BEAT and (why := self.words.apart(now, *self._call, self.ended)) is not None:
                    self.give_up(why, code=2)
                if spent > self._limit:
                    self.give_up(self.words.blame(now, spent))
            except RuntimeError:
                if not self._over.wait(GRACE):
                    self.give_up(f"lost the rendezvous store, so rank 0 is gone, while {now.text}")
            if received := _wait_for_signal(BEAT):
                self._hear(received)

    def say(self, now: Activity, spent: float) -> None:
        """Publish this rank's status in the store: it has been in ``now`` for ``spent`` seconds."""
        silent = {}
        if spent > BEAT:
            self.words.listen(now.waits_for)
            silent = {str(other): age for other in now.waits_for if (age := self.words.silence(other)) > SILENCE}
        self._beat += 1
        self.store.set(f"now/{self.rank}", json.dumps(
            Word(now.text, now.waits_for, spent, *self._call, self.ended, silent, self._beat)))

    def heed(self) -> None:
        """From now on the rank's own loop polls for signals: the first is only recorded, in :attr:`asked`."""
        if self._handlers is None:
            # A thread that began before this watch has no mask, and the signal may be delivered to it.
            self._handlers = {number: signal.signal(number, lambda came, frame: self._hear(came))
                              for number in _SIGNALS}

    def _hear(self, received: int) -> None:
        if self._handlers is not None and self.asked is None:
            self.asked = received
            return
        self.give_up(f"stopped by {signal.Signals(received).name} while {self.text}", 128 + received)

    def _look_on(self) -> None:
        """End this rank when a poll of the store has not returned; nothing here may call the store."""
        while not self._done_looking.wait(BEAT):
            silent = time.monotonic() - self._looked
            if silent > self._limit + SILENCE:
                self._say(f"weft: rank {self.rank}: gave up while {self.text}: the rendezvous store has not answered "
                          f"for {silent:.1f} s; it lives with rank 0")
                os._exit(1)

    @staticmethod
    def _say(sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader may have ended
            sys.stderr.write(sentence + "\n")
            sys.stderr.flush()


def _failed(code: object) -> int:
    """A failing exit code: ``code`` where it is one, else 1, since a rank that gives up never counts as finished."""
    return code if isinstance(code, int) and 0 < code < 256 else 1


def output_is_closed() -> bool:
    """Whether the reader of this process's standard output has ended (``| head``)."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # a stream that is not a file
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


class Unwatched:
    """Replaces a :class:`Watch` where there is none: a single rank, or ranks that are threads of a process."""

    text = ""
    asked: int | None = None

    def heed(self) -> None:
        """See :meth:`Watch.heed`."""

    def at(self, activity: Activity) -> None:
        """See :meth:`Watch.at`."""
        self.text = activity.text

    def doing(self, text: str, waits_for: Iterable[int] = ()) -> None:
        """See :meth:`Watch.doing`."""
        self.text = text

    def joined(self) -> None:
        """See :meth:`Watch.joined`."""

    def begin(self) -> None:
        """See :meth:`Watch.begin`."""

    def rest(self, at: str = "") -> None:
        """See :meth:`Watch.rest`."""


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_watching: list[Watch] = []  # the watches of this process
_masks: list[set[int | signal.Signals]] = []  # the signals that were blocked before the first watch


def _wait_for_signal(seconds: float) -> int | None:
    if not hasattr(signal, "sigtimedwait"):  # macOS: signals reach the main thread as usual
        time.sleep(seconds)
        return None
    received = signal.sigtimedwait(_SIGNALS, seconds)
    return None if received is None else received.si_signo
