"""Memory decisions: whether the saved tensors of an operator are kept, recomputed or offloaded.

A *kept* operator saves tensors as in torch. The results of a *recomputed* operator are dropped after the forward, and
computed again when the backward first needs one of them. The results of an *offloaded* operator are copied to host
memory and back. In-place operators share the decision of the tensor's producer: operators between two places where a
cut is allowed are one unit. A module can also be computed in equal shares of its batch, one after another, each share
recomputed separately (*co-shard*). Code under ``torch.utils.checkpoint`` is recomputed call by call.
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
    """``modes``: by operator's name in the captured graph; absent operators are kept. ``shards``: the number of shares
    of the batch, by module path. ``calls``: adjacent recomputed operators with equal numbers (or none) are recomputed
    together, those with different numbers separately."""

    modes: Mapping[str, Mode] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.shards) or any(mode != "keep" for mode in self.modes.values())

    def of(self, operator: str) -> Mode:
        """The mode of one operator."""
        return self.modes.get(operator, "keep")

    def to_json(self) -> dict[str, Any]:
        """The decisions as JSON values."""
        return {**{mode: sorted(name for name, own in self.modes.items() if own == mode) for mode in MODES[1:]},
                "co_shard": dict(sorted(self.shards.items())),
                **({"calls": dict(sorted(self.calls.items()))} if self.calls else {})}

    @classmethod
    def made(cls, captured: Captured, purity: Purity, modes: Mapping[str, Mode],
             shards: Mapping[str, int] | None = None, *, strict: bool = False) -> Decisions:
        """``modes`` as far as possible: a unit is kept if its operators' modes differ, or if it cannot be recomputed.

        ``strict``: a unit that cannot be recomputed raises :class:`~weft.runtime.captured.captured.CaptureError`.
        """
        feasible: dict[str, Mode] = {}
        for unit in units(captured, purity):
            own = {modes.get(node.name, "keep") for node in unit}
            mode = own.pop() if len(own) == 1 else "keep"
            writer = unrepeatable(purity, unit) if mode == "recompute" else None
            if writer is not None and strict:
                raise CaptureError(f"the operator {writer.name}{where(writer)} writes into a buffer that is read, so "
                                   "it cannot be recomputed: keep or offload it")
            if mode != "keep" and writer is None:
                feasible.update((node.name, mode) for node in unit)
        return cls(feasible, dict(shards or {}))

    @classmethod
    def of_model(cls, captured: Captured, purity: Purity) -> Decisions:
        """The model's own decisions: code under ``torch.utils.checkpoint`` is recomputed."""
        made = cls.made(captured, purity, dict.fromkeys(captured.checkpointed, "recompute"))
        return cls(made.modes, calls={name: captured.checkpointed[name] for name in made.modes})

    @classmethod
    def by_path(cls, captured: Captured, purity: Purity, paths: Mapping[str, str]) -> Decisions:
        """The modes of modules, by path: the innermost named module counts. Other operators are as in the model.

        Raises :class:`~weft.runtime.captured.captured.CaptureError` for an unknown mode, a path without operators, and
        an operator that cannot be recomputed.
        """
        own = cls.of_model(captured, purity)
        modes: dict[str, Mode] = dict(own.modes)
        for path, name in sorted(paths.items(), key=lambda item: item[0].count(".") if item[0] else -1):
            mode = next((mode for mode in MODES if mode == name), None)
            if mode is None:
                raise CaptureError(f"memory_plan has {name!r:.60} for {path!r}, it must be one of {', '.join(MODES)}")
            inside = [node for node in captured.calls if in_module(node, path)]
            if not inside:
                raise CaptureError(f"memory_plan names {path!r}, a module of which no operator was captured: use a "
                                   "path of model.named_modules()")
            modes.update((node.name, mode) for node in inside)
            own = replace(own, calls={name: call for name, call in own.calls.items()
                                      if name not in {node.name for node in inside}})
        return replace(cls.made(captured, purity, modes, strict=True), calls=own.calls)


def decisions_from_json(value: Any, captured: Captured) -> Decisions:
    """The inverse of :meth:`Decisions.to_json`; ``None`` gives no decisions.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for another format, and for operators that ``captured``
    does not have.
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
    """Whether ``node`` was called in the module at ``path`` or in one of its submodules."""
    stack = node.meta.get("nn_module_stack") or {}
    return any(own == path or own.startswith(path + ".") or not path for own in
               (_path(entry) for entry in stack.values()))


def units(captured: Captured, purity: Purity) -> Iterator[Sequence[Node]]:
    """The operators in order, grouped into units that share a decision."""
    forbidden, unit = purity.forbidden(), list[Node]()
    for place, node in enumerate(captured.calls):
        if unit and place not in forbidden and not is_item(node):
            yield unit
            unit = []
        unit.append(node)
    if unit:
        yield unit


def unrepeatable(purity: Purity, unit: Sequence[Node]) -> Node | None:
    """An operator of ``unit`` that writes into a buffer which other operators read, or ``None``. Running statistics and
    unread counters do not count: they are restored after a recomputation."""
    captured = purity.captured
    for node in unit:
        for target in written(node):
            if purity.base[target].op != "get_attr" or operator_name(node) in STATISTICS:
                continue
            if target.op != "get_attr":
                return node  # it writes into a view of the buffer
            readers = [user for user in target.users if user is not node] + list(node.users)
            buffer = id(captured.attribute(target))
            others = [other for other in captured.graph_module.graph.find_nodes(op="get_attr")
                      if other is not target and id(captured.attribute(other)) == buffer and other.users]
            if readers or others:
                return node
    return None


def _path(entry: Any) -> str:
    """The module's path in an entry of ``nn_module_stack``, whose type depends on torch's version."""
    return str(entry[0]) if isinstance(entry, tuple | list) else str(entry)
