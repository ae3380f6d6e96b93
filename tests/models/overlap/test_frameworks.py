"""What frameworks' steps take is what their blocks take when they are timed, one after another in fixed orders."""

from __future__ import annotations

import pytest

import weft
from weft.cli.lib.output import summary
from weft.models.layers.collectives import Collective
from weft.models.overlap import frameworks
from weft.models.overlap.data_parallel import StepCosts, layer_groups
from weft.models.overlap.frameworks import framework_steps
from weft.models.spec.spec import Spec, parse_spec
from weft.solver import Block, BlockKind, Dependency, Device, Problem, time_orders

DATA = """
name: small
model: {family: gpt, layers: 3, hidden: 2048, heads: 16, sequence: 1024, vocabulary: 5000}
costs: roofline
cluster: {gpus: 2, memory: 32 GiB, device: v100}
training: {micro_batches: 2, micro_batch_size: 2}
placement: {shapes: [data]}
"""


def spec(**changes: object) -> Spec:
    text = DATA
    for old, new in changes.items():
        text = text.replace(f"{old}: 2", f"{old}: {new}", 1) if old != "memory" else text.replace("32 GiB", str(new))
    return parse_spec(text)


def timed(of: Spec, name: str, steps: int) -> float:
    """The same step as blocks, in the orders that frameworks have, so many times."""
    costs = StepCosts(of)
    run, gpus = costs.run, of.cluster.gpus
    buckets = frameworks._buckets(layer_groups(of, 1000), frameworks.BUCKET_BYTES // run.gradient_bytes)
    last, each = len(buckets) - 1, run.micro_batches // gpus
    collective: Collective = "all_reduce" if name == "ddp" else "reduce_scatter"
    blocks: list[Block] = []

    def add(block: str, device: int, seconds: float, *after: Dependency) -> None:
        blocks.append(Block(block, BlockKind.OTHER, (device,), max(seconds, 1e-12), (0,), (0,), after))

    for j in range(last, -1, -1):
        of_step_before = "U" if name == "ddp" else f"G{j}"
        add(f"F{j}", 0, buckets[j].forward, Dependency(of_step_before, distance=1),
            *([Dependency(f"F{j + 1}")] if j < last else []))
    add("between", 0, (each - 1) * sum(bucket.forward + bucket.backward for bucket in buckets), Dependency("F0"))
    for j, bucket in enumerate(buckets):
        add(f"B{j}", 0, bucket.backward, Dependency(f"B{j - 1}" if j else "between"))
        add(f"S{j}", 1, costs.seconds(collective, bucket.parameters * run.gradient_bytes), Dependency(f"B{j}"))
    own = [-(-bucket.parameters // (1 if name == "ddp" else gpus)) for bucket in buckets]
    add("U", 0, costs.update(sum(own)), *(Dependency(f"S{j}") for j in range(last + 1)))
    for j in range(last, -1, -1) if name == "zero-1" else ():
        add(f"G{j}", 1, costs.seconds("all_gather", own[j] * run.parameter_bytes), Dependency("U"))
    problem = Problem("step", (Device("gpu"), Device("network", lane_of="gpu")), tuple(blocks))
    orders = [[(b, m) for m in range(steps) for b, block in enumerate(blocks) if block.devices == (d,)]
              for d in range(2)]
    return max(operation.end for operation in time_orders(problem, steps, orders))


@pytest.mark.parametrize("changes", [{}, {"micro_batches": 6}, {"micro_batch_size": 1}])
def test_a_step_is_what_its_blocks_take(changes: dict[str, object]) -> None:
    of = spec(**changes)
    found = {step.name: step for step in framework_steps(of)}
    assert found.keys() == {"ddp", "zero-1"} and found["ddp"].buckets > 5
    for name, step in found.items():
        assert step.makespan == pytest.approx(timed(of, name, 1), rel=1e-9)
        assert step.period == pytest.approx(timed(of, name, 4) - timed(of, name, 3), rel=1e-9)


def test_what_lacks_memory_is_not_compared() -> None:
    room = next(step for step in (framework_steps(spec(memory=f"{tenths / 10} GiB")) for tenths in range(80, 10, -1))
                if step[0].makespan is None)
    assert room[1].makespan is not None  # a slice of the optimizer's state fits a little longer


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["makespan", "rate"])
def test_the_answer_says_what_frameworks_take(objective: str) -> None:
    found = weft.solve(spec(), overlap="auto", effort=0.3, time_limit=3000, objective=objective)
    told = found.solver["overlap"]
    steps = framework_steps(spec())
    assert told["frameworks"] == [{"name": step.name, "with": step.makespan if objective == "makespan" else step.period}
                                  for step in steps]
    if objective == "makespan":  # weft's buckets are whole layers: in steady state finer ones may do better
        assert found.value <= min(entry["with"] for entry in told["frameworks"])
    text = summary(found)
    assert "as DDP does: " in text and "as overlapped ZeRO-1 does: " in text and not weft.check(found)
