"""A coarser view of an operator graph: one operator per layer, for reports and for cuts that respect layers.

A captured operator's ``layer`` is the path of the module it was called in. The view's layers are the entries of lists:
``encoder.layers.3.self_attn`` belongs to ``encoder.layers.3``, ``head`` to itself; operators in the model's own
``forward`` stay unchanged. Everything that a placement needs is preserved: operations, parameters, kept tensors and
tensors between layers are the same, so ``saved_bytes`` of a layer are those of its operators. A layer that is
re-entered (a module used twice, with others in between) becomes several operators; mutually dependent layers stay
separate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from weft.models.graph.operators import Operator, OperatorGraph, Parameter, Tensor, Work
from weft.solver.late import nx


def list_entry(layer: str) -> str:
    """The outermost list entry on a module's path, or the path's first name if there is none."""
    parts = layer.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    return ".".join(parts[:1] if number is None else parts[:number + 1])


def by_layer(graph: OperatorGraph) -> OperatorGraph:
    """``graph`` with each layer's operators merged."""
    groups = _groups(graph)
    operators = tuple(_merged(graph, name, members) if len(members) > 1 else
                      replace(graph.by_name[members[0]], name=name) for name, members in groups.items())
    return replace(graph, operators=tuple(replace(one, layer=list_entry(one.layer)) for one in operators))


def _groups(graph: OperatorGraph) -> dict[str, list[str]]:
    """Operators by the name of their group, in an order of the graph; without a cycle between groups."""
    layer = {name: list_entry(graph.by_name[name].layer) for name in graph.order}
    visit = _visits(graph, layer)
    label = {name: (layer[name], visit[name]) if layer[name] else (name, -1) for name in graph.order}
    while True:
        joined = nx.DiGraph((label[a], label[b]) for a, b in graph.graph.edges if label[a] != label[b])
        knots = [knot for knot in nx.strongly_connected_components(joined) if len(knot) > 1]
        if not knots:
            break
        tangled = set().union(*knots)
        label = {name: (name, -1) if mark in tangled else mark for name, mark in label.items()}
    taken = {name for name, (_, visits) in label.items() if visits < 0}
    names: dict[tuple[str, int], str] = {}
    groups: dict[str, list[str]] = {}
    for name in graph.order:
        mark = label[name]
        if mark not in names:
            names[mark] = name if mark[1] < 0 else _free(f"{mark[0]}#{mark[1] + 1}" if mark[1] else mark[0], taken)
        groups.setdefault(names[mark], []).append(name)
    return groups


def _visits(graph: OperatorGraph, layer: Mapping[str, str]) -> dict[str, int]:
    """The maximum number of times that a path to each operator has left its layer before."""
    inside: dict[str, dict[str, int]] = {}  # operator -> layer -> visits on some path to it, including the last
    visits: dict[str, int] = {}
    for name in graph.order:
        before: dict[str, int] = {}
        here = 0
        for earlier in graph.graph.predecessors(name):
            for which, count in inside[earlier].items():
                before[which] = max(before.get(which, 0), count)
            if layer[earlier] != layer[name]:
                here = max(here, inside[earlier].get(layer[name], 0))
            else:
                here = max(here, visits[earlier])
        visits[name] = here
        before[layer[name]] = max(before.get(layer[name], 0), here + 1)
        inside[name] = before
    return visits


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _merged(graph: OperatorGraph, name: str, members: list[str]) -> Operator:
    parts = [graph.by_name[member] for member in members]
    made = {tensor.name: tensor for part in parts for tensor in (*part.outputs, *part.internal)}
    inside = set(members)
    given = [tensor.name for part in parts for tensor in part.outputs
             if tensor.name in graph.outputs or not inside.issuperset(graph.readers[tensor.name])]
    kept = list(dict.fromkeys(key for part in parts for key in part.keeps))
    deferred, gradients = _deferred(parts, set(given))
    internal = _with_bases(graph, made, [*given, *kept, *(deferred or ())]) - set(given)
    weight_grads = [part.weight_grad for part in parts if deferred is None or part.deferred is not None]
    input_grads = [part.input_grad for part in parts] + [
        part.weight_grad for part in parts if deferred is not None and part.deferred is None]
    kinds = {part.devices for part in parts if part.devices is not None}
    words = {part.colocate for part in parts if part.colocate is not None}
    return Operator(
        name, "layer", Work.total(part.forward for part in parts) or Work(),
        tuple(dict.fromkeys(key for part in parts for key in part.inputs if key not in made)),
        tuple(made[key] for key in given), Work.total(input_grads), Work.total(weight_grads),
        _once(parameter for part in parts for parameter in part.parameters),
        (*(made[key] for key in made if key in internal), *gradients), tuple(kept), deferred,
        max(_passing(graph, part, set(kept)) for part in parts), layer=parts[0].layer,
        colocate=min(words) if words else None, devices=frozenset.intersection(*kinds) if kinds else None,
        constants=_once(constant for part in parts for constant in part.constants))


def _deferred(parts: list[Operator], given: set[str]) -> tuple[tuple[str, ...] | None, tuple[Tensor, ...]]:
    """The tensors needed by deferred weight gradients: inputs, and for inner operators the gradients of their
    outputs."""
    later = [part for part in parts if part.deferred is not None]
    if not later:
        return None, ()
    gradients = tuple(Tensor(f"{tensor.name}.gradient", tensor.bytes, tensor.shape, tensor.dtype)
                      for part in later for tensor in part.outputs if tensor.name not in given)
    names = [key for part in later for key in part.deferred or ()]
    return tuple(dict.fromkeys([*names, *(tensor.name for tensor in gradients)])), gradients


def _with_bases(graph: OperatorGraph, made: Mapping[str, Tensor], names: Iterable[str]) -> set[str]:
    """The tensors of ``names`` made here, and the tensors made here of which they are views."""
    found: set[str] = set()
    for key in names:
        at: str | None = key
        while at is not None and at not in found and at in graph.tensors:
            if at in made:
                found.add(at)
            at = graph.tensors[at].base
    return found


def _passing(graph: OperatorGraph, part: Operator, kept: set[str]) -> int:
    """The memory in use only while ``part`` runs: its workspace, and its inputs and outputs that are not kept."""
    here = {key: graph.tensors[key] for key in (*part.inputs, *(tensor.name for tensor in part.outputs))}
    return part.workspace + sum(tensor.bytes for key, tensor in here.items() if tensor.base is None and key not in kept)


def _once(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    found: dict[str, Parameter] = {}
    for parameter in parameters:
        found.setdefault(parameter.name, parameter)
    return tuple(found.values())
