"""Names of stages: the modules of their first and last operators."""

from __future__ import annotations

from torch.fx import Node

from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.division import ModelDivision


def stage_names(cut: ModelDivision) -> tuple[tuple[str, str], ...]:
    """The first and the last module of each stage of ``cut``: the outermost module there that lies in this stage alone.
    If a cut is inside the innermost module, its operator is named too, ``"h.1.attn:addmm_4"``; an operator of no
    submodule has only its own name. Of a model cut by ``split``: the submodules named there."""
    if not isinstance(cut, CapturedCut):
        return cut.spans()
    stages: dict[str, set[int]] = {}  # of a module's operators
    ends: dict[int, tuple[Node, Node]] = {}
    for node in cut.captured.calls:
        if (stage := cut.stage.get(node)) is None:  # computed by every reader
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
    """The submodules that ``node`` is called in, outermost first."""
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
