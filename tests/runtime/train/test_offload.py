"""What a stage's forward keeps: its inputs only, or on the host and back."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.runtime.measure.measure import memory_of
from weft.runtime.train.offload import CopyEngine
from weft.runtime.train.stage import Offloading, StageRunner

WIDTH, CPU = 4, torch.device("cpu")


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
