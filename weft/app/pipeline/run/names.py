"""What stages are called: the modules that the first and the last of their operators belong to."""

from __future__ import annotations

from torch.fx import Node

from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.division import ModelDivision


def stage_names(cut: ModelDivision) -> tuple[tuple[str, str], ...]:
    """Of each stage of ``cut``, where it begins and ends: the outermost module there that is of this stage alone, as
    the model calls it. Where a cut lies inside the innermost module, its operator is named too, ``"h.1.attn:addmm_4"``;
    an operator of no module but the model itself has only its own name. What is cut before modules says it itself."""
    if not isinstance(cut, CapturedCut):
        return cut.spans()
    stages: dict[str, set[int]] = {}  # that a module has operators in
    ends: dict[int, tuple[Node, Node]] = {}
    for node in cut.captured.calls:
        if (stage := cut.stage.get(node)) is None:  # computed wherever it is read
            continue
        ends[stage] = ends.get(stage, (node, node))[0], node
        for path in _modules(node):
            stages.setdefault(path, set()).add(stage)

    def name(node: Node) -> str:
        paths = _modules(node)
        whole = next((path for path in paths if len(stages[path]) == 1), None)
        return whole or ":".join([*paths[-1:], node.name])

    return tuple((name(ends[s][0]), name(ends[s][1])) if s in ends else ("nothing", "nothing")
                 for s in range(cut.count))


def _modules(node: Node) -> list[str]:
    """The modules that ``node`` is called in, from the outermost that is not the model itself."""
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
