"""A captured model cut into stages: one module each, and the values that pass between them.

A cut is a place in the list of operators: operators before it are in one stage, the others in the next. A value that a
later stage reads becomes a port between the two stages, adjacent or not. Free values
(:mod:`~weft.runtime.captured.purity`) are recomputed where they are read. Items of a tuple belong to the stage that
produces the tuple. A stage has the parameters, buffers and constants that it reads: the model's own objects, under the
model's names. A parameter that several stages read is tied.

Operators on weights become layers again (:mod:`~weft.runtime.captured.operators.layers`), so that a split backward can
defer their weight gradients. Random operators get their own seeds (:mod:`~weft.runtime.train.moment`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft.runtime.captured.captured import Captured, CaptureError, graph_name, is_item, tensors, where
from weft.runtime.captured.division import StageModules
from weft.runtime.captured.operators.layers import Layers
from weft.runtime.captured.purity import Purity, draws
from weft.runtime.captured.regions import UnderAutocast
from weft.runtime.interface.training import Boundary, Ports
from weft.runtime.train.moment import Seeded

#: Prefix of the names of a stage's data inputs.
BATCH = "batch."
#: The name of a stage's submodule that contains the layers made from operators.
OPERATORS = "weft_operators"
#: The key in a stage's node metadata of its node in the captured graph.
OPERATOR = "weft_operator"


@dataclass(frozen=True)
class Crossing:
    """The values that a cut at one place would send. ``refused``: the in-place operator that forbids the cut, if any.
    """

    values: tuple[Node, ...]
    refused: Node | None

    @property
    def size(self) -> int:
        """Bytes sent in one direction."""
        return sum(fake.numel() * fake.element_size() for node in self.values if (fake := tensors(node)) is not None)


def crossings(captured: Captured, purity: Purity) -> list[Crossing]:
    """The crossing at each place; place i is before operator i."""
    forbidden, count = purity.forbidden(), len(captured.calls)
    last: dict[Node, int] = {}
    first: dict[Node, int] = {}
    for node in captured.calls:
        if node in purity.free:
            continue
        first[node] = purity.place[_producer(node)]
        for user in _users(node, purity):
            last[node] = max(last.get(node, 0), count if user.op == "output" else purity.place[user])
    return [Crossing(tuple(node for node, end in last.items() if first[node] < place <= end
                           and not isinstance(node.meta.get("val"), tuple | list)), forbidden.get(place))
            for place in range(count)]


class CapturedCut:
    """``captured`` cut at ``places``: the ascending numbers of the first operators of stages.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a place where a cut is forbidden.
    """

    def __init__(self, captured: Captured, places: Sequence[int], purity: Purity | None = None) -> None:
        self.captured, self.places = captured, tuple(places)
        self.purity = purity or Purity(captured)
        self._require_places()
        self.count = len(self.places) + 1
        self.stage = {node: self._stage(node) for node in captured.calls if node not in self.purity.free}
        self.takes: dict[int, list[Node]] = {s: [] for s in range(self.count)}  # received from other stages
        self.data: dict[int, list[Node]] = {s: [] for s in range(self.count)}  # the model's inputs
        for s in range(self.count):
            self._enter(s)
        self.given: dict[int, list[Node]] = {s: [] for s in range(self.count)}
        for s in range(self.count):
            for node in self.takes[s]:
                if node not in self.given[self.stage[node]]:
                    self.given[self.stage[node]].append(node)

    @cached_property
    def parameters(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """The trained parameters that each stage reads."""
        found: list[dict[int, nn.Parameter]] = [{} for _ in range(self.count)]
        for s in range(self.count):
            for node in self._wanted(s):
                if node.op == "get_attr" and isinstance(value := self.captured.attribute(node), nn.Parameter):
                    found[s][id(value)] = value
        return tuple(tuple(p for p in each.values() if p.requires_grad) for each in found)

    def tensors(self, s: int) -> list[Tensor]:
        """The parameters, buffers and constants that stage ``s`` reads, without duplicates."""
        read = [self.captured.attribute(node) for node in self._wanted(s) if node.op == "get_attr"]
        return list({id(value): value for value in read if isinstance(value, Tensor)}.values())

    def stages(self, only: Sequence[int] | None = None, plain: bool = False, seeded: bool = False
               ) -> StageModules[GraphModule]:
        """The modules of all stages, or of those in ``only``, with the ports and boundaries of all. ``plain``: the
        operators as captured, without layers, treatment and (unless ``seeded``) seeds."""
        ports, boundaries = {}, {}
        for s in range(self.count):
            gives = self._gives(s)
            ports[s] = Ports((*(node.name for node in self.takes[s]), *(BATCH + node.name for node in self.data[s])),
                             tuple(node.name for node in gives))
            for node in self.given[s]:
                boundaries[node.name] = _boundary(node)
        results = tuple(leaf.name if isinstance(leaf, Node) else leaf for leaf in self.captured.results)
        wanted = range(self.count) if only is None else only
        modules, treatment = {s: self._module(s, plain, seeded or not plain) for s in wanted}, self.captured.treatment
        if treatment is not None and not plain:
            modules = treatment.of(self.places, modules, self.purity.light)
        untrained = frozenset(name.name for own in self.given.values() for name in own
                              if name not in self.purity.learned)
        return StageModules(modules, ports, boundaries, results, untrained)

    def doubtful(self, results: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """See :meth:`~weft.runtime.captured.division.ModelDivision.doubtful`."""
        learned, given = self.purity.learned, {node for own in self.given.values() for node in own}
        sets: list[frozenset[str]] = []
        for result in (leaf for leaf in self.captured.results if leaf in learned and leaf.name in results):
            needed, left = {result}, [result]
            while left:
                node = left.pop()
                before = learned & {*node.all_input_nodes, *self.purity.writers_of(node)} - needed
                needed |= before
                left += before
            sets.append(frozenset(node.name for node in given - needed))
        return frozenset.intersection(*sets or [frozenset()]), frozenset().union(*sets)

    def ties(self) -> list[dict[int, str]]:
        """The trained parameters that several stages read: for each, its name in the stage's module, by stage."""
        readers: dict[int, dict[int, str]] = {}
        for s, parameters in enumerate(self.parameters):
            for parameter in parameters:
                name = self.captured.name_of(parameter)
                assert name is not None
                readers.setdefault(id(parameter), {})[s] = graph_name(name)
        return [names for names in readers.values() if len(names) > 1]

    def spans(self) -> tuple[tuple[str, str], ...]:
        """The first and the last operator of each stage."""
        calls = self.captured.calls
        return tuple((calls[a].name, calls[b - 1].name) for a, b in pairwise((0, *self.places, len(calls))))

    # -- operators of stages -------------------------------------------------------------------------------------------

    def _require_places(self) -> None:
        count, forbidden = len(self.captured.calls), self.purity.forbidden()
        for before, place in zip((0, *self.places), self.places, strict=False):
            if not before < place < count:
                raise CaptureError(f"a cut at operator {place} of {count}, after one at {before}: cuts must rise, and "
                                   "leave each stage an operator")
            if place in forbidden:
                node = forbidden[place]
                raise CaptureError(f"the operator {node.name}{where(node)} writes in place into what an operator "
                                   f"before the cut at {place} made or reads: cut elsewhere, or write "
                                   "x = f(x) in the model")

    def _stage(self, node: Node) -> int:
        return bisect_right(self.places, self.purity.place[_producer(node)])

    def _wanted(self, s: int) -> list[Node]:
        """All nodes that stage ``s`` computes or reads, in the graph's order."""
        wanted = {node for node, stage in self.stage.items() if stage == s}
        if s == self.count - 1:
            wanted.update(leaf for leaf in self.captured.results if isinstance(leaf, Node))
        waiting = list(wanted)
        while waiting:
            node = waiting.pop()
            if node in self.stage and self.stage[node] != s:
                continue  # received through a port
            for arg in node.all_input_nodes:
                if arg not in wanted:
                    wanted.add(arg)
                    waiting.append(arg)
        return [node for node in self.captured.graph_module.graph.nodes if node in wanted]

    def _enter(self, s: int) -> None:
        for node in self._wanted(s):
            if node.op == "placeholder":
                if tensors(node) is not None:
                    self.data[s].append(node)
            elif node in self.stage and self.stage[node] != s:
                if self.stage[node] > s:
                    raise CaptureError(f"stage {s} reads {node.name}{where(node)}, which stage {self.stage[node]} "
                                       "makes")
                if tensors(node) is None:
                    raise CaptureError(f"stage {s} reads {node.name}{where(node)}, which is no tensor and cannot be "
                                       "sent: cut elsewhere")
                self.takes[s].append(node)

    def _gives(self, s: int) -> list[Node]:
        """The outputs of stage ``s``: values that other stages take; the model's results for the last stage."""
        if s < self.count - 1:
            return self.given[s]
        return list(dict.fromkeys(leaf for leaf in self.captured.results if isinstance(leaf, Node)))

    # -- modules -------------------------------------------------------------------------------------------------------

    def _module(self, s: int, plain: bool, seeded: bool) -> GraphModule:
        graph, root = Graph(), nn.Module()
        env: dict[Node, Node] = {}
        for node in (*self.takes[s], *self.data[s]):
            env[node] = graph.placeholder(node.name)
        operators = nn.Module()
        root.add_module(OPERATORS, operators)
        wanted = self._wanted(s)
        layers = Layers([node for node in wanted if node not in env and not plain], self._gives(s), self.purity)
        for node in wanted:
            if node in env or node.op == "placeholder" or node in layers.absorbed:
                continue
            if node.op == "get_attr":
                env[node] = graph.get_attr(self._put(root, node))
            elif (layer := layers.layers.get(node)) is not None:
                operators.add_module(node.name, node.target.around(layer.module) if isinstance(
                    node.target, UnderAutocast) else layer.module)
                env[node] = graph.call_module(f"{OPERATORS}.{node.name}", tuple(env[x] for x in layer.xs))
            elif seeded and draws(node):
                operators.add_module(node.name, Seeded(node.target, self.purity.place[node]))  # type: ignore[arg-type]
                env[node] = graph.call_module(f"{OPERATORS}.{node.name}", *map_arg(
                    (node.args, node.kwargs), lambda arg: env[arg]))
            else:
                env[node] = graph.node_copy(node, lambda arg: env[arg])
        for node, own in env.items():
            own.meta.update(node.meta, **{OPERATOR: node})
        graph.output(tuple(env[node] for node in self._gives(s)))
        for read in graph.find_nodes(op="get_attr"):
            if not read.users:
                graph.erase_node(read)  # layers contain it
        module = GraphModule(root, graph, class_name=f"Stage{s}")
        self._name(module, root)
        module.train(self.captured.model.training)
        return module

    def _put(self, root: nn.Module, node: Node) -> str:
        """Register the tensor of ``node`` in ``root`` under the model's name as adapted to graphs; returns the name."""
        value = self.captured.attribute(node)
        own = self.captured.name_of(value) if isinstance(value, Tensor) else None
        name = str(node.target) if own is None else graph_name(own)
        register(root, name, value)
        return name

    def _name(self, module: nn.Module, root: nn.Module) -> None:
        """Register all tensors of ``root`` in ``module`` under the model's names, before those of operators; submodules
        get the class names of the model's modules."""
        own = module._modules.pop(OPERATORS, None)
        for name, parameter in root.named_parameters(remove_duplicate=False):
            if not name.startswith(OPERATORS + "."):
                register(module, name, parameter)
        kinds = {path: type(part).__name__ for path, part in self.captured.model.named_modules()}
        for path, part in module.named_modules():
            if path in kinds and type(part) is nn.Module:
                part.__class__ = type(kinds[path], (nn.Module,), {})
        if own is not None:
            module._modules[OPERATORS] = own


def register(root: nn.Module, name: str, value: Any) -> None:
    """Register ``value`` in ``root`` under ``name``, which may be a dotted path, unless the name exists."""
    path, _, leaf = name.rpartition(".")
    for step in path.split(".") if path else ():
        if not hasattr(root, step):
            root.add_module(step, nn.Module())
        root = getattr(root, step)
    if hasattr(root, leaf):
        return
    if isinstance(value, nn.Parameter):
        root.register_parameter(leaf, value)
    elif isinstance(value, Tensor):
        root.register_buffer(leaf, value)
    else:
        setattr(root, leaf, value)


def _boundary(node: Node) -> Boundary:
    fake = tensors(node)
    assert fake is not None
    return Boundary(tuple(fake.shape), fake.dtype)


def _producer(node: Node) -> Node:
    """The operator that ``node`` selects a result of, otherwise ``node``: both are in one stage."""
    while is_item(node) and isinstance(node.args[0], Node) and node.args[0].op.startswith("call"):
        node = node.args[0]
    return node


def _users(node: Node, purity: Purity) -> list[Node]:
    """The non-free operators that read ``node``. Items of it count separately."""
    return [user for user in node.users if user not in purity.free and not is_item(user)]
