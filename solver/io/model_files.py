"""What is known of a problem's model, in its file: the optional entry ``model`` of ``weft.problem/1``.

``{"stages": [{"forward", "layers", "parameters", "parameter_bytes", "output_bytes", "deferred", "micro_batch"}],
"ties":
[{"parameter", "stages"}], "tolerance"}``. A stage goes by the name of its forward block; of its other entries each may
be absent, as may ``ties`` and ``tolerance``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.solver.io.entries import Entry, FormatError, show
from weft.solver.model_facts import ModelFacts, StageFacts, TieFacts

__all__ = ["facts_from_json", "facts_to_json"]

_AMOUNTS = ("parameters", "parameter_bytes", "output_bytes", "deferred", "micro_batch")


def facts_to_json(facts: ModelFacts) -> dict[str, Any]:
    """The ``model`` entry of a problem file."""
    return {
        "stages": [{"forward": stage.forward, **({"layers": list(stage.layers)} if stage.layers else {}),
                    **{name: value for name in _AMOUNTS if (value := getattr(stage, name)) is not None}}
                   for stage in facts.stages],
        **({"ties": [{"parameter": tie.parameter, "stages": list(tie.stages)} for tie in facts.ties]}
           if facts.ties else {}),
        **({"tolerance": facts.tolerance} if facts.tolerance else {}),
    }


def facts_from_json(entry: Entry, blocks: Iterable[str]) -> ModelFacts:
    """The facts of a ``model`` entry about stages among ``blocks``.

    Raises :class:`~weft.solver.io.entries.FormatError`.
    """
    entry.allow("stages", "ties", "tolerance")
    known, stages, ties = set(blocks), [], []
    for item in entry.list("stages"):
        item.allow("forward", "layers", *_AMOUNTS)
        stages.append(StageFacts(_known(item.text("forward"), item, "forward", known), _texts(item, "layers"),
                                 **{name: item.count(name) for name in _AMOUNTS if item.has(name)}))
    for item in entry.list("ties", required=False):
        item.allow("parameter", "stages")
        ties.append(TieFacts(item.text("parameter"),
                             tuple(_known(name, item, "stages", known) for name in _texts(item, "stages"))))
    tolerance = entry.number("tolerance") if entry.has("tolerance") else 0.0
    if not 0 <= tolerance < 1:
        raise FormatError(f"{entry.where}: tolerance is {tolerance}, it must be at least 0 and less than 1")
    if len({stage.forward for stage in stages}) < len(stages):
        raise FormatError(f"{entry.where}: stages names a forward block twice")
    return ModelFacts(tuple(stages), tuple(ties), float(tolerance))


def _texts(item: Entry, field: str) -> tuple[str, ...]:
    value = item.get(field, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FormatError(f"{item.where}: {field} is {show(value)}, it must be a list of texts")
    return tuple(value)


def _known(name: str, item: Entry, field: str, blocks: set[str]) -> str:
    if name not in blocks:
        raise FormatError(f"{item.where}: {field}: there is no block named {show(name)}")
    return name
