"""Small models in the shapes that the executor can run: chains, skips, branches, and the M, NN, K and X placements.

Each :class:`Case` is a block problem with a module for every stage (:mod:`tests.support.stage_modules`), whole;
:mod:`tests.support.graph_training` trains it. :func:`varied` turns a problem's full backwards into split ones,
or adds recomputation or offload.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from tests.support.stage_modules import BATCH, LENGTH, VOCABULARY, Both, Embed, Mix, Score
from tests.support.tessel_shapes import shape
from weft.runtime import StageGraph
from weft.solver.offload import Offload, with_offloads
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

MODES = ("full", "split", "recompute", "offload", "offload beside", "split and recompute")


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A stage: how its whole module is made, and what it takes and gives."""

    make: Callable[[], nn.Module]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A block problem, and the node of each forward block by name. ``ties`` name parameters by block."""

    name: str
    problem: Problem
    nodes: Mapping[str, Node]
    ties: Sequence[Mapping[str, str]] = ()
    losses: tuple[str, ...] = ("loss",)
    seeds: Mapping[str, str] = field(default_factory=dict)  # block -> block whose first weights it has too

    @cached_property
    def graph(self) -> StageGraph:
        return StageGraph.of(self.problem)

    @cached_property
    def stages(self) -> list[Node]:
        """The nodes by stage."""
        return [self.nodes[self.block(s)] for s in range(len(self.graph.stages))]

    def block(self, stage: int) -> str:
        """The name of a stage's forward block."""
        return self.problem.blocks[self.graph.stages[stage].blocks["F"]].name

    def modules(self, dtype: torch.dtype) -> list[nn.Module]:
        """All stages' whole modules; the same for the same arguments."""
        made = []
        for s, node in enumerate(self.stages):
            name = self.seeds.get(self.block(s), self.block(s))
            torch.manual_seed(sum(name.encode()) * 31 + len(name))
            made.append(node.make().to(dtype))
        for tie in self.numbered_ties():
            (first, its), *others = tie.items()
            for stage, parameter in others:
                made[stage].get_parameter(parameter).data.copy_(made[first].get_parameter(its).data)
        return made

    def numbered_ties(self) -> list[dict[int, str]]:
        """The ties by stage."""
        places = {self.block(s): s for s in range(len(self.graph.stages))}
        return [dict(sorted((places[block], name) for block, name in tie.items())) for tie in self.ties]

    def data(self, step: int, micro_batch: int) -> dict[str, Tensor]:
        """Tokens for every value that no stage gives."""
        given = {value for node in self.stages for value in node.gives}
        names = sorted({value for node in self.stages for value in node.takes} - given)
        chance = torch.Generator().manual_seed(1000 * step + micro_batch)
        return {name: torch.randint(VOCABULARY, (BATCH, LENGTH), generator=chance) for name in names}


def graph_problem(name: str, stages: Mapping[str, tuple[Sequence[int], Sequence[str]]]) -> Problem:
    """A problem of full backwards: per forward block its devices and the forwards it waits for."""
    consumers: dict[str, list[str]] = {block: [] for block in stages}
    for block, (_, waits) in stages.items():
        for other in waits:
            consumers[other].append(block)
    blocks = [Block(block, BlockKind.FORWARD, tuple(devices), 1, (1,), (), tuple(Dependency(w) for w in waits))
              for block, (devices, waits) in stages.items()]
    for block, (devices, _) in reversed(list(stages.items())):
        waits = [f"{other}'" for other in consumers[block]] or [block]
        blocks.append(Block(f"{block}'", BlockKind.BACKWARD, tuple(devices), 2, (-1,), (),
                            tuple(Dependency(other) for other in waits)))
    count = 1 + max(device for devices, _ in stages.values() for device in devices)
    return Problem(name, tuple(Device(f"rank {d}") for d in range(count)), tuple(blocks))


def case(name: str, ranks: int) -> Case:
    """The case ``name`` on ``ranks`` ranks. Raises ``KeyError`` for an unknown name."""
    return _CASES[name](ranks)


def _line(problem: Problem, blocks: Sequence[str], name: str) -> Case:
    """Embedding at the first of ``blocks``, loss at the last, one value from each to the next."""
    values = [f"x{i}" for i in range(len(blocks) - 1)]
    nodes = {block: Node(Mix, (values[i - 1],), (values[i],)) for i, block in enumerate(blocks[:-1]) if i}
    nodes[blocks[0]] = Node(Embed if len(problem.blocks[0].devices) > 1 else Both, ("tokens",), (values[0],))
    nodes[blocks[-1]] = Node(Score, (values[-1], "target"), ("loss",))
    return Case(name, problem, nodes)


def _forwards(problem: Problem) -> list[str]:
    return [block.name for block in problem.blocks if block.kind == BlockKind.FORWARD]


def _v(ranks: int) -> Case:
    problem = shape("chain", ranks, 99)
    return _line(problem, _forwards(problem), "V")


def _m(ranks: int) -> Case:
    problem = shape("m", ranks, 99)
    return _line(problem, _forwards(problem), "M")


def _m_head(ranks: int) -> Case:
    """Embedding and head over all ranks, tied share by share, as are those of a large vocabulary."""
    everywhere = range(ranks)
    names = ["embed", *(f"f{d}" for d in everywhere), "head"]
    places: list[Sequence[int]] = [everywhere, *([d] for d in everywhere), everywhere]
    stages = {name: (places[i], names[i - 1:i] if i else []) for i, name in enumerate(names)}
    made = _line(graph_problem("M with a head", stages), names, "M, tied head")
    return dataclasses.replace(made, ties=[{"embed": "words.weight", "head": "head.weight"}])


def _nn(ranks: int) -> Case:
    """Encoder and decoder, which reads the encoder's result in each stage: handed on beside its own."""
    problem = shape("nn", ranks, 99)
    names, half = _forwards(problem), ranks // 2
    encoder, decoder = names[1:1 + half], names[2 + half:]
    nodes = {names[0]: Node(Embed, ("source",), ("e0",))}
    for i, block in enumerate(encoder):
        nodes[block] = Node(Mix, (f"e{i}",), (f"e{i + 1}",))
    nodes[names[1 + half]] = Node(Embed, ("tokens", f"e{half}"), ("d0", "m0"))
    for i, block in enumerate(decoder):
        nodes[block] = (Node(lambda: Score(), (f"d{i}", f"m{i}", "target"), ("loss",)) if block == decoder[-1] else
                        Node(lambda: Mix(2), (f"d{i}", f"m{i}"), (f"d{i + 1}", f"m{i + 1}")))
    return Case("NN", problem, nodes)


def _k(ranks: int) -> Case:
    """Two towers over halves of the ranks, joined over all."""
    problem = shape("k", ranks, 99)
    names = _forwards(problem)
    nodes: dict[str, Node] = {}
    for i, block in enumerate(names[:-1]):
        tower, step = "lr"[i % 2], i // 2
        nodes[block] = (Node(Mix, (f"{tower}{step - 1}",), (f"{tower}{step}",)) if step else
                        Node(Both, (f"tokens {tower}",), (f"{tower}0",)))
    last = len(names[:-1]) // 2 - 1
    nodes[names[-1]] = Node(Score, (f"l{last}", f"r{last}", "target"), ("loss",))
    return Case("K", problem, nodes)


def _x(ranks: int) -> Case:
    """Two replicas of one model in one plan, down the ranks and up: every parameter is tied to its twin."""
    down, up = [f"d{s}" for s in range(ranks)], [f"u{s}" for s in range(ranks)]
    stages = {block: ([s], down[s - 1:s] if s else []) for s, block in enumerate(down)}
    stages |= {block: ([ranks - 1 - s], up[s - 1:s] if s else []) for s, block in enumerate(up)}
    problem = graph_problem("X", stages)
    nodes: dict[str, Node] = {}
    for way, blocks in (("down", down), ("up", up)):
        for block, node in _line(problem, blocks, way).nodes.items():
            nodes[block] = Node(node.make, tuple(f"{way} {value}" for value in node.takes),
                                tuple(f"{way} {value}" for value in node.gives))
    twins = dict(zip(up, down, strict=True))
    ties = [{one: name, other: name} for other, one in twins.items()
            for name, _ in nodes[one].make().named_parameters()]
    return Case("X", problem, nodes, ties, ("down loss", "up loss"), twins)


def _skip(ranks: int) -> Case:
    """A U: each stage on the way down hands a second value to its counterpart on the way up."""
    down, up = [f"d{s}" for s in range(ranks)], [f"u{s}" for s in range(ranks)]
    stages: dict[str, tuple[Sequence[int], Sequence[str]]] = {}
    nodes: dict[str, Node] = {}
    for s, block in enumerate(down):
        stages[block] = ([s], down[s - 1:s] if s else [])
        nodes[block] = Node(lambda: Mix(2), (f"x{s - 1}",), (f"x{s}", f"skip{s}"))
    for i, block in enumerate(up):  # up[i] is the counterpart of down[-1 - i]; the lowest reads it alone
        s, before = ranks - 1 - i, up[i - 1:i] if i else down[-1:]
        stages[block] = ([(s + 1) % ranks], [*before, *(down[s:s + 1] if i else [])])
        took = f"y{i - 1}" if i else f"x{ranks - 1}"
        nodes[block] = Node(Mix, (took, f"skip{s}"), (f"y{i}",))
    nodes[down[0]] = Node(partial(Both, 2), ("tokens",), ("x0", "skip0"))
    nodes[up[-1]] = Node(Score, (f"y{ranks - 2}" if ranks > 1 else "x0", "skip0", "target"), ("loss",))
    return Case("skip connections", graph_problem("U", stages), nodes)


def _branches(ranks: int) -> Case:
    """A stem, branches on the other ranks (one value to all, one to the first), a loss in the first branch, a join."""
    branches = [f"b{d}" for d in range(1, ranks)]
    stages: dict[str, tuple[Sequence[int], Sequence[str]]] = {"stem": ([0], [])}
    stages |= {block: ([d + 1], ["stem"]) for d, block in enumerate(branches)}
    stages["join"] = ([0], branches)
    nodes = {"stem": Node(partial(Both, 2), ("tokens",), ("x", "aside")),
             branches[0]: Node(lambda: Score(2), ("x", "aside", "target"), ("y0", "early loss"))}
    nodes |= {block: Node(Mix, ("x",), (f"y{d}",)) for d, block in enumerate(branches) if d}
    nodes["join"] = Node(Score, (*(f"y{d}" for d in range(len(branches))), "target"), ("loss",))
    return Case("branches, two losses", graph_problem("branches", stages), nodes, losses=("loss", "early loss"))


def _tied(ranks: int) -> Case:
    """A chain whose embedding, on the first rank, is the head's weight, on the last."""
    made = _v(ranks)
    first, *_, last = _forwards(made.problem)
    return dataclasses.replace(made, name="chain, tied", ties=[{first: "embed.words.weight", last: "head.weight"}])


_CASES: dict[str, Callable[[int], Case]] = {
    "V": _v, "tied": _tied, "M": _m, "M head": _m_head, "NN": _nn, "K": _k, "X": _x, "skip": _skip,
    "branches": _branches,
}


SHAPES = tuple(_CASES)


# -- passes ------------------------------------------------------------------------------------------------------------


def varied(made: Case, mode: str) -> Case:
    """``made`` with its backwards as one of :data:`MODES`, or with forwards only (``"forward"``)."""
    problem, graph = made.problem, made.graph
    if mode == "forward":
        blocks = [dataclasses.replace(block, memory=(0,) * len(block.devices)) for block in problem.blocks
                  if block.kind == BlockKind.FORWARD]
        return dataclasses.replace(made, problem=dataclasses.replace(problem, blocks=tuple(blocks)))
    if mode == "offload beside":
        pairs = [[problem.blocks[stage.blocks[letter]] for letter in "FB"] for stage in graph.stages]
        entries = [Offload(forward.name, backward.name, max((1, *forward.memory)), 0.4) for forward, backward in pairs]
        holding = {block.name: dataclasses.replace(block, memory=tuple(sign * max((1, *forward.memory))
                                                                       for _ in block.devices))
                   for forward, backward in pairs for block, sign in ((forward, 1), (backward, -1))}
        problem = dataclasses.replace(problem, blocks=tuple(holding.get(b.name, b) for b in problem.blocks))
        return dataclasses.replace(made, problem=with_offloads(problem, entries, 0.01))
    blocks, first_waits = list(problem.blocks), {}
    for stage in graph.stages:
        forward, backward = (problem.blocks[stage.blocks[letter]] for letter in "FB")
        name, again = backward.name, tuple(item for item in backward.after)
        extra: list[Block] = []
        if mode == "offload":
            sizes = (1,) * len(stage.ranks)
            extra = [Block(f"{name} out", BlockKind.OTHER, forward.devices, 0.2, tuple(-size for size in sizes), (),
                           (Dependency(forward.name),)),
                     Block(f"{name} in", BlockKind.OTHER, forward.devices, 0.2, sizes, (),
                           (Dependency(f"{name} out"), *again))]
        if "recompute" in mode:
            extra = [Block(f"{name} again", BlockKind.RECOMPUTE, forward.devices, 1, (0,), (), again)]
        after = (*again, *(Dependency(block.name) for block in extra[-1:]))
        kind = BlockKind.INPUT_GRAD if "split" in mode else BlockKind.BACKWARD
        passes = [dataclasses.replace(backward, kind=kind, duration=1, after=after)]
        if "split" in mode:
            passes[0] = dataclasses.replace(passes[0], memory=(0,) * len(backward.devices))
            passes.append(Block(f"{name} weights", BlockKind.WEIGHT_GRAD, backward.devices, 1, backward.memory, (),
                                (Dependency(name),)))
        first_waits[name] = [*extra, *passes]
    result = [other for block in blocks for other in first_waits.get(block.name, [block])]
    return dataclasses.replace(made, problem=dataclasses.replace(problem, blocks=tuple(result)))
