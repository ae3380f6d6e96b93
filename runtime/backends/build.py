"""The module that runs an assignment: eager operators inline, and a call for each part of another backend."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from weft.runtime.backends.assignment import Assignment, assignment_from_json, load_assignment
from weft.runtime.backends.graph import GraphPart, UnitGraph, copy_nodes
from weft.runtime.backends.registry import EAGER, BackendError, registered
from weft.runtime.captured.captured import Captured, leaves
from weft.runtime.captured.cut import register
from weft.solver.placement.cover.problem import a_cycle, order_of

#: The backend of each part, with its units.
Choice = Sequence[tuple[str, Sequence[int]]]
#: The attribute of a built module with the calls of its parts.
_PARTS = "weft_parts"


def build(graph: str | os.PathLike[str] | ExportedProgram | Captured,
          assignment: Assignment | Mapping[str, Any] | str | os.PathLike[str]) -> PlacedModule:
    """A module that computes each part of ``graph`` by its backend in ``assignment``.

    ``graph``: a ``.pt2`` file, an exported program, or a captured model. Its program is run, so a file must be from a
    trusted source. ``assignment``: the result of :func:`weft.place_backends`, or its file ``weft.backends/1``. The
    module takes arguments of the captured structure, shapes and dtypes, and shares the model's parameters.

    Raises :class:`~weft.runtime.backends.registry.BackendError` for an assignment of another graph, and for a backend
    that is not registered or cannot be used here.
    """
    captured = captured_of(graph)
    if isinstance(assignment, str | os.PathLike):
        assignment = load_assignment(assignment)
    elif not isinstance(assignment, Assignment):
        assignment = assignment_from_json(assignment)
    units = UnitGraph(captured)
    return PlacedModule(captured, assembled(units, assignment.units_of(units), trains=assignment.trains))


class PlacedModule(nn.Module):
    """A captured model whose parts run on several backends; called like the model."""

    def __init__(self, captured: Captured, run: GraphModule) -> None:
        super().__init__()
        self.run = run
        self._in_spec, self._out_spec = captured.in_spec, captured.out_spec
        self._inputs = [(node.name, node.meta.get("val")) for node in captured.inputs]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's result. Raises :class:`~weft.runtime.backends.registry.BackendError` for arguments that differ
        from the captured ones."""
        given, spec = tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise BackendError("the model was placed for arguments of another structure: call it as the example was "
                               "captured, by the same positions and names")
        for (name, fake), leaf in zip(self._inputs, given, strict=True):
            if isinstance(fake, Tensor) and isinstance(leaf, Tensor) and (
                    fake.shape != leaf.shape or fake.dtype != leaf.dtype):
                raise BackendError(f"{name} is {tuple(leaf.shape)} {leaf.dtype}, but the model was placed for "
                                   f"{tuple(fake.shape)} {fake.dtype}: export and place it at these shapes")
        return tree_unflatten(list(self.run(*given)), self._out_spec)


class PartCall(nn.Module):
    """A call of a part: ``run`` is its backend's function, ``plain`` the part's own, used for fake tensors. The weights
    are registered in the model, not here."""

    run: Callable[..., Sequence[Tensor]]
    plain: Callable[..., Sequence[Tensor]]

    def __init__(self, run: Callable[..., Sequence[Tensor]], plain: Callable[..., Sequence[Tensor]]) -> None:
        super().__init__()
        self.__dict__.update(run=run, plain=plain)  # not as submodules, so that weights have one name

    def forward(self, *given: Any) -> Sequence[Tensor]:
        """The part's results, in its order."""
        is_fake = any(isinstance(x, FakeTensor) for x in given)
        results: Sequence[Tensor] = (self.plain if is_fake else self.run)(*given)
        return results


def assembled(graph: UnitGraph, choice: Choice, *, trains: bool = False, root: nn.Module | None = None,
              inputs: Callable[[GraphPart], tuple[Any, ...]] | None = None) -> GraphModule:
    """A module that computes the units of ``graph`` by the backends in ``choice``. ``inputs``: returns the inputs with
    which a part is built (default: random numbers).

    Raises :class:`~weft.runtime.backends.registry.BackendError` for an unusable backend, a part that is not connected
    and convex, and parts that depend on each other.
    """
    captured, known = graph.captured, registered()
    part_of = [0] * len(graph.units)
    for number, (backend, units) in enumerate(choice):
        _require_backend(backend, device_of(captured), trains)
        graph.require_part(units, backend)
        for unit in units:
            part_of[unit] = number
    if a_cycle(graph.after, part_of, len(choice)):
        raise BackendError("two parts of the assignment wait for each other: it is no order of this graph")
    own, env, root = FxGraph(), dict[Node, Node](), nn.Module() if root is None else root
    for node in captured.inputs:
        env[node] = own.placeholder(node.name)
        env[node].meta.update(node.meta)
    for number in order_of(graph.after, part_of, len(choice)):
        backend, units = choice[number]
        if backend == EAGER:
            copy_nodes(captured, [node for unit in sorted(units) for node in graph.units[unit]], own, root, env)
            continue
        part = graph.part(units)
        part = replace(part, inputs=(inputs or _random_inputs)(part))
        _call(own, root, env, part, known[backend].build(part), number)
        for node in part.module.graph.find_nodes(op="get_attr"):
            register(root, str(node.target), operator.attrgetter(str(node.target))(part.module))
    own.output(tuple(_result(captured, own, root, env, leaf) for leaf in captured.results))
    module = _module(captured, own, root)
    module.train(captured.model.training)
    return module


def _module(captured: Captured, own: FxGraph, root: nn.Module) -> GraphModule:
    parts = root._modules.pop(_PARTS, None)
    if parts is not None:
        root._modules[_PARTS] = parts
    module = GraphModule(root, own, class_name="PlacedModule")
    for name, parameter in root.named_parameters(remove_duplicate=False):
        register(module, name, parameter)
    for name, buffer in root.named_buffers(remove_duplicate=False):
        register(module, name, buffer)
    return module


def _call(own: FxGraph, root: nn.Module, env: dict[Node, Node], part: GraphPart, run: Callable[..., Sequence[Tensor]],
          number: int) -> None:
    name = f"{_PARTS}.{number}"
    register(root, name, PartCall(run, part.module.forward))
    several = own.call_module(name, tuple(env[node] for node in part.takes))
    for i, node in enumerate(part.gives):
        env[node] = own.call_function(operator.getitem, (several, i))
        env[node].meta.update(node.meta)


def _result(captured: Captured, own: FxGraph, root: nn.Module, env: dict[Node, Node], leaf: Any) -> Any:
    if isinstance(leaf, Node) and leaf not in env:  # a parameter that is a result
        copy_nodes(captured, (), own, root, env)
        register(root, str(leaf.target), captured.attribute(leaf))
        env[leaf] = own.get_attr(str(leaf.target))
    return env[leaf] if isinstance(leaf, Node) else leaf


def _require_backend(name: str, device: torch.device, trains: bool) -> None:
    known = registered()
    if name not in known:
        raise BackendError(f"the assignment has parts of {name!r:.60}, which nobody has registered; there are "
                           f"{', '.join(known)}")
    if (why := known[name].unusable(device.type, trains)) is not None:
        raise BackendError(f"the assignment has parts of {name}, which cannot be used: it {why}")


def _random_inputs(part: GraphPart) -> tuple[Any, ...]:
    return tuple(_random_like(node.meta.get("val")) for node in part.takes)


def _random_like(value: Any) -> Any:
    """Tensors with the shapes and dtypes of the nested ``value``: normal random numbers, and zeros for integers."""
    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if not (leaf.is_floating_point() or leaf.is_complex()):
            return torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device)
        return torch.randn(leaf.shape, dtype=leaf.dtype, device=leaf.device)

    return tree_map(tensor, value)


def device_of(captured: Captured) -> torch.device:
    """The device of the first parameter, buffer or input; the CPU without any."""
    first: Iterable[Tensor] = (tensor for tensor in (*captured.model.parameters(), *captured.model.buffers(), *(
        leaf for node in captured.inputs for leaf in leaves(node.meta.get("val")) if isinstance(leaf, Tensor))))
    return next((tensor.device for tensor in first), torch.device("cpu"))


def captured_of(graph: str | os.PathLike[str] | ExportedProgram | Captured) -> Captured:
    """``graph`` as a captured model: a ``.pt2`` file is loaded, which runs its program.

    Raises :class:`~weft.runtime.backends.registry.BackendError` for anything else.
    """
    if isinstance(graph, Captured):
        return graph
    name = os.fspath(graph) if isinstance(graph, str | os.PathLike) else "the program"
    if isinstance(graph, str | os.PathLike):
        if not Path(graph).is_file():
            raise BackendError(f"{name}: there is no such file")
        try:
            graph = torch.export.load(Path(graph))
        except Exception as error:  # of many types: archive, schema, missing operators
            raise BackendError(f"{name}: torch.export.load does not take it: "
                               f"{(str(error) or type(error).__name__).splitlines()[0]:.200}") from error
    if not isinstance(graph, ExportedProgram):
        raise BackendError(f"the graph is a {type(graph).__name__}, it must be a .pt2 file, an ExportedProgram or a "
                           "captured model")
    if graph.example_inputs is None:
        raise BackendError(f"{name}: was saved without example inputs, so there is nothing to run it on: export it "
                           "again")
    args, kwargs = graph.example_inputs
    module = graph.module()
    captured = Captured.of(module, args, kwargs)
    captured.require_fixed()
    return captured


def example_of(graph: str | os.PathLike[str] | ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example arguments with which ``graph`` was exported."""
    program = graph if isinstance(graph, ExportedProgram) else torch.export.load(Path(graph))
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    return tuple(args), dict(kwargs)
