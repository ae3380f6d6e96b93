"""Captured models in parts on gloo ranks: outputs, gradients and training are those of torch on one device."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from tests.support.planned_models import CAPTURED, made
from tests.support.programs import numbers, random_plan, transformer
from tests.support.ranks import launch_forked
from weft.app.plans.checking import run_dense
from weft.app.plans.run import PlanOnRank
from weft.models.transform.plan import Preserved, TransformPlan
from weft.models.transform.program import PlanProgram, ProgramBuilder
from weft.plans import program as program_of
from weft.plans import tensor_parallel, with_backward, with_update
from weft.runtime.by_hand.operators import OPERATORS
from weft.runtime.communication.failures import RankError

RANKS, STEPS, RATE, DECAY = 4, 3, 0.01, 0.1
TRAINED = ("gpt", "convolutions")


def captured(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], PlanProgram]:
    module, inputs = made(name)
    return module, inputs, with_backward(program_of(module, inputs))


def in_groups(program: PlanProgram, groups: list[list[int]]) -> Preserved:
    """A pipeline of the vision transformer whose stages are groups of devices with cuts of their own."""
    forwards = [operation.name for operation in program.operations if operation.phase == "forward"]
    middle = forwards.index("layer_norm_1")
    stages = [" ".join(forwards[:middle]), " ".join(forwards[middle:])]
    plan = TransformPlan(program)
    plan.pipeline(stages, [group[0] for group in groups], plan.along("image"), 2)
    for stage, group in zip(stages, groups, strict=True):
        plan.tensor_parallel(group, stage)
    return plan.preserve()


def plans(program: PlanProgram, name: str) -> dict[str, Preserved]:
    found = {f"{name} on {devices}": tensor_parallel(TransformPlan(program), range(devices)).preserve()
             for devices in (2, 4)}
    if name == "vision":
        found |= {f"{name} on {groups}": in_groups(program, groups) for groups in (
            [[0, 1], [2]], [[0], [1, 2]], [[0, 1, 2, 3], [2, 3]])}
    draw = random.Random(name)  # indices and truths travel too
    return found | {f"{name} random {i}": random_plan(program, draw, RANKS).preserve() for i in range(3)}


def trained(program: PlanProgram) -> Preserved:
    return tensor_parallel(TransformPlan(with_update(program, "adam", rate=RATE, decay=DECAY, step=None)),
                           range(4)).preserve()


@pytest.mark.slow
def test_captured_models_on_ranks_are_those_of_torch(tmp_path: Path) -> None:
    every = {name: captured(name) for name in CAPTURED}
    ways = {name: plans(program, name) for name, (_, _, program) in every.items()}
    ways |= {f"{name} trained": {"": trained(every[name][2])} for name in TRAINED}
    (tmp_path / "plans").write_bytes(pickle.dumps(ways))
    ended = launch_forked(RANKS, [sys.executable, "-m", __name__, str(tmp_path)])
    assert [end.code for end in ended] == [0, -signal.SIGKILL, 0, 0], "\n".join(end.errors[-2000:] for end in ended)
    of_ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    for name, (module, inputs, program) in every.items():
        loss = module(*inputs)
        torch.autograd.backward(loss)
        wanted = {program.outputs[0]: loss.detach()} | {f"d({key})": one.grad for key, one in module.named_parameters()}
        for plan in ways[name]:
            for output, expected in wanted.items():
                whole = torch.zeros_like(expected)
                for term in program.terms(output):
                    pieces = {(span, value): tensor for made_ in of_ranks for key, span, value, tensor in made_[plan]
                              if key == term}
                    for (span, _), tensor in pieces.items():
                        whole[tuple(slice(*ends) for ends in span)] += tensor
                assert torch.allclose(whole, expected, rtol=1e-10, atol=1e-10), (plan, output)
    check_training(of_ranks)
    assert "a target is not one of 0 to 7" in of_ranks[1]["failed"]
    assert of_ranks[0]["failed"].startswith("rank 1 failed: ")
    assert "a target is not one of 0 to 7" in of_ranks[0]["failed"]
    assert (tmp_path / "0.gone").read_text().endswith(": rank 1's process has ended")


def test_what_torch_has_no_kernel_for_is_refused_before_anything_is_sent() -> None:
    b = ProgramBuilder("alone")
    program = b.build(b.add("lost", "aten.cumprod", "n^ -> n^", [b.input("x", (4,))]))
    with pytest.raises(ValueError, match=r"operator 'lost': torch has no kernel 'aten\.cumprod' here; write it with"):
        PlanOnRank(TransformPlan(program).assign("*", 0).preserve())


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def counted() -> Preserved:
    b = ProgramBuilder("counted")
    made = b.add("up", "einsum", "m k+, k+ n -> m n", [b.input("x", (4, 3)), b.parameter("w", (3, 2))])
    program = with_update(with_backward(b.build(made)), "adam", rate=0.1, step=None)
    return TransformPlan(program).assign("*", 0).preserve()


def test_all_gradients_of_an_operator_are_of_one_backward(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program, plain = transformer(), OPERATORS["attention"]
    run: list[tuple[Any, ...]] = []
    given = numbers(program)
    dense = run_dense(program, given)

    def noted(*arguments: Any) -> Any:
        run.append(arguments)
        return plain(*arguments)

    monkeypatch.setitem(OPERATORS, "attention", noted)
    found = PlanOnRank(TransformPlan(program).assign("*", 0).preserve()).run(
        {name: torch.tensor(array) for name, array in given.items()})
    assert len(run) == 2  # forward and backward
    for name in ("d(l0.wq)", "d(l0.wk)", "d(l0.wv)"):
        piece, = found[program.terms(name)[0]]
        assert piece.data.numpy() == pytest.approx(dense[name], abs=1e-12)


def test_a_state_goes_on_at_its_step(alone: None) -> None:
    first, then = PlanOnRank(counted()), PlanOnRank(counted())
    first.load({"w": torch.ones(3, 2).double()})
    batches = [{"x": torch.full((4, 3), i + 1.0).double(), "d(up) given": torch.full((4, 2), 2.0 - i).double()}
               for i in range(4)]
    for batch in batches[:3]:
        first.step(batch)
    state = first.state_dict()
    assert int(state["step"]) == 3
    then.load(state)
    first.step(batches[3])
    then.step(batches[3])
    assert torch.equal(first.state_dict()["w"], then.state_dict()["w"])


def test_a_run_that_fails_keeps_nothing_and_mistakes_are_sentences(alone: None,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(instruction: object) -> None:
        raise RuntimeError("a kernel failed")

    running = PlanOnRank(counted())
    running.load({"w": torch.ones(3, 2).double()})
    given = {"x": torch.ones(4, 3).double(), "d(up) given": torch.ones(4, 2).double()}
    monkeypatch.setattr(running.executor, "compute", fails)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        running.step(given)
    assert not running.executor.values
    with pytest.raises(ValueError, match="'x' of shape \\(4, 3\\) is given as list, it must be a tensor"):
        running.step({**given, "x": [1.0]})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="a preserved plan is run, not a TransformPlan"):
        PlanOnRank(TransformPlan(counted().planned.program))  # type: ignore[arg-type]


def check_training(of_ranks: list[dict[str, object]]) -> None:
    """Three steps of AdamW, with the statistics that batch norms carry."""
    for name in TRAINED:
        module, inputs = made(name)
        optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=DECAY)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(module(*inputs))
            optimizer.step()
        for report in of_ranks:
            state = report[f"{name} trained"]
            assert isinstance(state, dict)
            for key, tensor in module.state_dict().items():
                assert torch.allclose(state[key], tensor, rtol=1e-9, atol=1e-9), (name, key)
            assert set(state) >= {f"{key}.square" for key, _ in module.named_parameters()}


def on_a_rank(folder: Path) -> None:
    """Run every plan; keep this rank's pieces of all outputs, the trained state, and how a failure is told."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    ways: dict[str, dict[str, Preserved]] = pickle.loads((folder / "plans").read_bytes())
    report: dict[str, object] = {}
    for name in CAPTURED:
        module, inputs = made(name)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        state = {key: tensor.detach().clone() for key, tensor in state.items()}
        for key, done in ways[name].items():
            running = PlanOnRank(done)
            given = named(done, inputs) | {f"d({done.planned.program.outputs[0]}) given": torch.ones(()).double()}
            report[key] = [(term, piece.span, piece.value, piece.data.clone())
                           for term, pieces in running.run({**state, **given}).items() for piece in pieces]
        if name in TRAINED:
            done = ways[f"{name} trained"][""]
            running = PlanOnRank(done)
            running.load(state)
            for _ in range(STEPS):
                running.step(named(done, inputs))
            report[f"{name} trained"] = running.state_dict()
    report["failed"] = failure(rank, ways["vision"]["vision on 2"])
    torch.save(report, folder / f"{rank}.pt")
    (folder / f"{rank}.gone").write_text(gone(rank, ways["vision"]["vision on 2"]))
    os._exit(0)  # a group of which one rank has failed cannot be closed in order


def named(done: Preserved, inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """What a model is called with, by the program's names."""
    names = [one for one, tensor in done.planned.program.tensors.items() if tensor.source == "input"]
    return dict(zip(names, inputs, strict=False))


def failure(rank: int, done: Preserved) -> str:
    """What a rank says when another has failed: rank 1 is given a target that no class is, and leaves."""
    module, (image, target) = made("vision")
    running = PlanOnRank(done, timeout=8)
    running.load({key: tensor.detach() for key, tensor in module.named_parameters()})
    try:
        running.step({"image": image, "target": target if rank != 1 else torch.full_like(target, 8)})
    except (RankError, ValueError) as error:
        return str(error)
    return "nothing"


def gone(rank: int, done: Preserved) -> str:
    """What a rank says when another's process has ended: rank 1's."""
    module, (image, target) = made("vision")
    running = PlanOnRank(done, timeout=60)
    if rank > 1:  # they take no part
        return "nothing"
    running.load({key: tensor.detach() for key, tensor in module.named_parameters()})
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        running.step({"image": image, "target": target})
    except RankError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    on_a_rank(Path(sys.argv[1]))
