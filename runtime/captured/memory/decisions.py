"""What happens to the memory of each operator between its forward and its backward, as planned.

An operator is *kept*, as in torch; *recomputed*: its results that the backward reads are dropped after the forward and
made again when the backward first needs them; or *offloaded*: these move to the host's memory and back. Operators that
write in place are decided together with the operator that made the tensor: the operators between forbidden cuts are one
decision. And a part of the model can be computed in equal shares of its batch, one after another, each recomputed by
itself (*co-shard*). Code of the model under ``torch.utils.checkpoint`` is recomputed call by call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from torch.fx import Node

from weft.runtime.captured.captured import Captured, CaptureError, is_item, where
from weft.runtime.captured.purity import STATISTICS, Purity, operator_name, written

Mode: TypeAlias = Literal["keep", "recompute", "offload"]
MODES: tuple[Mode, ...] = ("keep", "recompute", "offload")


@dataclass(frozen=True)
class Decisions:
    """``modes``: of operators by their names in the captured graph; unnamed ones are kept. ``shards``: the number of
    shares of the batch of a module, by its path. ``calls``: recomputed operators with one number are recomputed
    together, apart from their neighbours; those without one together with all neighbours that have none."""

    modes: Mapping[str, Mode] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.shards) or any(mode != "keep" for mode in self.modes.values())

    def of(self, operator: str) -> Mode:
        """The decision for one operator."""
        return self.modes.get(operator, "keep")

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values, for the plan of a run."""
        return {**{mode: sorted(name for name, own in self.modes.items() if own == mode) for mode in MODES[1:]},
                "co_shard": dict(sorted(self.shards.items())),
                **({"calls": dict(sorted(self.calls.items()))} if self.calls else {})}

    @classmethod
    def made(cls, captured: Captured, purity: Purity, modes: Mapping[str, Mode],
             shards: Mapping[str, int] | None = None, *, asked: bool = False) -> Decisions:
        """``modes`` where they can be carried out: operators that are decided together are kept where they differ, and
        so are those that cannot be computed twice. ``asked``: the user named them, so the latter are refused.

        Raises :class:`~weft.runtime.captured.captured.CaptureError`.
        """
        found: dict[str, Mode] = {}
        for unit in units(captured, purity):
            own = {modes.get(node.name, "keep") for node in unit}
            mode = own.pop() if len(own) == 1 else "keep"
            writer = unrepeatable(purity, unit) if mode == "recompute" else None
            if writer is not None and asked:
                raise CaptureError(f"the operator {writer.name}{where(writer)} writes into a buffer that is read, so "
                                   "it cannot be recomputed: keep or offload it")
            if mode != "keep" and writer is None:
                found.update((node.name, mode) for node in unit)
        return cls(found, dict(shards or {}))

    @classmethod
    def of_model(cls, captured: Captured, purity: Purity) -> Decisions:
        """The model's own decisions: code under ``torch.utils.checkpoint`` is recomputed."""
        made = cls.made(captured, purity, dict.fromkeys(captured.checkpointed, "recompute"))
        return cls(made.modes, calls={name: captured.checkpointed[name] for name in made.modes})

    @classmethod
    def by_path(cls, captured: Captured, purity: Purity, paths: Mapping[str, str]) -> Decisions:
        """The operators of the modules named in ``paths``, each with the mode there; for a module within another named
        one, the inner mode holds. All others are as in the model.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` for a path without operators.
        """
        own = cls.of_model(captured, purity)
        modes: dict[str, Mode] = dict(own.modes)
        for path, said in sorted(paths.items(), key=lambda item: item[0].count(".") if item[0] else -1):
            mode = next((mode for mode in MODES if mode == said), None)
            if mode is None:
                raise CaptureError(f"memory_plan has {said!r:.60} for {path!r}, it must be one of {', '.join(MODES)}")
            inside = [node for node in captured.calls if in_module(node, path)]
            if not inside:
                raise CaptureError(f"memory_plan names {path!r}, a module of which no operator was captured: use a "
                                   "path of model.named_modules()")
            modes.update((node.name, mode) for node in inside)
            own = replace(own, calls={name: call for name, call in own.calls.items()
                                      if name not in {node.name for node in inside}})
        return replace(cls.made(captured, purity, modes, asked=True), calls=own.calls)


def decisions_from_json(value: Any, captured: Captured) -> Decisions:
    """The result of :meth:`Decisions.to_json`, from a plan; no decisions if the plan has none.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for operators that ``captured`` does not have.
    """
    if value is None:
        return Decisions()
    known = {node.name for node in captured.calls}
    modes: dict[str, Mode] = {}
    try:
        for mode in MODES[1:]:
            modes.update((str(name), mode) for name in value.get(mode, ()))
        shards, calls = ({str(name): int(number) for name, number in value.get(key, {}).items()}
                         for key in ("co_shard", "calls"))
    except (AttributeError, TypeError, ValueError):
        raise CaptureError("the plan's operators are not as weft writes them: plan again") from None
    if unknown := sorted(set(modes) - known):
        raise CaptureError(f"the plan decides of the memory of the operator {unknown[0]}, which the model does not "
                           "have: it is of another model, or of another version of its code; plan again")
    return Decisions(modes, shards, calls)


def in_module(node: Node, path: str) -> bool:
    """Whether ``node`` was called in the module at ``path``, or in one within it."""
    stack = node.meta.get("nn_module_stack") or {}
    return any(own == path or own.startswith(path + ".") or not path for own in
               (_path(entry) for entry in stack.values()))


def units(captured: Captured, purity: Purity) -> Iterator[Sequence[Node]]:
    """The operators in order, grouped by common decision."""
    forbidden, unit = purity.forbidden(), list[Node]()
    for place, node in enumerate(captured.calls):
        if unit and place not in forbidden and not is_item(node):
            yield unit
            unit = []
        unit.append(node)
    if unit:
        yield unit


def unrepeatable(purity: Purity, unit: Sequence[Node]) -> Node | None:
    """An operator of ``unit`` that writes into a buffer whose value other operators depend on, if there is one: running
    statistics and mere counters are restored after a second forward, and change nothing."""
    captured = purity.captured
    for node in unit:
        for target in written(node):
            if purity.base[target].op != "get_attr" or operator_name(node) in STATISTICS:
                continue
            if target.op != "get_attr":
                return node  # into a part of it
            readers = [user for user in target.users if user is not node] + list(node.users)
            held = id(captured.attribute(target))
            others = [other for other in captured.graph_module.graph.find_nodes(op="get_attr")
                      if other is not target and id(captured.attribute(other)) == held and other.users]
            if readers or others:
                return node
    return None


def _path(entry: Any) -> str:
    """The module's path in an entry of ``nn_module_stack``."""
    return str(entry[0]) if isinstance(entry, tuple | list) else str(entry)
