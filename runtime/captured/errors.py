"""Reports of errors in a model's code: the error, the user's line that raised it, and the remedy."""

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

#: Folders of code that is not the user's: torch, and the part of weft that runs models.
_OURS = (str(Path(torch.__file__).resolve().parent), str(Path(__file__).resolve().parents[1]))
#: A quotation of the user's line in a message of torch.
_QUOTED = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*([^\n]*)')
#: torch's warning that the export of a recurrent layer assigns these attributes, and no others.
_FLAT_WEIGHTS_WARNING = r"The tensor attributes? (self\.\S*_flat_weights\[\d+\](, )?)+ w\w+ assigned during export"

#: torch's messages, each with its meaning in plain words.
_PLAIN = (("Could not guard on data-dependent expression", "Python looks at the numbers of a tensor"),
          ("Could not extract specialized integer from data-dependent", "Python looks at the numbers of a tensor"),
          (".numpy() is not supported for tensor subclasses", "numpy is called, which an export cannot follow"),
          ("unsupported format string passed to SymFloat", "a number of a tensor is printed"))


def raised_at(error: BaseException) -> str:
    """The first line of the error's message, and the user's innermost line in its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = next((plain for known, plain in _PLAIN if known in lines[0]), lines[0].partition(". ")[0].rstrip("."))
    if not isinstance(error, RuntimeError | ValueError) and type(error).__module__ == "builtins":
        text = f"{type(error).__name__}: {text}"
    place = users_place(error)
    text = text.replace("FakeTensor", "Tensor")
    return f"{text:.200}" + (f", at {place}" if place else "")


def users_place(error: BaseException) -> str:
    """The user's innermost line in the traceback, as ``file.py:12 (code)``; ``""`` if there is none."""
    for name, line, code in reversed([*_quoted(error), *_walked(error)]):
        return f"{Path(name).name}:{line}" + (f" ({code.strip():.80})" if code else "")
    return ""


def quoted_place(stack: str | None) -> str:
    """The user's innermost line in an operator's ``stack_trace``, as ``" at file.py:12 (code)"``; ``""`` if none."""
    for name, line, code in reversed([found for found in _QUOTED.findall(stack or "") if _is_users(found[0])]):
        return f" at {Path(name).name}:{line} ({code.strip():.80})"
    return ""


def split_advice(model: nn.Module) -> str:
    """An example of ``split=[...]`` for ``model``: the middle layer of its longest list of layers."""
    rows = [(name, len(module)) for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1]
    if not rows:
        return "split=[names of the submodules that begin a stage]"
    name, count = max(rows, key=lambda row: row[1])
    return f'split=["{name + "." if name else ""}{count // 2}"]'


@contextmanager
def without_graphs() -> Iterator[None]:
    """Inside, standard error omits the graphs that torch prints when an export fails, and torch's warning about the
    flat weights of recurrent layers."""
    class Filtered:
        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

        def write(self, text: str) -> int:
            return len(text) if "def forward(self" in text else stream.write(text)

    stream = sys.stderr
    with redirect_stderr(Filtered()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_FLAT_WEIGHTS_WARNING)
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
    """``error`` and its causes, first cause first."""
    errors = [error]
    while (cause := errors[-1].__cause__) is not None and cause not in errors:
        errors.append(cause)
    return errors[::-1]


def _is_users(name: str) -> bool:
    return not name.startswith("<") and not str(Path(name).resolve()).startswith(_OURS)
