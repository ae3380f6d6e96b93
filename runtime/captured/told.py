"""Reports on errors in a model's own code: the error, the user's line that raised it, and what to do."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

#: Code that is not the user's: torch's, and weft's that runs models.
_OURS = (str(Path(torch.__file__).resolve().parent), str(Path(__file__).resolve().parents[1]))
#: Where torch quotes the user's line in a message.
_QUOTED = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*([^\n]*)')
#: Of which attributes torch warns that an export of a recurrent layer assigns: of these alone.
_ROW = r"The tensor attributes? (self\.\S*_flat_weights\[\d+\](, )?)+ w\w+ assigned during export"

#: torch's messages, and their meaning for users who have not read torch's code.
_PLAIN = (("Could not guard on data-dependent expression", "Python looks at the numbers of a tensor"),
          ("Could not extract specialized integer from data-dependent", "Python looks at the numbers of a tensor"),
          (".numpy() is not supported for tensor subclasses", "numpy is called, which an export cannot follow"),
          ("unsupported format string passed to SymFloat", "a number of a tensor is printed"))


def raised_at(error: BaseException) -> str:
    """The first line of the error, and the innermost of the user's lines that it passed through."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = next((plain for known, plain in _PLAIN if known in lines[0]), lines[0].partition(". ")[0].rstrip("."))
    if not isinstance(error, RuntimeError | ValueError) and type(error).__module__ == "builtins":
        said = f"{type(error).__name__}: {said}"
    place = users_place(error)
    said = said.replace("FakeTensor", "Tensor")
    return f"{said:.200}" + (f", at {place}" if place else "")


def users_place(error: BaseException) -> str:
    """The innermost line that is neither torch's nor weft's, as ``file.py:12 (code)``; ``""`` if there is none."""
    for name, line, code in reversed([*_quoted(error), *_walked(error)]):
        return f"{Path(name).name}:{line}" + (f" ({code.strip():.80})" if code else "")
    return ""


def quoted_place(stack: str | None) -> str:
    """The user's innermost line that torch recorded for an operator, with ``" at "`` before it; ``""`` if none."""
    for name, line, code in reversed([found for found in _QUOTED.findall(stack or "") if _is_users(found[0])]):
        return f" at {Path(name).name}:{line} ({code.strip():.80})"
    return ""


def split_advice(model: nn.Module) -> str:
    """``split=[...]`` with a name in ``model``: the middle layer of its longest list of layers."""
    rows = [(name, len(module)) for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1]
    if not rows:
        return "split=[names of the submodules that begin a stage]"
    name, count = max(rows, key=lambda row: row[1])
    return f'split=["{name + "." if name else ""}{count // 2}"]'


@contextmanager
def without_graphs() -> Iterator[None]:
    """Inside, standard error is without the graphs that torch prints there when an export fails, and without its
    warning of the row in which a recurrent layer keeps its parameters once more."""
    class Filtered:
        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

        def write(self, text: str) -> int:
            return len(text) if "def forward(self" in text else stream.write(text)

    stream = sys.stderr
    with redirect_stderr(Filtered()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_ROW)
        yield


def _walked(error: BaseException) -> Iterator[tuple[str, int, str]]:
    """The user's lines in the traceback, outermost first."""
    for each in _chain(error):
        trace: TracebackType | None = each.__traceback__
        for frame in traceback.extract_tb(trace):
            if _is_users(frame.filename) and frame.name != "<module>":
                yield frame.filename, frame.lineno or 0, frame.line or ""


def _quoted(error: BaseException) -> Iterator[tuple[str, int, str]]:
    for name, line, code in _QUOTED.findall(str(error)):
        if _is_users(name):
            yield name, int(line), code


def _chain(error: BaseException) -> list[BaseException]:
    """The chain of its causes, first cause first."""
    found = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found[::-1]


def _is_users(name: str) -> bool:
    return not name.startswith("<") and not str(Path(name).resolve()).startswith(_OURS)
