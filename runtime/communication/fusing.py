"""Fused stages as one function: what a step computes between collectives, compiled together where torch can and is
asked to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.runtime.communication.calls import Calls, computes_alone
from weft.runtime.communication.instructions import Call, Step

__all__ = ["Fused"]

_Function: TypeAlias = Callable[..., tuple[Tensor, ...]]


class Fused:
    """Runs what fused steps compute together; ``compiled``: by ``torch.compile`` (a string: with that backend).

    What cannot be compiled runs as it is, and ``notes`` gets one sentence for each such stage.
    """

    def __init__(self, compiled: bool | str, notes: list[str]) -> None:
        self._compiled, self._notes = compiled, notes
        self._functions: dict[tuple[str, int, int], tuple[_Function, _Function]] = {}  # compiled, and as it is

    def run(self, step: Step, first: int, calls: Calls, inside: dict[str, Tensor]) -> int | None:
        """Run ``step`` from call ``first`` to the next that communicates; the number of that one.

        ``None`` where the step is not fused or begins with such a call: nothing is done.
        """
        last = first
        while last < len(step.calls) and computes_alone(step.calls[last]):
            last += 1
        own = step.calls[first:last]
        if len(step.calls) == 1 or not own:
            return None
        made = [name for call in own for name in call.outputs]
        read = [name for name in dict.fromkeys(name for call in own for name in call.inputs) if name not in made]
        wanted = {part.name for part in step.writes} | {name for call in step.calls[last:] for name in call.inputs}
        given = [name for name in made if name in wanted]
        key = step.key[0], first, step.key[1] if any(call.kind == "dropout" for call in own) else 0
        if key not in self._functions:
            plain = _function(own, calls, read, given)
            self._functions[key] = self._made(step.key[0], plain), plain
        function, plain = self._functions[key]
        inputs = [inside[name] for name in read]
        try:
            results = function(*inputs)
        except Exception as error:
            if function is plain:
                raise
            self._note(step.key[0], error)
            self._functions[key] = plain, plain
            results = plain(*inputs)
        inside.update(zip(given, results, strict=True))
        return last

    def _made(self, stage: str, plain: _Function) -> _Function:
        if not self._compiled:
            return plain
        options: dict[str, Any] = {"backend": self._compiled} if isinstance(self._compiled, str) else {}
        try:
            function: _Function = torch.compile(plain, dynamic=False, **options)
        except Exception as error:
            self._note(stage, error)
            return plain
        return function

    def _note(self, stage: str, error: Exception) -> None:
        first = (str(error) or type(error).__name__).strip().splitlines()[0]
        note = f"the fused stage {stage!r} runs without torch.compile, which said: {first:.200}"
        if note not in self._notes:
            self._notes.append(note)


def _function(own: Sequence[Call], calls: Calls, read: Sequence[str], given: Sequence[str]) -> _Function:
    """All of ``own`` as one function of the tensors ``read``; of what it makes, it gives the tensors ``given``."""
    def fused(*inputs: Tensor) -> tuple[Tensor, ...]:
        inside = dict(zip(read, inputs, strict=True))
        for call in own:
            found = calls.run(call, [inside[name] for name in call.inputs])
            assert found is not None
            inside[call.outputs[0]] = found
        return tuple(inside[name] for name in given)
    return fused
