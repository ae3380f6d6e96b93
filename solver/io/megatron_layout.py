"""Megatron-LM's texts for the layers of pipeline stages, such as ``Et*2|(t*2|)*34,t*3|(t*2|)*3,tL``.

``E`` is the embedding, ``t`` a layer, ``m`` one of multi-token prediction, ``L`` the head with the loss; ``|``
separates two (virtual) stages. ``x*n`` and ``(...)*n`` repeat, commas and spaces are ignored. (Megatron-LM,
``pipeline_model_parallel_layout``, which has neither spaces nor parentheses in parentheses, but stages without layers.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

_TOKEN = re.compile(r"[\s,]*(?:(?P<letter>[A-Za-z|])|(?P<open>\()|(?P<close>\)))(?:\*(?P<times>[0-9]{1,9})(?![0-9]))?")
#: The most characters of a text with all repetitions written out.
_MOST = 100_000


class LayoutTextError(ValueError):
    """A text that is not a layout; the message says why."""


def layers_of_layout(text: str) -> tuple[int, ...]:
    """The number of layers of each stage, the embedding and the head counted as one each. Raises like
    :func:`stages_of_layout`."""
    return tuple(map(len, stages_of_layout(text)))


def stages_of_layout(text: str) -> tuple[str, ...]:
    """The letters of each stage, all repetitions written out.

    Raises :class:`LayoutTextError` for other characters or syntax, stages without layers, an embedding that is not
    first, a head that is not last, and ``m`` before a ``t``.
    """
    whole = _repeated(text)
    stages = whole.split("|")
    other = sorted(set(whole) - set("EtmL|"))
    if other:
        raise LayoutTextError(f"{other[0]!r} is no layer; E is the embedding, t a layer, m one of multi-token "
                              "prediction, L the head; | stands between stages")
    if "" in stages:
        ending = "; a | at the end begins one more stage" if not stages[-1] and len(stages) > 1 else ""
        raise LayoutTextError(f"stage {stages.index('') + 1} of {len(stages)} has no layer; every stage needs "
                              f"one{ending}")
    letters = "".join(stages)
    if "E" in letters[1:] or "L" in letters[:-1]:
        raise LayoutTextError("E, the embedding, may only be the first layer and L, the head, only the last")
    if "mt" in letters:
        raise LayoutTextError("m, of multi-token prediction, comes behind every t")
    return tuple(stages)


def layout_text(stages: Sequence[str]) -> str:
    """The layout of stages with these letters: repeated stages as ``(t*2|)*3``, repeated letters as ``t*2``."""
    words = ["".join(letter if n == 1 else f"{letter}*{n}" for letter, n in _runs(stage)) for stage in stages]
    parts: list[str] = []
    for word, count in _runs([f"{word}|" for word in words[:-1]]):
        parts.append(word if count == 1 else f"({word})*{count}")
    return "".join(parts) + words[-1]


def _runs(items: Sequence[str]) -> list[tuple[str, int]]:
    """Runs of equal neighbours, with their lengths."""
    return [(item, len(list(equal))) for item, equal in groupby(items)]


def _repeated(text: str) -> str:
    """The text with all repetitions written out."""
    levels: list[str] = [""]
    at = 0
    text = text.rstrip(" ,\t\n")
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise LayoutTextError(f"{text[at:at + 20]!r} is not understood; write letters, | and x*n or (...)*n")
        at = token.end()
        times = int(token["times"] or 1)
        if token["open"]:
            if token["times"]:
                raise LayoutTextError("'(*' repeats nothing; write the number behind the closing parenthesis")
            levels.append("")
            continue
        if token["close"]:
            if len(levels) == 1:
                raise LayoutTextError("a parenthesis is closed that was not opened")
            piece = levels.pop()
        else:
            piece = token["letter"]
        if len(piece) * times + len(levels[-1]) > _MOST:
            raise LayoutTextError(f"it has more than {_MOST} layers")
        levels[-1] += piece * times
    if len(levels) > 1:
        raise LayoutTextError("a parenthesis is not closed")
    return levels[0]
