"""What is shown while a search has nothing new."""

from __future__ import annotations

import io
import re
import threading

from tests.support.builders import chain, pipeline
from weft.cli.lib.progress import ProgressLine
from weft.solver import Progress, baseline


class _Counted(io.StringIO):
    """A stream that counts the lines written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = threading.Semaphore(0)

    def write(self, text: str) -> int:
        self.lines.release()
        return super().write(text)


def test_a_search_that_says_nothing_new_is_seen_to_be_at_work() -> None:
    stream = _Counted()
    with ProgressLine(stream, every=0.01) as line:
        line(Progress(baseline("1f1b", pipeline(chain(2)), 4), 1.0, "here"))
        assert all(stream.lines.acquire(timeout=600) for _ in range(3))
    shown = [text for text in stream.getvalue().splitlines() if "best" in text]
    assert len({re.sub(r"^ *[\d.]+ s", "", text) for text in shown}) == 1 and "[here]" in shown[-1]
    times = [float(text.split()[0]) for text in shown]
    assert times == sorted(times) and times[0] == 1.0 < times[-1]


def test_nothing_is_written_when_it_is_over_or_quiet() -> None:
    stream, silent = _Counted(), _Counted()
    with ProgressLine(stream, every=0.01) as line, ProgressLine(silent, every=0.01, quiet=True) as quiet:
        for listener in (line, quiet):
            listener(Progress(baseline("1f1b", pipeline(chain(2)), 4), 1.0, "here"))
        assert stream.lines.acquire(timeout=600)
    length = len(stream.getvalue())
    line._wait()  # is over at once
    assert len(stream.getvalue()) == length and silent.getvalue() == ""
