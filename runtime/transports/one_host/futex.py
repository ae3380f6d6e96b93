"""Waiting for a counter in shared memory with the system call ``futex`` (Linux).

A rank that waits for a message uses no CPU, and continues when it arrives, not at its next poll. Without the call, or
if a sandbox forbids it, :class:`Sleeper` sleeps for a short time.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import time
from typing import Any

#: The call's number on x86-64, the only architecture whose processes share memory here. (Numbers differ between them.)
_NUMBER = 202 if platform.machine().lower() in ("x86_64", "amd64") and ctypes.sizeof(ctypes.c_void_p) == 8 else None
_WAIT, _WAKE = 0, 1
_EVERYONE = 2**31 - 1
#: Results of a successful or unnecessary sleep.
_SLEPT = frozenset({0, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
NAP = 200e-6  # seconds


class _Span(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_CALL: Any = getattr(ctypes.CDLL(None, use_errno=True), "syscall", None)


def _call(*arguments: Any) -> int:
    """The result of the call: 0, or the number of an error."""
    if _CALL is None or _NUMBER is None:
        return errno.ENOSYS
    return ctypes.get_errno() if _CALL(_NUMBER, *arguments) < 0 else 0


class Sleeper:
    """Sleeps on the 8-byte counter at ``offset`` of ``memory``; the system compares its low half."""

    def __init__(self, memory: memoryview, offset: int) -> None:
        self._word = ctypes.c_uint32.from_buffer(memory, offset)
        self._address = ctypes.c_void_p(ctypes.addressof(self._word))

    def sleep(self, count: int, seconds: float) -> None:
        """Sleep while the counter is ``count``, until woken or for at most ``seconds``."""
        span = _Span(int(seconds), int(seconds % 1 * 1e9))
        if _call(self._address, _WAIT, ctypes.c_uint32(count % 2**32), ctypes.byref(span), None, 0) not in _SLEPT:
            time.sleep(min(seconds, NAP))

    def wake(self) -> None:
        """Wake all sleepers, after a change of the counter."""
        _call(self._address, _WAKE, _EVERYONE, None, None, 0)
