"""The steps of a pass over a grid of chunks: loads, computations and stores, and their memory.

Forward, layer by layer: the values that edges read at their ends are *prepared* once a vertex and kept on the host.
Then column by column: a column is *opened* (its accumulator), chunk after chunk of edges is *loaded* with its sources'
values and *gathered*, and *vertex* makes the column's output, which is stored. Backward, from the last layer:
*vertex_back* converts a column's gradient to the values that its edges need; then row by row, a row is *row_opened*
(the gradient of its sources), chunks are *loaded_back* and *gathered_back*, and *prepare_back* gives the gradient of
the layer's inputs. Messages are recomputed, so no edge value ever leaves the device.

Loads and stores are on separate lanes; the host's memory is not limited here. With several devices each owns vertex
chunks with their columns and rows; results are exchanged between layers, on network lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.models.graph_network.graph import ChunkGrid
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: Bytes of an index, of a label, and the nominal bytes of a block that moves nothing (it takes time nevertheless).
_INDEX, _LABEL, _MOMENT = 4, 8, 1e-7


@dataclass(frozen=True)
class Need:
    """Peak bytes of a computation beyond its inputs, including its results: an amount for each edge, source and target,
    and ``fixed``."""

    fixed: int = 0
    edge: int = 0
    source: int = 0
    target: int = 0

    def of(self, edges: int, sources: int, targets: int) -> int:
        """Of a chunk."""
        return self.fixed + self.edge * edges + self.source * sources + self.target * targets


@dataclass(frozen=True)
class LayerSize:
    """Columns of a layer's values at a vertex: inputs, outputs, values read by edges at sources and targets,
    accumulators, values needed at targets by the backward of edges. ``needs``: of its computations by kind of step,
    those of ``gather`` unfused. ``loops``: its grid, with or without self-loops."""

    inputs: int
    outputs: int
    source: int
    target: int
    state: int
    back: int
    needs: Mapping[str, Need]
    loops: bool = False
    fuses: bool = False


@dataclass(frozen=True)
class Choice:
    """The decisions besides the order. ``chunks``: along a side; ``resident``: this many of each layer's source chunks,
    the first ones, stay on the device from their first load in a forward to their last use, and are loaded once;
    ``fused``: layers that allow it run as sparse products; ``selective``: sources that no edge of a chunk uses are
    omitted if that moves less; ``ranks``: devices."""

    chunks: int
    resident: int = 0
    fused: bool = False
    selective: bool = False
    ranks: int = 1

    @property
    def title(self) -> str:
        """In words."""
        told = [f"{self.chunks} x {self.chunks} chunks"]
        told += [f"{self.resident} source chunks resident"] if self.resident else []
        told += [word for word, on in (("fused", self.fused), ("selective loads", self.selective)) if on]
        return ", ".join([*told, *([f"columns on {self.ranks} devices"] if self.ranks > 1 else [])])


@dataclass(frozen=True)
class StreamStep:
    """One block. ``kind`` and its position: ``layer``, row ``i``, column ``j`` (-1: none). ``lane``: of rank ``rank``
    (-1: of all), ``compute``, ``loads``, ``stores`` or ``network``. ``change``: of the allocated bytes; ``extra``:
    additional bytes while it runs; ``moved``: bytes. ``edges``, ``sources``, ``targets``: the numbers it computes
    on."""

    kind: str
    layer: int
    i: int
    j: int
    rank: int
    lane: str
    after: tuple[str, ...] = ()
    change: int = 0
    extra: int = 0
    moved: int = 0
    edges: int = 0
    sources: int = 0
    targets: int = 0

    @property
    def name(self) -> str:
        """A name unique in a pass."""
        return ".".join([self.kind, *(str(part) for part in (self.layer, self.i, self.j) if part >= 0)])


#: Kind, layer, row and column of a :class:`Step`.
Place: TypeAlias = tuple[str, int, int, int]


@dataclass
class Pass:
    """The steps of one pass, in an order in which they can run sequentially.

    ``grids``: without and with self-loops; ``itemsize``: bytes of an element. ``training``: with loss and backward.
    """

    layers: Sequence[LayerSize]
    grids: Mapping[bool, ChunkGrid]
    choice: Choice
    itemsize: int = 4
    training: bool = True
    steps: list[StreamStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        grid = self.grids[self.layers[0].loops]
        self.rows, self.chunks = grid.rows, range(self.choice.chunks)
        self.owner = grid.owners(self.choice.ranks)
        count = len(self.layers)
        for nth in range(count):
            self._prepare(nth)
            self._columns(nth)
        if self.training:
            self._loss(count - 1)
            for nth in reversed(range(count)):
                self._vertices_back(nth)
                self._rows_back(nth)
                self._prepare_back(nth)

    def fused(self, nth: int) -> bool:
        """Whether layer ``nth`` runs as sparse products."""
        return self.choice.fused and self.layers[nth].fuses

    def edge_bytes(self, nth: int, edges: int, begins: int) -> int:
        """Bytes of a chunk's indices on the device: both ends, or one end and the start of each of ``begins`` rows."""
        if self.fused(nth):
            return _INDEX * (edges + begins + 1)
        return 2 * _INDEX * edges

    def selected(self, nth: int, i: int, j: int) -> bool:
        """Whether chunk (i, j) loads only its used sources: if they are less than three quarters, as selected rows move
        more slowly."""
        size = self.layers[nth]
        return (self.choice.selective and i >= self.choice.resident and not self.fused(nth)
                and 4 * int(self.grids[size.loops].used[i, j]) < 3 * self.rows[i])

    def problem(self, name: str, budget: int | None, static: int, seconds: Callable[[StreamStep], float]) -> Problem:
        """The block problem of this pass: every step takes ``seconds``. ``budget``: bytes of each device, including
        ``static`` bytes for parameters and the like."""
        ranks, lanes = self.choice.ranks, ("loads", "stores", *(("network",) if self.choice.ranks > 1 else ()))
        devices = [Device(f"device{r}", None if budget is None else budget - static, static) for r in range(ranks)]
        devices += [Device(f"{lane}{r}", lane_of=f"device{r}") for r in range(ranks) for lane in lanes]
        place = {device.name: d for d, device in enumerate(devices)}
        blocks = []
        for step in self.steps:
            label = "device" if step.lane == "compute" else step.lane
            on = tuple(place[f"{label}{r}"] for r in (range(ranks) if step.rank < 0 else (step.rank,)))
            kind = BlockKind.COLLECTIVE if step.lane == "network" else BlockKind.OTHER
            blocks.append(Block(step.name, kind, on, max(_MOMENT, seconds(step)), (step.change,), (step.extra,),
                                tuple(map(Dependency, step.after))))
        return Problem(name, tuple(devices), tuple(blocks))

    @property
    def least_memory(self) -> int:
        """Peak bytes of a device if steps run sequentially as listed, which is close to the minimum: a chunk is loaded
        right before it is computed."""
        return max(self.sequential_peaks)

    @property
    def sequential_peaks(self) -> list[int]:
        """By rank."""
        held, peaks = [0] * self.choice.ranks, [0] * self.choice.ranks
        for step in self.steps:
            if step.rank >= 0:
                peaks[step.rank] = max(peaks[step.rank], held[step.rank] + max(step.change, 0) + step.extra)
                held[step.rank] += step.change
        return peaks

    @property
    def unavoidable_memory(self) -> int:
        """The bytes that some computation of a chunk needs together with its inputs: less is insufficient in any
        order."""
        given = {step.name: max(step.change, 0) for step in self.steps}
        return max((step.extra + max(step.change, 0) + sum(given[name] for name in step.after if name.split(".")[0] in (
            "open", "load", "row_open", "load_back", "in", "enter", "back_in", "prepare_in", "see"))
            for step in self.steps if step.lane == "compute"), default=0)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _add(self, place: Place, lane: str, after: Sequence[str] = (), *, rank: int | None = None, change: int = 0,
             extra: int = 0, moved: int = 0, size: tuple[int, int, int] = (0, 0, 0)) -> str:
        _, _, i, j = place
        step = StreamStep(*place, self.owner[max(i, j) if i < 0 or j < 0 else j] if rank is None else rank, lane,
                          tuple(dict.fromkeys(after)), change, extra, moved, *size)
        self.steps.append(step)
        return step.name

    def _load(self, place: Place, after: Sequence[str], size: int, rank: int | None = None) -> str:
        return self._add(place, "loads", after, change=size, moved=size, rank=rank)

    def _compute(self, place: Place, after: Sequence[str], need: Need, change: int, size: tuple[int, int, int],
                 rank: int | None = None) -> str:
        return self._add(place, "compute", after, change=change, rank=rank,
                         extra=max(0, need.of(*size) - max(change, 0)), size=size)

    def _all(self, kind: str, layer: int) -> list[str]:
        return [f"{kind}.{layer}.{k}" for k in self.chunks]

    def _shared(self, kind: str, layer: int, after: Sequence[str], columns: int) -> Sequence[str]:
        """The exchange of the data stored by the steps ``after``, between several devices."""
        return [self._add((kind, layer, -1, -1), "network", after, rank=-1,
                          moved=columns * sum(self.rows) * self.itemsize)]

    def _prepare(self, nth: int) -> None:
        size, s = self.layers[nth], self.itemsize
        for k in self.chunks:
            n, given = self.rows[k], (size.inputs + 1) * self.rows[k] * s
            made = (size.source + size.target) * n * s
            there = self._load(("in", nth, k, -1), [f"leave.{nth - 1}.{k}"] if nth else [], given)
            done = self._compute(("prepare", nth, k, -1), [there], size.needs["prepare"], made - given, (0, 0, n))
            self._add(("keep", nth, k, -1), "stores", [done], change=-made, moved=made)
        self.kept = {k: [f"keep.{nth}.{k}"] for k in self.chunks}
        if self.choice.ranks > 1:
            shared = self._shared("exchange", nth, self._all("keep", nth), size.source + size.target)
            self.kept = {k: list(shared) for k in self.chunks}

    def _columns(self, nth: int) -> None:
        size, s, grid = self.layers[nth], self.itemsize, self.grids[self.layers[nth].loops]
        resident: dict[tuple[int, int], str] = {}
        users: dict[tuple[int, int], list[str]] = {}
        for j in self.chunks:
            m, rank = self.rows[j], self.owner[j]
            state, at_target = size.state * m * s, size.target * m * s
            opened = self._add(("open", nth, -1, j), "loads", self.kept[j] if size.target else [],
                               change=state + at_target, moved=at_target)
            gathered = []
            for i in self.chunks:
                edges, stays = grid.edges(i, j), i < self.choice.resident
                used = int(grid.used[i, j]) if self.selected(nth, i, j) else self.rows[i]
                indices, values = self.edge_bytes(nth, edges, m), used * size.source * s
                after = list(self.kept[i])
                if stays and (i, rank) not in resident:
                    resident[i, rank] = self._load((f"stay{rank}" if self.choice.ranks > 1 else "stay", nth, i, -1),
                                                   after, values, rank)
                if stays:
                    after, values = [], 0
                there = self._load(("load", nth, i, j), after, indices + values)
                need = size.needs["fused" if self.fused(nth) else "gather"]
                gathered.append(self._compute(
                    ("gather", nth, i, j), [there, opened, *([resident[i, rank]] if stays else [])], need,
                    -indices - values, (edges, used, m)))
                if stays:
                    users.setdefault((i, rank), []).append(gathered[-1])
            entered = self._load(("enter", nth, -1, j), [f"leave.{nth - 1}.{j}"] if nth else [],
                                 (size.inputs + 1) * m * s)
            stored = (size.outputs + (size.state if self.training else 0)) * m * s
            done = self._compute(("vertex", nth, -1, j), [entered, opened, *gathered], size.needs["vertex"],
                                 stored - state - at_target - (size.inputs + 1) * m * s, (0, 0, m))
            self._add(("leave", nth, j, -1), "stores", [done], change=-stored, moved=stored)
        for (i, rank), done_with in users.items():
            self._add((f"drop{rank}" if self.choice.ranks > 1 else "drop", nth, i, -1), "stores", done_with, rank=rank,
                      change=-self.rows[i] * size.source * s)

    def _loss(self, nth: int) -> None:
        for j in self.chunks:
            n, s, outputs = self.rows[j], self.itemsize, self.layers[nth].outputs
            given, made = outputs * n * s + _LABEL * n, outputs * n * s
            there = self._load(("see", nth, -1, j), [f"leave.{nth}.{j}"], given)
            done = self._compute(("loss", nth, -1, j), [there], self.layers[nth].needs["loss"], made - given, (0, 0, n))
            self._add(("tell", nth, j, -1), "stores", [done], change=-made, moved=made)

    def _vertices_back(self, nth: int) -> None:
        size, s = self.layers[nth], self.itemsize
        before = "tell" if nth + 1 == len(self.layers) else "prepare_out"
        at = nth if before == "tell" else nth + 1
        for j in self.chunks:
            n = self.rows[j]
            given = (size.outputs + size.inputs + 1 + size.state) * n * s
            made = (size.back + (size.inputs if nth else 0)) * n * s
            there = self._load(("back_in", nth, -1, j), [f"{before}.{at}.{j}", f"leave.{nth}.{j}"], given)
            done = self._compute(("vertex_back", nth, -1, j), [there], size.needs["vertex_back"], made - given,
                                 (0, 0, n))
            self._add(("back_out", nth, j, -1), "stores", [done], change=-made, moved=made)
        self.backs = {k: [f"back_out.{nth}.{k}"] for k in self.chunks}
        if self.choice.ranks > 1:
            shared = self._shared("exchange_back", nth, self._all("back_out", nth), size.back)
            self.backs = {k: list(shared) for k in self.chunks}

    def _rows_back(self, nth: int) -> None:
        size, s, grid = self.layers[nth], self.itemsize, self.grids[self.layers[nth].loops]
        for i in self.chunks:
            n, rank = self.rows[i], self.owner[i]
            values = size.source * n * s
            # A row begins once all columns are done: a sparse product reads the nth value of its sources.
            opened = self._add(("row_open", nth, i, -1), "loads", self.backs[i], change=2 * values, moved=values)
            done = []
            for j in self.chunks:
                m, edges = self.rows[j], grid.edges(i, j)
                given = (size.target + size.back) * m * s + self.edge_bytes(nth, edges, n)
                there = self._load(("load_back", nth, i, j), self.backs[j], given, rank)
                need = size.needs["fused_back" if self.fused(nth) else "gather_back"]
                made = size.target * m * s
                done.append(self._compute(("gather_back", nth, i, j), [there, opened], need, made - given,
                                          (edges, n, m), rank))
                if made:
                    done.append(self._add(("add", nth, i, j), "stores", [done[-1]], change=-made, moved=made,
                                          rank=rank))
            self._add(("row_keep", nth, i, -1), "stores", done, change=-2 * values, moved=values)

    def _prepare_back(self, nth: int) -> None:
        size, s = self.layers[nth], self.itemsize
        added: Mapping[int, Sequence[str]] = {k: [f"add.{nth}.{i}.{k}" for i in self.chunks] if size.target else []
                                              for k in self.chunks}
        if self.choice.ranks > 1 and size.target:
            shared = self._shared("sum", nth, self._all("row_keep", nth), size.target)
            added = dict.fromkeys(self.chunks, shared)
        for k in self.chunks:
            n, wanted = self.rows[k], size.inputs if nth else 0
            given = (size.inputs + 1 + size.source + size.target + wanted) * n * s
            there = self._load(("prepare_in", nth, k, -1), [f"row_keep.{nth}.{k}", *added[k], f"back_out.{nth}.{k}"],
                               given)
            done = self._compute(("prepare_back", nth, k, -1), [there], size.needs["prepare_back"],
                                 wanted * n * s - given, (0, 0, n))
            if wanted:
                self._add(("prepare_out", nth, k, -1), "stores", [done], change=-wanted * n * s, moved=wanted * n * s)
