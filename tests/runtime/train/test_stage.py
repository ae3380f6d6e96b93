"""One stage in this process: several inputs and outputs, recomputation, offload, full-precision masters, requests."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import checkpoint

from weft.runtime.interface.precision import MasterWeights
from weft.runtime.measure.measure import memory_of
from weft.runtime.train import stage
from weft.runtime.train.offload import CopyEngine
from weft.runtime.train.requests import Requests
from weft.runtime.train.stage import Offloading, StageRunner

WIDTH, CPU = 4, torch.device("cpu")


class Cell(nn.Module):
    """Two inputs, two outputs, dropout: the second input goes on unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        y = self.drop(torch.tanh(self.one(x)))
        return self.two(y) * memory, memory


def run(micro_batches: int = 3, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and input gradients, then weight gradients, of overlapping micro-batches."""
    if options.get("offload"):
        options["offloading"] = Offloading(CopyEngine(CPU), options.get("offloaded"), options.get("beside", False))
    names = ("split", "recompute", "offloading")
    torch.manual_seed(0)
    module, results = Cell().double(), list[Tensor]()
    xs = torch.randn(micro_batches, 2, WIDTH, dtype=torch.float64)
    runner = StageRunner(module, **{name: options[name] for name in names if name in options})
    torch.manual_seed(1)
    for m in range(micro_batches):
        results += runner.forward(m, xs[m], xs[m] + 1)
    for m in reversed(range(micro_batches)):
        if options.get("offload"):
            runner.offload(m)
            runner.load(m)
        if options.get("recompute"):
            runner.recompute(m)
        backward = runner.input_grad if options.get("split") else runner.backward
        results += [g for g in backward(m, xs[m] - 1, xs[m] * 2) if g is not None]
        if options.get("split"):
            runner.weight_grad(m)
    runner.close()
    if options.get("offload"):
        options["offloading"].engine.close()
    assert runner.held == (0, 0) and not runner._repeats and not runner._shelves
    return results, [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("options", [
    {"split": True}, {"recompute": True}, {"offload": True}, {"recompute": True, "split": True},
    {"recompute": True, "offload": True}, {"offload": True, "split": True}, {"offload": True, "beside": True},
    {"offload": True, "beside": True, "recompute": True}, {"offload": True, "beside": True, "split": True},
    {"offload": True, "beside": True, "offloaded": ["one", "drop"]}, {"offload": True, "offloaded": ["two"]},
])
def test_every_way_to_run_a_stage_gives_the_same_numbers(options: dict[str, Any]) -> None:
    plain, plain_weights = run()
    found, found_weights = run(**options)
    assert len(found) == len(plain) == 3 * 4 and len(found_weights) == len(plain_weights) == 4
    for mine, wanted in zip([*found, *found_weights], [*plain, *plain_weights], strict=True):
        assert torch.allclose(mine, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("split", [False, True])
def test_a_stage_goes_backward_with_what_is_public_too(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run(split=split)
    monkeypatch.setattr(stage, "_ENGINE", None)
    for mine, theirs in zip(run(split=split), wanted, strict=True):
        assert len(mine) == len(theirs) > 0 and all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize("last", [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Identity()])
def test_a_stage_ends_in_edges_that_hold_its_graph(last: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.9 the edge of a node in Python, such as a deferred linear layer's, holds nothing."""
    edges = []

    def edge(y: Tensor) -> GradientEdge:
        edges.append(get_gradient_edge(y))
        return edges[-1]

    monkeypatch.setattr(stage, "get_gradient_edge", edge)
    runner, x = StageRunner(nn.Sequential(last), split=True), torch.ones(2, WIDTH)
    runner.forward(0, x)
    assert len(edges) == 1 and not isinstance(edges[0].node, BackwardCFunction)
    gradient, = runner.input_grad(0, x)
    runner.weight_grad(0)
    runner.close()
    wanted, = torch.autograd.grad(last(leaf := x.clone().requires_grad_()), leaf, x)
    assert gradient is not None and torch.allclose(gradient, wanted)


def test_an_output_that_nothing_depends_on_adds_nothing_and_constants_get_no_gradient() -> None:
    runner = StageRunner(Cell().double(), constant=(0,))
    x = torch.ones(2, WIDTH, dtype=torch.float64)
    runner.forward(0, x, x)
    assert [g is None for g in runner.backward(0, None, x)] == [True, False]
    runner.forward(0, x, torch.ones(2, WIDTH, dtype=torch.int64))
    assert runner.backward(0, x, None) == (None, None)


@pytest.mark.parametrize("split", [False, True])
def test_complex_numbers_have_gradients(split: bool) -> None:
    torch.manual_seed(0)
    module, x, g = nn.Linear(WIDTH, WIDTH, dtype=torch.complex128), *torch.randn(2, 3, WIDTH, dtype=torch.complex128)
    wanted = torch.autograd.grad(module(leaf := x.clone().requires_grad_()), [leaf, *module.parameters()], g)
    runner = StageRunner(module, split=split)
    runner.forward(0, x)
    found = (runner.input_grad if split else runner.backward)(0, g)
    if split:
        runner.weight_grad(0)
    runner.close()
    for mine, theirs in zip([*found, *(p.grad for p in module.parameters())], wanted, strict=True):
        assert mine is not None and torch.allclose(mine, theirs)


def test_a_gradient_of_another_shape_is_refused_and_no_gradient_at_all_changes_nothing() -> None:
    runner, x = StageRunner(nn.Linear(WIDTH, WIDTH)), torch.ones(2, WIDTH)
    runner.forward(0, x)
    with pytest.raises(RuntimeError, match="shape"):
        runner.backward(0, torch.ones(2, WIDTH + 1))
    runner.forward(0, x)
    assert runner.backward(0, None) == (None,) and runner.held == (0, 0)
    assert all(parameter.grad is None for parameter in runner.module.parameters())


def test_a_stage_without_anything_to_train_is_refused_where_the_plan_trains_it() -> None:
    runner = StageRunner(nn.Identity(), constant=(0,))
    with pytest.raises(ValueError, match="none of the stage's outputs depends on a parameter"):
        runner.forward(0, torch.ones(1))


class Squares(nn.Module):
    """Keeps two tensors of its own for its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.seen = nn.Parameter(torch.ones(WIDTH)), list[Any]()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.exp(x * self.scale)
        self.seen.append(weakref.ref(y))
        return y * y


def test_a_stage_that_is_recomputed_keeps_its_inputs_only() -> None:
    module = Squares()
    runner = StageRunner(module, recompute=True)
    runner.forward(0, torch.ones(2, WIDTH))
    assert module.seen[0]() is None
    runner.recompute(0)
    assert module.seen[1]() is not None
    gradient, = runner.backward(0, torch.ones(2, WIDTH))
    assert gradient is not None and torch.allclose(gradient, torch.full((2, WIDTH), 2 * torch.e**2))
    assert module.seen[1]() is None


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_offloaded_leaves_the_device_and_comes_back(recompute: bool, beside: bool) -> None:
    """Once for each storage: x where it is all that is kept; else y, which two operations save, while x stays."""
    engine = CopyEngine(CPU)
    runner = StageRunner(Squares(), offloading=Offloading(engine, beside=beside), recompute=recompute)
    size = 1000 * WIDTH * 4

    def forward() -> None:
        runner.forward(0, torch.ones(1000, WIDTH))

    def change(step: Callable[[int], None]) -> int:
        return memory_of(lambda: step(0), CPU)[1].change

    kept = memory_of(forward, CPU)[1].change
    assert kept == (size + torch.get_rng_state().nbytes if recompute else 2 * size)
    assert runner.moving(0) == size
    assert change(runner.offload) == -size
    assert change(runner.load) == size and change(runner.arrive) == 0
    if recompute:
        runner.recompute(0)
    runner.backward(0, torch.ones(1000, WIDTH))
    engine.close()
    gc.collect()
    assert not runner._shelves


def test_only_what_the_named_submodules_keep_is_offloaded() -> None:
    """Of a linear layer, a tanh and another linear layer: the tanh's result, which the last one keeps too."""
    module = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH), nn.Tanh())
    sizes = {}
    for names in (None, ["1"], ["3"], ["1", "3"], ["0"]):
        engine = CopyEngine(CPU)
        runner = StageRunner(module, offloading=Offloading(engine, names))
        runner.forward(0, torch.ones(100, WIDTH))
        sizes[None if names is None else "".join(names)] = runner.moving(0) // (100 * WIDTH * 4)
        runner.offload(0)
        runner.load(0)
        assert runner.backward(0, torch.ones(100, WIDTH))[0] is not None
        runner.close()
        engine.close()
    assert sizes == {None: 3, "1": 2, "3": 1, "13": 3, "0": 0}  # a linear layer keeps its input, which stays


def test_a_part_that_checkpoints_itself_is_offloaded_around() -> None:
    """What a checkpoint keeps (its input) stays; the numbers are those without either."""
    class Mixed(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
            self.last, self.again = nn.Linear(WIDTH, WIDTH), again

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sigmoid(self.first(x))
            y = checkpoint(self.second, y, use_reentrant=False) if self.again else self.second(y)
            z: Tensor = self.last(torch.exp(y))
            return z

    found = []
    for again in (False, True):
        torch.manual_seed(0)
        module, engine = Mixed(again).double(), CopyEngine(CPU)
        runner = StageRunner(module, offloading=Offloading(engine, beside=True) if again else None)
        xs = torch.randn(3, 5, WIDTH, dtype=torch.float64)
        gradients = []
        for m in range(3):
            runner.forward(m, xs[m])
            if again:
                runner.offload(m)
        for m in range(3):
            if again:
                runner.load(m)
            gradients += [g for g in runner.backward(m, xs[m]) if g is not None]
        engine.close()
        found.append([*gradients, *(p.grad for p in module.parameters() if p.grad is not None)])
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(*found, strict=True))


def test_copies_run_beside_the_computation_and_one_at_a_time_each_way() -> None:
    """The engine's threads make them; nothing is read before it has been waited for."""
    engine, order = CopyEngine(CPU), list[str]()
    hold = threading.Event()
    engine._begin([], outward=True)  # its thread
    engine._threads[True].submit(hold.wait, 10)
    engine._threads[True].submit(order.append, "busy")
    there, copying = engine.to_host([torch.arange(5, dtype=torch.uint8)])
    order.append("computed")
    hold.set()
    copying.wait()
    here, back = engine.to_device(there)
    back.wait()
    assert order == ["computed", "busy"] and here[0].tolist() == [0, 1, 2, 3, 4]
    engine.close()


def test_host_memory_is_used_again() -> None:
    """Three micro-batches, two of them away at once: two buffers, in the second round the same ones."""
    engine = CopyEngine(CPU)
    runner, places = StageRunner(Squares(), offloading=Offloading(engine, beside=True)), []
    for _ in range(2):
        seen = set[int]()
        for out, back in ((0, None), (1, None), (None, 0), (2, 1), (None, 2)):
            if out is not None:
                runner.forward(out, torch.ones(10, WIDTH))
                runner.offload(out)
                assert runner._shelves is not None
                seen.update(memory.data_ptr() for memory in runner._shelves[out]._memories)
            if back is not None:
                runner.load(back)
                runner.backward(back, torch.ones(10, WIDTH))
        places.append(seen)
    engine.close()
    assert places[0] == places[1] and len(places[0]) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_memory_is_given_back_and_the_numbers_stay() -> None:
    device = torch.device("cuda")
    found = []
    for offload in (None, CopyEngine(device)):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)).to(device)
        runner = StageRunner(module, offloading=None if offload is None else Offloading(offload, beside=True))
        x = torch.randn(512, 256, device=device)
        gradients = []
        for m in range(4):
            runner.forward(m, x)
            if offload is not None:
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                runner.offload(m)
                assert before - torch.cuda.memory_allocated() == runner.moving(m) == 512 * 1024 * 4
        for m in range(4):
            if offload is not None:
                runner.load(m)
            gradients += [g for g in runner.backward(m, torch.ones(512, 256, device=device)) if g is not None]
        found.append([*gradients, *(p.grad for p in module.parameters() if p.grad is not None)])
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(*found, strict=True))


def test_what_a_stage_neither_saves_nor_hands_on_is_not_kept() -> None:
    class Doubles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x + self.shift  # its backward needs neither x nor y

    runner, x = StageRunner(Doubles()), torch.ones(WIDTH)
    seen = [weakref.ref(x), *map(weakref.ref, runner.forward(0, x))]
    del x
    assert [ref() for ref in seen] == [None, None]
    assert runner.backward(0, torch.ones(WIDTH))[0] is not None


# -- master weights ----------------------------------------------------------------------------------------------------


def test_masters_take_updates_and_sums_that_bf16_would_lose() -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    layer.to(torch.bfloat16)
    masters = MasterWeights(layer.parameters())
    optimizer = torch.optim.SGD(masters.parameters(), lr=1e-3)
    for split in (False, True):
        runner = StageRunner(layer, split=split, add=masters.add)
        for m, size in enumerate((1.0, 2.0**-9)):  # 1 + 2^-9 is 1 in bf16
            runner.forward(m, torch.ones(1, 1, dtype=torch.bfloat16))
            (runner.input_grad if split else runner.backward)(m, torch.full((1, 1), size, dtype=torch.bfloat16))
            if split:
                runner.weight_grad(m)
        runner.close()
        master, = masters.parameters()
        assert layer.weight.grad is None and master.grad is not None
        assert float(master.grad) == 1 + 2.0**-9
        master.grad = None
    for _ in range(8):
        master.grad = torch.ones(1, 1)
        optimizer.step()
        masters.write_back()
    assert float(master.detach()) == pytest.approx(1 - 8e-3)
    assert float(layer.weight.detach()) == float(torch.tensor(1 - 8e-3).bfloat16())


def test_masters_begin_with_what_was_not_rounded_and_let_go_when_closed() -> None:
    layer = nn.Linear(3, 3)
    full = [p.detach().clone() for p in layer.parameters()]
    layer.to(torch.bfloat16)
    masters = MasterWeights(layer.parameters(), full)
    assert all(torch.equal(master, wanted) for master, wanted in zip(masters.parameters(), full, strict=True))
    masters.close()
    torch.autograd.backward(layer(torch.ones(1, 3, dtype=torch.bfloat16)).sum())
    assert layer.weight.grad is not None


def test_a_parameter_in_full_precision_is_its_own_master() -> None:
    layer = nn.Linear(2, 2)
    masters, parameter = MasterWeights(layer.parameters()), next(layer.parameters())
    assert masters.parameters() == list(layer.parameters()) and masters.of(parameter) is parameter


# -- requests ----------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_requests_though_micro_batches_do_not() -> None:
    requests = Requests([torch.tensor([float(i)]) for i in range(7)], size=2, micro_batches=3)
    assert requests.steps == 2
    for step in (1, 0):
        for m in (2, 0, 1):
            requests.collect(step, m, 10 * requests.inputs(step, m))
    assert [float(result) for result in requests.results] == [10.0 * i for i in range(7)]


def test_missing_and_senseless_requests_are_refused() -> None:
    requests = Requests([torch.zeros(1)] * 3, size=2, micro_batches=1)
    requests.collect(0, 0, torch.zeros(2))
    with pytest.raises(ValueError, match="request 2 has no result yet"):
        _ = requests.results
    with pytest.raises(ValueError, match="2 requests gave 1 results"):
        requests.collect(1, 0, torch.zeros(1))
    with pytest.raises(ValueError, match="0 requests in micro-batches of 2"):
        Requests([], 2, 1)
