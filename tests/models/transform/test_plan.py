"""Plans of a few lines: published ones come out with their communication, random ones compute what one device does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.examples import examples
from tests.support.programs import attention, convolutions, experts, mlp, numbers, random_plan, transformer
from weft.app.plans.checking import error, run_dense, run_planned
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanError, PlanProgram
from weft.plans import Cut, Part, Planned, uniform, with_backward, with_update


def test_megatrons_tensor_parallelism() -> None:
    program = transformer()
    plan = TransformPlan(program).split("*.q *.k *.v *.attend *.out", "h", 4).split("*.up *.act *.down", "f", 4)
    done = plan.assign("*", range(4)).preserve()
    assert [entry.kinds for entry in done.communications] == [("all_reduce",)] * 4  # two forward, two backward
    assert [entry.tensor for entry in done.communications] == ["l0.out", "l0.down", "d(l0.ln2)", "d(l0.ln1)"]
    assert error(done, numbers(program)) < 1e-10


def test_with_sequence_parallelism_it_scatters_and_gathers_in_place_of_all_reducing() -> None:
    program = transformer(layers=2)
    plan = TransformPlan(program).split("*.q *.k *.v *.attend *.out", "h", 4).split("*.up *.act *.down", "f", 4)
    plan.split("*.ln? *.add?", "s", 4)
    done = plan.assign("*", range(4)).preserve()
    for i in range(2):
        assert done.kinds(f"l{i}.ln1") == done.kinds(f"l{i}.ln2") == ("all_gather",)
        assert done.kinds(f"l{i}.out") == done.kinds(f"l{i}.down") == ("reduce_scatter",)
        assert done.kinds(f"d(l{i}.ln1)") == done.kinds(f"d(l{i}.ln2)") == ("reduce_scatter",)
        assert done.kinds(f"d(l{i}.out)") == ("all_gather",)
    assert not any("all_reduce" in entry.kinds for entry in done.communications)
    assert error(done, numbers(program)) < 1e-10


def test_data_parallel_adds_up_gradients_and_shards_an_optimizer() -> None:
    program = mlp(update=True)
    everything = "up bias act down residual loss"
    plain = TransformPlan(program).split(everything, "b", 4).assign("*", range(4)).preserve()
    assert {entry.tensor: entry.kinds for entry in plain.communications} == {
        f"d({name})": ("all_reduce",) for name in ("w1", "b1", "w2")}
    plan = TransformPlan(program).split(everything, "b", 4)
    plan.split("update(w1)", "m", 4).split("update(w2) update(b1)", "f", 4)
    sharded = plan.assign("*", range(4)).preserve()
    assert {entry.tensor: entry.kinds for entry in sharded.communications} == {
        **{f"d({name})": ("reduce_scatter",) for name in ("w1", "b1", "w2")},
        **{f"{name}'": ("all_gather",) for name in ("w1", "b1", "w2")}}
    state = sharded.planned.reads("update(w1)", "w1.mean")
    assert {view.box for view in state} == {((2 * i, 2 * i + 2), (0, 16)) for i in range(4)}
    given = numbers(program)
    assert error(plain, given) < 1e-10 and error(sharded, given) < 1e-10


def test_co_shard_runs_parts_in_turn_and_sends_nothing() -> None:
    program = mlp(64, 8, 256)
    whole = TransformPlan(program).assign("*", 0).preserve()
    parts = TransformPlan(program).co_shard("up bias act down", "f", 4).assign("*", 0).preserve()
    assert not parts.communications
    assert parts.peaks[0] < 0.75 * whole.peaks[0]
    order = [str(part) for part in parts.order]
    assert order.index("down#0") < order.index("up#1")
    assert order.index("d(w1) by up.1#0") < order.index("up again#1")
    given = numbers(program)
    assert error(parts, given) < 1e-10


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_pipeline_sends_each_micro_batch(schedule: str) -> None:
    program = mlp()
    plan = TransformPlan(program)
    if schedule == "gpipe":
        plan.pipeline(["up bias act", "down residual loss"], [0, 1], "b", 4, schedule="gpipe")
    else:
        plan.pipeline(["up bias act", "down residual loss"], [0, 1], "b", 4)
    done = plan.preserve()
    assert done.kinds("act") == done.kinds("d(act)") == ("send",) * 4
    first = [part for part in map(str, done.order) if part.startswith(("act#", "d(bias) by act.0#"))]
    assert first == (["act#0", "act#1", "d(bias) by act.0#0", "act#2", "d(bias) by act.0#1", "act#3",
                      "d(bias) by act.0#2", "d(bias) by act.0#3"] if schedule == "1f1b" else
                     [f"act#{i}" for i in range(4)] + [f"d(bias) by act.0#{i}" for i in range(4)])
    assert error(done, numbers(program)) < 1e-10


def test_experts_swap_tokens_all_to_all() -> None:
    program = experts()
    plan = TransformPlan(program).split("scores gates dispatch combine loss", "g", 2).split("up act down", "e", 2)
    done = plan.assign("*", range(2)).preserve()
    assert [entry.kinds for entry in done.communications] == [("all_to_all",)] * 4
    assert error(done, numbers(program)) < 1e-10


def test_groups_of_different_size_and_prices_of_a_cluster() -> None:
    program = mlp()
    plan = TransformPlan(program).split("up bias act", "f", 4).assign("up bias act", range(4))
    done = plan.split("down", "f", 2).assign("down", (4, 5)).assign("residual loss", 6).preserve(uniform(1e-3, 1e6))
    assert done.kinds("act") and done.seconds > 1e-3 and done.bytes > 0
    assert error(done, numbers(program)) < 1e-10


def test_three_kinds_of_parallelism_on_eight_devices() -> None:
    program = transformer(update=True)
    plan = TransformPlan(program).split("embed l0.* head entropy loss", "b", 2)
    plan.split("*.q *.k *.v *.attend *.out", "h", 4).split("*.up *.act *.down", "f", 4).split("*.ln? *.add?", "s", 4)
    done = plan.split("embed head", "v", 4).replicate("entropy loss", 4).assign("*", range(8)).preserve()
    assert {entry.kinds for entry in done.communications if not entry.tensor.startswith("d(l0.w")} == {
        ("reduce_scatter",), ("all_gather",), ("all_reduce",)}
    summed = next(entry for entry in done.communications if entry.tensor == "d(l0.wq)").conversion
    assert summed is not None and summed.steps[0].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert error(done, numbers(program)) < 1e-10


def test_a_transformation_of_ones_own() -> None:
    def halved(planned: Planned) -> Planned:
        names = [operation.name for operation in planned.program.operations if "f" in operation.annotation.names
                 and operation.phase == "forward"]
        return replace(planned, cuts={**planned.cuts, **{name: (Cut("f", 2),) for name in names}})

    program = mlp()
    done = TransformPlan(program).apply(halved).assign("*", range(2)).preserve()
    assert done.kinds("down") == ("all_reduce",)
    assert error(done, numbers(program)) < 1e-10


@pytest.mark.random
@pytest.mark.parametrize("model", [mlp, transformer, attention, convolutions, experts])
def test_random_plans_compute_what_one_device_does(model: Callable[[], PlanProgram]) -> None:
    program, draw = model(), random.Random(model.__name__)
    given, sent = numbers(program), 0
    for _ in range(examples(12)):
        plan = random_plan(program, draw)
        done = plan.preserve()
        sent += len(done.communications)
        assert error(done, given) < 1e-10
    assert sent


def test_planted_circles_are_all_refused() -> None:
    draw, refused = random.Random(4), 0
    program = transformer()
    names = [operation.name for operation in program.operations]
    for _ in range(60):
        plan = TransformPlan(program).split("*.up *.act *.down", "f", 2).assign("*", range(2))
        reached = set()
        first = draw.choice(names)
        waiting = [first]
        while waiting:
            made = {*program.by_name[waiting.pop()].outputs}
            made |= {total for total, terms in program.sums.items() if made & set(terms)}
            for operation in program.operations:
                if made & set(operation.inputs) and operation.name not in reached:
                    reached.add(operation.name)
                    waiting.append(operation.name)
        if not reached:
            continue
        plan.order(draw.choice(sorted(reached)), first)
        with pytest.raises(PlanError, match=r"in a circle: .*-\(ordered\) -> "):
            plan.preserve()
        refused += 1
    assert refused > 40


def test_orders_that_fit_are_kept() -> None:
    program = mlp()
    plan = TransformPlan(program).split("up bias act", "f", 2).assign("up bias act",
                                                                      (0, 1)).assign("down residual loss", 0)
    done = plan.order(("up", 1), ("up", 0)).preserve()
    assert done.order.index(Part("up", 1)) < done.order.index(Part("up", 0))
    with pytest.raises(PlanError, match=r"circle: .*up#[01] -\(ordered\)"):
        plan.order(("up", 0), ("up", 1)).preserve()


@pytest.mark.parametrize(("wrong", "said"), [
    (lambda plan: plan.split("up", "f", 3), "'f' has 16 elements in each part, which 3 parts do not divide"),
    (lambda plan: plan.split("up", "f", 4).split("up", "f", 8), "'f' has 4 elements in each part, which 8 parts"),
    (lambda plan: plan.split("up", "m", 2, role="spatial"), "'m' is a reduction, .* cannot be split as spatial"),
    (lambda plan: plan.split("up", "f", 2, role="reduction"), "'f' is spatial; it cannot be split as reduction"),
    (lambda plan: plan.split("up", "z", 2), "has no 'z'; it has b, m, f"),
    (lambda plan: plan.split("up", "f", 0), "0 parts of 'f'"),
    (lambda plan: plan.split("nothing*", "f", 2), "there is no operator 'nothing\\*'"),
    (lambda plan: plan.replicate("up", 0), "0 copies"),
    (lambda plan: plan.split("up", "f", 4).assign("up", (0, 1)), "has 4 parts beside each other, 2 devices"),
    (lambda plan: plan.assign("up", (0, 0)), "must be different"),
    (lambda plan: plan.assign("up", -1), "the device -1 is negative"),
    (lambda plan: plan.assign("up", 1.5), "the devices are 1.5, they must be whole numbers"),
    (lambda plan: plan.assign("up", "01"), "the devices are '01', they must be whole numbers"),
    (lambda plan: plan.split("up", "f", 2.0), "2.0 parts of 'f', there must be a whole number"),
    (lambda plan: plan.pipeline(["up"], [0], "b", 2, schedule="zb"),
     "schedule is 'zb', it must be 1f1b, gpipe or open"),
    (lambda plan: error(plan.assign("*", 0).preserve(), {}), "the input 'x' of shape \\(8, 8\\) is missing"),
    (lambda plan: plan.preserve(), "has no device: assign it"),
    (lambda plan: plan.order(("up", 7), "down"), "there is no part up#7"),
    (lambda plan: plan.co_shard("up", "z", 2), "no operator has 'z'"),
    (lambda plan: plan.pipeline(["up"], [0, 1], "b", 2), "there are 1 stages, but devices for 2"),
    (lambda plan: plan.recompute("d(w1) by up.1"), "only forwards are recomputed"),
    (lambda plan: plan.assign("", 0), "'' names no operator"),
    (lambda plan: plan.pipeline(["up", " "], [0, 1], "b", 2), "' ' names no operator"),
    (lambda plan: plan.pipeline(["up"], [0], "z", 0), "there are 0 micro-batches"),
    (lambda plan: plan.pipeline(["up"], [0], "z", 2), "no operator of the stages has 'z'"),
    (lambda plan: plan.order(("up",), "down"), "is no part"), (lambda plan: plan.order(3, "down"), "3 is no part"),
    (lambda plan: plan.replicate("up", 1.5), "1.5 copies"),
    (lambda plan: plan.apply(lambda planned: None), "this one gave NoneType"),
    (lambda plan: with_update(with_update(mlp(), rate=0.1), rate=0.1), "no parameter has a gradient"),
    (lambda plan: with_update(mlp(), "adam"), "adam needs a learning rate"),
    (lambda plan: with_update(mlp(), "sgd", rat=0.1), "sgd has no option 'rat'; did you mean 'rate'\\?"),
    (lambda plan: with_update(mlp(), "adam", rate="1e-3"), "rate is '1e-3', it must be a finite number"),
    (lambda plan: with_update(mlp(), "lion"), "there is no kernel 'lion'"),
    (lambda plan: with_backward(mlp(), ["y"]), "there is no tensor 'y' for gradients to begin at"),
])
def test_what_cannot_be_is_refused_in_a_sentence(wrong: Callable[[TransformPlan], object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        wrong(TransformPlan(mlp()))


def test_frozen_names_and_inner_ones_are_not_cut() -> None:
    with pytest.raises(PlanError, match="'m' is frozen"):
        TransformPlan(transformer()).split("l0.ln1", "m", 2)
    with pytest.raises(PlanError, match="'d' stands behind 'h' in one dimension"):
        TransformPlan(attention()).split("q", "d", 2)


def test_the_check_sees_what_is_missing() -> None:
    program = mlp()
    given = numbers(program)
    done = TransformPlan(program).split("up bias act down", "f", 2).assign("*", range(2)).preserve()
    dropped = tuple(entry for entry in done.joined if entry.tensor != "down")
    with pytest.raises(PlanError, match="reads what it does not have"):
        run_planned(replace(done, joined=dropped), given)
    summed = next(entry for entry in done.joined if entry.tensor == "down")
    assert summed.conversion is not None
    unsummed = replace(summed, conversion=replace(summed.conversion, steps=()))
    wrong = tuple(unsummed if entry is summed else entry for entry in done.joined)
    found = None
    try:
        found = run_planned(replace(done, joined=wrong), given)
    except PlanError as refusal:
        assert "different numbers" in str(refusal)
    assert found is None or abs(found["loss"] - run_dense(program, given)["loss"]) > 1e-3
