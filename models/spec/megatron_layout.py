"""Megatron-LM's texts for the layers of pipeline stages, such as ``Et*2|(t*2|)*34,t*3|(t*2|)*3,tL``.

``E`` is the embedding, ``t`` a layer, ``L`` the head with the loss; ``|`` ends a (virtual) stage. ``x*n`` and
``(...)*n`` repeat, commas and spaces say nothing. (Megatron-LM, ``pipeline_model_parallel_layout``.)
"""

from __future__ import annotations

import re

__all__ = ["LayoutTextError", "layers_of_layout"]

_TOKEN = re.compile(r"[\s,]*(?:(?P<letter>[A-Za-z|])|(?P<open>\()|(?P<close>\)))(?:\*(?P<times>[0-9]{1,9})(?![0-9]))?")
#: Characters that a text may come to when everything is repeated.
_MOST = 100_000


class LayoutTextError(ValueError):
    """A text that is no layout; the message says why."""


def layers_of_layout(text: str) -> tuple[int, ...]:
    """How many layers each stage has, the embedding and the head counted as one each.

    Raises :class:`LayoutTextError` for what the notation does not have, for ``m`` (multi-token prediction, which no
    model here has), stages without layers, and an embedding that is not first or a head that is not last.
    """
    whole = _repeated(text)
    stages = whole.removesuffix("|").split("|")
    if "m" in whole:
        raise LayoutTextError("'m' is multi-token prediction, which models here do not have")
    other = sorted(set(whole) - set("EtL|"))
    if other:
        raise LayoutTextError(f"{other[0]!r} is no layer; E is the embedding, t a layer, L the head; | ends "
                              "a stage")
    if "" in stages:
        raise LayoutTextError(f"stage {stages.index('') + 1} of {len(stages)} has no layer; every stage needs one")
    letters = "".join(stages)
    if "E" in letters[1:] or "L" in letters[:-1]:
        raise LayoutTextError("E, the embedding, may only be the first layer and L, the head, only the last")
    return tuple(map(len, stages))


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
