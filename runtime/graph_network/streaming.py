"""One rank's pass over a grid of chunks: the work of each block of its plan, within a budget.

It is a worker of the executor (:mod:`weft.runtime.execute.executor`), which runs the device, loads, stores and the
network in separate threads (on a GPU: streams) in the plan's order. Tensors that blocks pass to each other on the
device are in :mod:`weft.runtime.graph_network.device_tensors`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.execute.executor import Parcel, Task, Worker
from weft.runtime.graph_network import kernels
from weft.runtime.graph_network.account import Account
from weft.runtime.graph_network.device_tensors import DeviceTensors, PassLike, StepLike
from weft.runtime.graph_network.host import ChunkedEdges, Host
from weft.runtime.graph_network.kernels import Edges, LayerInput
from weft.runtime.graph_network.layers import GraphNetwork
from weft.runtime.interface.training import Boundary
from weft.runtime.plan.program import BlockWork, Work
from weft.runtime.ranks.stopwatch import sleep_until

#: The message to a rank that waits for a block: the block is complete.
_DONE = "done"
#: By kind of step, the host's arrays whose rows it loads to the device.
_BROUGHT: Mapping[str, tuple[str, ...]] = {
    "in": ("inputs", "degree"), "stay": ("source",), "enter": ("inputs", "degree"), "see": ("outputs", "labels"),
    "prepare_in": ("inputs", "degree", "g_source", "g_target", "g_inputs")}
#: By kind of step, the step whose results it stores, and the host's arrays for them.
_STORED: Mapping[str, tuple[str, ...]] = {
    "keep": ("prepare", "source", "target"), "leave": ("vertex", "outputs", "state"), "tell": ("loss", "g_outputs"),
    "back_out": ("vertex_back", "back", "g_inputs"), "prepare_out": ("prepare_back", "g_inputs")}


class ChunkWorker(DeviceTensors, Worker):
    """Runs the blocks of one rank: ``steps`` of ``network`` with ``parameters`` on ``device``.

    ``features``: one row per vertex, in memory or memory-mapped. ``labels``: one class per vertex, -1 if the loss skips
    it; ``None``: ``steps`` have no backward, and only outputs are computed. ``budget``: bytes of the device's tensors,
    parameters, gradients and Adam's state included. ``seconds``: the least duration of a step (on CPUs), to emulate
    links and devices.

    Raises :class:`~weft.runtime.graph_network.account.OverBudget` if the parameters alone do not fit.
    """

    def __init__(self, network: GraphNetwork, parameters: Sequence[Mapping[str, Tensor]], steps: PassLike,
                 features: Tensor, labels: Tensor | None, device: torch.device, *, budget: int | None = None,
                 seconds: Callable[[StepLike], float] = lambda step: 0.0) -> None:
        dtype, pinned = next(iter(parameters[0].values())).dtype, device.type == "cuda"
        super().__init__(next(iter(steps.grids.values())).begins, Account(budget), device, dtype)
        self.network, self.parameters, self.steps, self._seconds = network, parameters, steps, seconds
        for value in self.values():
            value.grad = torch.zeros_like(value)
            self.account.hold(value)
            self.account.hold(value.grad)
        self.found = kernels.network_widths(network, parameters)
        self.host = Host(network, self.found, features, labels,
                         {loops: ChunkedEdges(grid, pinned) for loops, grid in steps.grids.items()}, dtype, pinned)
        self._by_name = {step.name: step for step in steps.steps}
        self._stays = {(step.layer, step.i) for step in steps.steps if step.kind.startswith("stay")}
        self.seeds = [0] * len(network.layers)
        self.dropout = 0.0
        self.group: dist.ProcessGroup | None = None  # all ranks, if there are several
        self._weight = 1.0 if labels is None else 1 / max(1, int((labels >= 0).sum()))  # of a vertex in the loss
        self.loss = torch.zeros((), dtype=torch.float64)
        self._tokens = {_DONE: torch.zeros(1)}

    def values(self) -> list[Tensor]:
        """All parameters."""
        return [value for own in self.parameters for value in own.values()]

    # -- as a worker of the executor -----------------------------------------------------------------------------------

    def reads(self, work: Work) -> Sequence[Work]:
        """Nothing: blocks pass tensors through this object."""
        return ()

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """A token."""
        return {_DONE: Boundary((1,), torch.float32)}

    def task(self, work: Work) -> Task:
        """The work of the block ``work``."""
        assert isinstance(work, BlockWork)
        step = self._by_name[work.block]
        kind = step.kind.rstrip("0123456789")
        act = self._from_host if kind in _BROUGHT else self._to_host if kind in _STORED else getattr(self, f"_{kind}")
        least = self._seconds(step)

        def run(results: Mapping[Work, Parcel]) -> Parcel:
            begun = time.perf_counter()
            act(step)
            if least:
                sleep_until(begun + least, time.perf_counter)
            return self._tokens
        return run

    # -- shared by steps -----------------------------------------------------------------------------------------------

    def _from_host(self, step: StepLike) -> None:
        kinds = _BROUGHT[step.kind.rstrip("0123456789")]
        self._bring(step, max(step.i, step.j), *self.host.of(step.layer, *kinds))

    def _to_host(self, step: StepLike) -> None:
        producer, *kinds = _STORED[step.kind]
        place = (step.i, -1) if producer.startswith("prepare") else (-1, step.i)
        self._store(self._taken(producer, step.layer, *place), self.host.of(step.layer, *kinds), step.i)

    def _entry(self, layer: int, chunk: int) -> LayerInput:
        return LayerInput(self.dropout, self.seeds[layer], int(self._begins[chunk]))

    def _add_gradients(self, layer: int, found: Sequence[Tensor | None]) -> None:
        for value, gradient in zip(self.parameters[layer].values(), found, strict=False):
            if gradient is not None:
                assert value.grad is not None
                value.grad.add_(gradient)

    def _edges(self, step: StepLike, by_source: bool) -> Edges:
        chunked = self.host.edges[self.network.layers[step.layer].loops]
        span = chunked.grid.span(step.i, step.j)
        if self.steps.fused(step.layer):
            begins, others = map(self._brought, chunked.sparse(step.i, step.j, by_source))
            return Edges(others, others, begins)
        if not by_source and self.steps.selected(step.layer, step.i, step.j):
            return Edges(self._brought(chunked.selected(step.i, step.j)[1]), self._brought(chunked.target[span]))
        return Edges(self._brought(chunked.source[span]), self._brought(chunked.target[span]))

    # -- forward -------------------------------------------------------------------------------------------------------

    def _prepare(self, step: StepLike) -> None:
        x, degree = self._given("in", step.layer, step.i, -1)
        with self.account.counting():
            self._put(step, *kernels.prepare(self.network.layers[step.layer], self.parameters[step.layer], x, degree,
                                             self._entry(step.layer, step.i)))

    def _open(self, step: StepLike) -> None:
        layer, rows = self.network.layers[step.layer], self._rows(step.j)
        columns = self.found[step.layer].state(layer.gather, bool(self.host.of(step.layer, "state")))
        self._bring(step, step.j, *self.host.of(step.layer, "target"),
                    new=[(rows.stop - rows.start, wide) for wide in columns])
        found = self._there["open", step.layer, -1, step.j]
        kernels.opened(layer, [tensor for tensor in found[-len(columns):] if tensor is not None])

    def _drop(self, step: StepLike) -> None:
        self._taken("stay", step.layer, step.i, -1)

    def _load(self, step: StepLike) -> None:
        edges = self._edges(step, by_source=False)
        source: Tensor | None = None
        if (step.layer, step.i) not in self._stays:
            array = self.host.of(step.layer, "source")[0][self._rows(step.i)]
            if self.steps.selected(step.layer, step.i, step.j):
                rows = self.host.edges[self.network.layers[step.layer].loops].selected(step.i, step.j)[0]
                source = self.account.room((len(rows), array.shape[1]), array.dtype, self.device)
                if self.device.type == "cpu":
                    torch.index_select(array, 0, rows, out=source)
                else:
                    source.copy_(array[rows])
            else:
                source = self._brought(array)
        self._put(step, source, *edges)

    def _gather(self, step: StepLike) -> None:
        layer = self.network.layers[step.layer]
        source, *edges = self._taken("load", step.layer, step.i, step.j)
        if source is None:
            source, = self._given("stay", step.layer, step.i, -1, keep=True)
        target, state = self._opened(step.layer, step.j)
        with self.account.counting():
            kernels.gather(layer, self.parameters[step.layer], state, source, target, Edges(*edges))  # type: ignore[arg-type]

    def _opened(self, layer: int, j: int, keep: bool = True) -> tuple[Tensor | None, list[Tensor]]:
        found = self._given("open", layer, -1, j, keep)
        return (found[0], found[1:]) if self.found[layer].target else (None, found)

    def _vertex(self, step: StepLike) -> None:
        number = step.layer
        layer, last = self.network.layers[number], number + 1 == len(self.network.layers)
        x, degree = self._given("enter", number, -1, step.j)
        _, state = self._opened(number, step.j, keep=False)
        with self.account.counting():
            total = kernels.closed(layer, state, degree)
            y = kernels.vertex(layer, self.parameters[number], x, total, degree, last, self._entry(number, step.j))
            self._put(step, y, *(state if self.host.of(number, "state") else ()))

    # -- backward ------------------------------------------------------------------------------------------------------

    def _loss(self, step: StepLike) -> None:
        y, labels = self._given("see", step.layer, -1, step.j)
        with self.account.counting():
            loss, gy = kernels.loss_back(y, labels, self._weight)
            self._put(step, gy)
        self.loss += loss.to("cpu", torch.float64)

    def _back_in(self, step: StepLike) -> None:
        number = step.layer
        last = number + 1 == len(self.network.layers)
        gy = self.host.of(number, "g_outputs") if last else self.host.of(number + 1, "g_inputs")
        self._bring(step, step.j, *gy, *self.host.of(number, "inputs", "degree", "state"))

    def _vertex_back(self, step: StepLike) -> None:
        number = step.layer
        gy, x, degree, *state = self._given("back_in", number, -1, step.j)
        with self.account.counting():
            back, gx, own = kernels.vertex_back(
                self.network.layers[number], self.parameters[number], x, state, degree, gy,
                number + 1 == len(self.network.layers), self._entry(number, step.j))
            self._add_gradients(number, own)
            self._put(step, *back, *([gx] if number else ()))

    def _row_open(self, step: StepLike) -> None:
        rows = self._rows(step.i)
        self._bring(step, step.i, *self.host.of(step.layer, "source"),
                    new=[(rows.stop - rows.start, self.found[step.layer].source)])
        into = self._there["row_open", step.layer, step.i, -1][1]
        assert into is not None
        into.zero_()

    def _load_back(self, step: StepLike) -> None:
        edges, rows = self._edges(step, by_source=True), self._rows(step.j)
        values = self.host.of(step.layer, "target", "back")
        self._put(step, *(self._brought(array[rows]) for array in values), *edges)

    def _gather_back(self, step: StepLike) -> None:
        number, layer = step.layer, self.network.layers[step.layer]
        *values, source, target, begins = self._taken("load_back", number, step.i, step.j)
        brought = [value for value in values if value is not None]
        at_target = brought.pop(0) if self.found[number].target else None
        at_source, into = self._given("row_open", number, step.i, -1, keep=True)
        assert source is not None and target is not None
        with self.account.counting():
            given, own = kernels.edges_back(layer, self.parameters[number], at_source, at_target, brought,
                                            Edges(source, target, begins), into)
            self._add_gradients(number, own)
            if given is not None:
                self._put(step, given)

    def _add(self, step: StepLike) -> None:
        found, = self._given("gather_back", step.layer, step.i, step.j)
        self.host.of(step.layer, "g_target")[0][self._rows(step.j)].add_(found.cpu())

    def _row_keep(self, step: StepLike) -> None:
        _, into = self._given("row_open", step.layer, step.i, -1)
        self._store([into], self.host.of(step.layer, "g_source"), step.i)

    def _prepare_back(self, step: StepLike) -> None:
        number = step.layer
        x, degree, *given = self._given("prepare_in", number, step.i, -1)
        gx = given.pop() if number else None
        with self.account.counting():
            found, own = kernels.prepare_back(self.network.layers[number], self.parameters[number], x, degree, given,
                                              gx, self._entry(number, step.i))
            self._add_gradients(number, own)
            self._put(step, found)

    # -- between ranks -------------------------------------------------------------------------------------------------

    def _exchange(self, step: StepLike) -> None:
        self._share(self.host.of(step.layer, "source", "target"))

    def _exchange_back(self, step: StepLike) -> None:
        self._share(self.host.of(step.layer, "back"))

    def share_outputs(self) -> None:
        """Broadcast the outputs of all ranks to all ranks."""
        self._share(self.host.of(len(self.network.layers) - 1, "outputs"))

    def _share(self, arrays: Sequence[Tensor]) -> None:
        """Broadcast every chunk from its owner."""
        for array in arrays:
            for chunk, rank in enumerate(self.steps.owner):
                dist.broadcast(array[self._rows(chunk)], rank, self.group)

    def _sum(self, step: StepLike) -> None:
        for array in self.host.of(step.layer, "g_target"):
            dist.all_reduce(array, group=self.group)
