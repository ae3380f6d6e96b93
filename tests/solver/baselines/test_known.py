"""The later known schedules against their published formulas, and when they do not apply.

As in ``test_baselines``: p uniform stages or devices, F, B = I + W, m micro-batches, A the activations of a stage.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.solver.baselines.test_baselines import TIMES, idle, idle_in_span
from tests.support.builders import both_ways, chain, in_chunks, loop, pipeline, v, valid, waves
from tests.support.tessel_shapes import shape
from weft.solver import BASELINES, BlockKind, NotApplicable, Problem, Schedule, baseline, validate
from weft.solver.baselines.lib.at_once import at_once
from weft.solver.baselines.one_f_one_b import orders_within_memory
from weft.solver.timing import Orders, time_orders

# -- ZB-H2 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (1, 2, 3, 4, 8) for m in (2 * p - 1, 2 * p, 4 * p + 1)])
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_zb_h2(p: int, m: int, f: int, i: int, w: int) -> None:
    """Idle (p - 1)(F + I - 2W) within the span, activations (2p - 1) A on every rank (Qi et al., ICLR 2024)."""
    schedule = baseline("zb-h2", pipeline(chain(p), forward=f, split=(i, w), activation=3), m)
    assert max(idle_in_span(schedule)) == (p - 1) * (f + i - 2 * w)
    assert list(schedule.peak_memory) == [3 * (2 * p - 1)] * p


# -- V-Min and V-Half --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "stages", "waiting"), [(3, 4, 5), (4, 4, 12), (5, 6, 14), (6, 6, 17), (8, 8, 29),
                                                      (16, 12, 64)])
def test_v_min(p: int, stages: int, waiting: int) -> None:
    """About p/3 micro-batches' activations, idle for about 2/3 of 1F1B's (p - 1)(F + B) (Qi et al., NeurIPS 2024).

    The peak at p = 4 and 8 is what the authors' own code takes.
    """
    for m in (2 * p, 3 * p):
        schedule = baseline("v-min", pipeline(v(p), split=(1, 1)), m)
        assert max(schedule.peak_memory) == stages <= 2 * p / 3 + 4
        assert max(idle(schedule)) == waiting <= (2 / 3 + 0.05) * (p - 1) * 6  # a device has two stages


@pytest.mark.parametrize("p", [3, 4, 5, 6, 8, 16])
def test_v_half(p: int) -> None:
    """Half of 1F1B's activations and one micro-batch's more, idle for half of 1F1B's (p - 1)(F + B)."""
    for m in (2 * p, 3 * p):
        schedule = baseline("v-half", pipeline(v(p), split=(1, 1)), m)
        assert max(schedule.peak_memory) == 2 * (p // 2 + 1)
        assert max(idle(schedule)) <= (p - 1) * 6 / 2


def test_few_activations_leave_no_slack_for_unequal_times() -> None:
    """V-Min loses time in proportion to m where F, I and W differ; ZB-V does not (Qi et al., NeurIPS 2024)."""
    problem = pipeline(v(8), forward=3, split=(2, 2))
    waiting = {name: [max(idle(baseline(name, problem, m))) for m in (16, 32, 64)] for name in ("v-min", "zb-v")}
    assert waiting["v-min"][2] - waiting["v-min"][1] == 2 * (waiting["v-min"][1] - waiting["v-min"][0]) > 0
    assert len(set(waiting["zb-v"])) == 1


# -- DualPipe and DualPipeV --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("half", "m"), [(half, m) for half in (2, 3, 4, 8) for m in (2 * half, 2 * half + 1, 24)])
@pytest.mark.parametrize(("f", "i", "w"), TIMES)
def test_dual_pipes(half: int, m: int, f: int, i: int, w: int) -> None:
    """2 half + 1 stages' activations; the pairs one after the other leave no more idle than (half - 1)(F + I - W)."""
    for problem, name in ((pipeline(v(half), forward=f, split=(i, w)), "dualpipe-v"),
                          (both_ways(2 * half, forward=f, split=(i, w)), "dualpipe")):
        schedule = baseline(name, problem, m)
        assert idle(schedule) == [(half - 1) * (f + i - w)] * len(problem.devices)
        assert max(schedule.peak_memory) == 2 * half + 1


@pytest.mark.parametrize(("p", "m", "rank", "phases"), [
    (2, 4, 0, "F F|F f|i w f|F iw f IW|iw f IW|iw I|W I|W"),  # of the first stage, lower case: of the second one
    (2, 5, 1, "|F f F f||F iw f IW F iw f IW F iw f IW||iw IW i I||w W"),
    (4, 8, 2, "F F|F f F f F f|i w f|F iw f IW F iw f IW F iw f IW|iw f IW|iw IW iw I i I|W I|w W W"),
])
def test_the_eight_phases_of_dual_pipe_v(p: int, m: int, rank: int, phases: str) -> None:
    """By hand from DeepSeek's ``step()``: pairs back to back, what they run with their zero bubble as I and W apart."""
    problem = pipeline(v(p), split=(1, 1))
    letters = {BlockKind.FORWARD: "f", BlockKind.INPUT_GRAD: "i", BlockKind.WEIGHT_GRAD: "w"}
    row = ""
    for block, _ in BASELINES["dualpipe-v"].orders(problem, m)[rank]:
        letter = letters[problem.blocks[block].kind]
        row += letter.upper() if problem.blocks[block].name[1:] == str(rank) else letter
    assert row == phases.replace("|", "").replace(" ", "")


@pytest.mark.parametrize(("half", "m"), [(2, 4), (3, 6), (4, 16), (8, 20)])
def test_dual_pipes_with_pairs_as_one_block(half: int, m: int) -> None:
    """Idle (half - 1)(F&B + B - 3W) with F&B = F + B and F = I = W (the DualPipe repository)."""
    for problem, name in ((pipeline(v(half), split=(1, 1)), "dualpipe-v"),
                          (both_ways(2 * half, split=(1, 1)), "dualpipe")):
        makespan = makespan_of_pairs(problem, BASELINES[name].orders(problem, m))
        assert makespan - 6 * m == (half - 1) * (3 + 2 - 3)


def makespan_of_pairs(problem: Problem, orders: Orders) -> float:
    """The makespan if a forward and the full backward of another stage right after it run as one block."""
    pair = [BlockKind.FORWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD]
    rows: list[list[list[tuple[int, int]]]] = []
    for order in orders:
        row, k = [], 0
        while k < len(order):
            three = list(order[k:k + 3])
            stages = {problem.blocks[block].name[:-2] + problem.blocks[block].name[-1] for block, _ in three}
            together = [problem.blocks[block].kind for block, _ in three] == pair and len(stages) == 2
            row.append(three if together and three[1][1] == three[2][1] else three[:1])
            k += len(row[-1])
        rows.append(row)
    end: dict[tuple[int, int], float] = {}
    free = [0.0] * len(rows)
    left = [list(reversed(row)) for row in rows]
    while any(left):
        stuck = True
        for d, row in enumerate(left):
            while row:
                waits = {(problem.index[item.block], m) for block, m in row[-1] for item in problem.blocks[block].after}
                if not (waits - set(row[-1])) <= end.keys():
                    break
                bundle = row.pop()
                free[d] = max([free[d], *(end[wait] for wait in waits if wait in end)]) + sum(
                    problem.blocks[block].duration for block, _ in bundle)
                end.update(dict.fromkeys(bundle, free[d]))
                stuck = False
        assert not stuck
    return max(end.values())


# -- Chimera -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 2, 5])
@pytest.mark.parametrize(("f", "b"), [(1, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_chimera(p: int, f: int, b: int, units: int) -> None:
    """p - 2 slots idle with B = F, that is (p - 2)/(2m + p - 2) of the step, however many units run; and the
    activations of p/2 + 1 stages at the ends, p in the middle (Li and Hoefler, SC 2021)."""
    schedule = baseline("chimera", both_ways(p, forward=f, backward=b), units * p // 2)
    assert idle(schedule) == [(p - 2) * (b + (units - 1) * (b - f))] * p
    assert list(schedule.peak_memory) == [min(p // 2, p - r) + min(p // 2, r + 1) for r in range(p)]


# -- Hanayo ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8])
def test_hanayo(p: int, count: int) -> None:
    """Idle for no more than (2p - 2)/(3pw + p - 1) of the step at m = p and B = 2F, with p micro-batches at most."""
    schedule = baseline("hanayo", pipeline(waves(p, count)), p)
    assert max(idle(schedule)) / schedule.makespan <= (2 * p - 2) / (3 * p * count + p - 1) + 1e-12
    for m in (p, 2 * p, 4 * p + 1):
        assert max(baseline("hanayo", pipeline(waves(p, count)), m).peak_memory) <= 2 * count * p


# -- 1F1B+ -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 3, 12])
@pytest.mark.parametrize(("kind", "p"), [("m", 1), ("m", 2), ("m", 4), ("nn", 2), ("nn", 4), ("nn", 8)])
def test_spread_blocks_stand_beside_their_stage_in_1f1b(kind: str, p: int, m: int) -> None:
    """1F1B's order and activations of the chain; each spread block next to the stage after (F) or before (B) it."""
    problem = shape(kind, p, 1000)
    if p == 1:
        with pytest.raises(NotApplicable, match="without any it is 1F1B"):
            baseline("1f1b+", problem, m)
        return
    schedule = baseline("1f1b+", problem, m)
    assert list(schedule.peak_memory) == [min(m, p - rank) for rank in range(p)]
    plain = baseline("1f1b", pipeline(chain(p), backward=3), m)
    for spread, bare in zip(schedule.device_orders, plain.device_orders, strict=True):
        own = [o for o in spread if len(problem.blocks[o.block].devices) == 1]
        kept = [(problem.blocks[o.block].kind, o.micro_batch) for o in own]
        assert kept == [(plain.problem.blocks[o.block].kind, o.micro_batch) for o in bare]
    order = [(o.block, o.micro_batch) for o in schedule.device_orders[0]]
    last = len(problem.blocks) - 1
    for number in range(m):
        for before, after in ((0, 1), (last - 1, last)):  # embedding and first stage, last backward and embedding's
            between = order[order.index((before, number)) + 1:order.index((after, number))]
            assert all(len(problem.blocks[block].devices) > 1 for block, _ in between)


# -- all of them -------------------------------------------------------------------------------------------------

FORMS = [("zb-h2", pipeline(chain(4), forward=3, split=(2, 1), lag=0.25)),
         ("v-min", pipeline(v(4), forward=3, split=(2, 1), lag=0.25)),
         ("v-half", pipeline(v(5), forward=3, split=(2, 1), lag=0.25)),
         ("v-block", pipeline(loop(3), forward=3, backward=4, memory=5, lag=0.25)),
         ("dualpipe-v", pipeline(v(4), forward=3, split=(2, 1), lag=0.25)),
         ("dualpipe", both_ways(4, forward=3, split=(2, 1), lag=0.25)),
         ("chimera", both_ways(6, forward=3, split=(2, 1), lag=0.25)),
         ("hanayo", pipeline(waves(3, 2), forward=3, split=(2, 1), lag=0.25)),
         ("hanayo", pipeline(waves(4, 2)[:12], forward=3, backward=4, memory=13, lag=0.25)),
         ("interleaved", pipeline(loop(3, 4), forward=3, split=(2, 1), memory=14, lag=0.25)),
         ("interleaved", pipeline(loop(5), forward=3, backward=4, lag=0.25)),
         ("interleaved-zb", pipeline(loop(4, 3), forward=3, split=(2, 1), memory=13, lag=0.25)),
         ("bitpipe", both_ways(4, stages=v(4), forward=3, split=(2, 1), memory=20, lag=0.25)),
         ("seq1f1b", in_chunks(loop(3), 3, forward=3, split=(2, 1), memory=12, lag=0.25)),
         ("dynapipe", pipeline([0, 1, 1, 2, 0], forward=3, split=(2, 1), memory=12, lag=0.25)),
         ("1f1b+", shape("nn", 4, 1000)),
         ("gpipe", pipeline(v(4), split=(1, 1), lag=0.25)), ("gpipe", pipeline(loop(4), lag=0.25)),
         ("1f1b", pipeline(chain(4), split=(1, 1), lag=0.25)), ("zb-h1", pipeline(chain(4), split=(1, 1), lag=0.25)),
         ("zb-v", pipeline(v(4), split=(1, 1), lag=0.25)),
         ("zb-auto", pipeline(chain(4), split=(2, 1), memory=4, lag=0.25)),
         ("zb-v-auto", pipeline(v(4), split=(2, 1), memory=8, lag=0.25))]


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize(("name", "problem"), FORMS, ids=[f"{name}-{len(case.blocks)}" for name, case in FORMS])
def test_fewer_micro_batches_than_the_ramp_takes(name: str, problem: Problem, m: int) -> None:
    validate(baseline(name, problem, m))


@pytest.mark.parametrize("m", [1, 4, 9])
def test_stage_0_without_an_input_gradient(m: int) -> None:
    for name, stages in (("zb-h2", chain(4)), ("v-min", v(4)), ("v-half", v(4)), ("dualpipe-v", v(4)),
                         ("hanayo", waves(3, 2)), ("v-block", loop(3)), ("gpipe", chain(4)), ("1f1b", chain(4)),
                         ("zb-h1", chain(4)), ("zb-v", v(4)), ("zb-auto", chain(4)), ("zb-v-auto", v(4))):
        validate(baseline(name, pipeline(stages, split=(1, 1), first_input_grad=False), m))


@pytest.mark.parametrize(("name", "problem", "message"), [
    ("zb-h2", pipeline(v(4), split=(1, 1)), "it needs one stage on each device, in device order"),
    ("zb-h2", pipeline(chain(4)), "it needs backwards split"),
    ("v-min", pipeline(v(4)), "it needs backwards split"),
    ("v-half", pipeline(loop(4), split=(1, 1)), "in a V"),
    ("v-block", pipeline(chain(4), backward=None), "this pipeline has no backward"),
    ("v-block", pipeline(chain(4), memory=0), "no building block that was tried fits"),
    ("v-block", shape("m", 4, 9), "block 'b00' runs on 4 devices"),
    ("dualpipe-v", pipeline(chain(4), split=(1, 1)), "in a V"),
    ("dualpipe", pipeline(v(4), split=(1, 1)), "two replicas of the model, one down the devices and one up, as two "
                                               "chains of blocks that do not wait for each other; this problem has 1"),
    ("dualpipe", both_ways(4), "it needs backwards split"),
    ("chimera", both_ways(3), "it needs an even number of devices, not 3"),
    ("chimera", both_ways(4, backward=None), "no backward"),
    ("hanayo", pipeline(loop(4)), "in waves"),
    ("1f1b+", pipeline(chain(4)), "it needs blocks on several devices at once"),
    ("1f1b+", shape("k", 4, 9), "it needs a pipeline, but"),
    ("interleaved", pipeline(v(4)), "stage s on device s modulo the number of devices"),
    ("interleaved", pipeline(chain(4)), "it needs two stages or more on each device"),
    ("interleaved-zb", pipeline(loop(4)), "it needs backwards split into input_grad and weight_grad"),
    ("interleaved-zb", pipeline([0, 1, 2], split=(1, 1)), "stage s on device s modulo the number of devices"),
    ("1f1b", pipeline(v(4)), "it needs one stage on each device, but device 'gpu0' has 2"),
    ("1f1b", pipeline(chain(4), backward=None), "this pipeline has no backward"),
    ("zb-h1", pipeline(chain(4)), "it needs backwards split into input_grad and weight_grad blocks"),
    ("zb-h1", pipeline(v(4), split=(1, 1)), "it needs one stage on each device, in device order"),
    ("zb-v", pipeline(v(4)), "it needs backwards split"),
    ("zb-v", pipeline(loop(4), split=(1, 1)), "in a V"),
    ("zb-auto", pipeline(chain(3)), "it needs backwards split"),
    ("zb-auto", pipeline(v(3), split=(1, 1)), "it needs one stage on each device, in device order"),
    ("zb-auto", pipeline(chain(3), split=(1, 1), memory=0), "none of its variants runs"),
    ("zb-v-auto", pipeline(v(3)), "it needs backwards split"),
    ("zb-v-auto", pipeline(chain(3), split=(1, 1)), "in a V"),
    ("zb-v-auto", pipeline(v(3), split=(1, 1), memory=1), "none of its variants runs"),
    ("bitpipe", both_ways(4), "two stages or more of each chain on each device"),
    ("bitpipe", both_ways(3, stages=v(3)), "an even number of devices, not 3"),
    ("bitpipe", both_ways(4, stages=v(4), backward=None), "no backward"),
    *((name, both_ways(4, stages=v(4), split=(1, 1)), "it needs one chain") for name in ("chimera", "dualpipe")),
    *(("hanayo", pipeline(devices), "in waves") for devices in ([0, 1, 2], [0, 1, 1, 0, 1, 0], [1, 0, 0, 1])),
    ("dynapipe", pipeline(chain(4), memory=0), "none of its variants"),
    ("dynapipe", pipeline(chain(4), backward=None), "no backward"),
    ("3f1b", pipeline(chain(4)), "have no gradients, before those that have them"),
    ("3f1b", pipeline(chain(4), backward=None), "have no gradients"),
    ("stream", pipeline(chain(2)), "it needs devices with lanes"),
    ("seq1f1b", pipeline(loop(4), split=(1, 1)), "it needs micro-batches in chunks of their sequence"),
    ("seq1f1b", in_chunks(v(3), 2), "one stage on each device, in device order, or several in a loop"),
])
def test_not_applicable_says_why(name: str, problem: Problem, message: str) -> None:
    with pytest.raises(NotApplicable) as caught:
        baseline(name, problem, 6)
    assert message in str(caught.value)


# -- 1F1B within memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 4, 7])
@pytest.mark.parametrize("times", [{"backward": 2}, {"split": (2, 1)}])
def test_1f1b_holds_no_more_than_there_is_room_for(p: int, times: dict[str, Any]) -> None:
    """With less room than for p micro-batches it takes longer, with half of it not twice as long; with as much it is
    1F1B."""
    made = []
    for memory in range(3, 3 * p + 1, 3):
        problem = pipeline(chain(p), activation=3, memory=memory, **times)
        rows = orders_within_memory(problem, 2 * p)
        schedule = valid(Schedule(problem, 2 * p, time_orders(problem, 2 * p, rows), 0.0))
        assert max(schedule.peak_memory) == memory
        made.append(schedule.makespan)
    assert made[(p - 1) // 2] <= 1.75 * made[-1]
    assert made == sorted(made, reverse=True) and rows == BASELINES["1f1b"].orders(problem, 2 * p)
    assert [name for name, _ in at_once(problem, 2 * p)] == ["1f1b", "sequential"]
    assert [name for name, _ in at_once(pipeline(v(p + 1), **times), 2)] == ["sequential"]
