"""Random schedules lower to programs that the proof accepts; a program with one fault is refused, or runs the same.

Stages hold parameters together at random, so that their gradients are summed over any ranks.

The second half needs a notion of "runs the same" that shares nothing with the proof: :func:`_runs_asynchronously` lets
ranks post their messages without waiting, delivers each pair's messages in order, and says whether every rank reaches
its end with all work done once and all its inputs there.
"""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import replace

from hypothesis import assume, event, given
from hypothesis import strategies as st

from tests.support import any_order, for_all
from tests.support.strategies import problems
from weft.runtime import Program, ProgramError
from weft.runtime.plan.check import check_program
from weft.runtime.plan.plan import Plan, plan_from_json, plan_of, plan_to_json
from weft.runtime.plan.program import BlockWork, Instruction, Recv, Reduce, Send, StageWork, parse_instruction
from weft.runtime.plan.stage_graph import LETTERS
from weft.solver import Block, BlockKind, Dependency, Device, Problem, Schedule
from weft.solver.offload import Offload, with_offloads

NAMES = st.text(max_size=8)
COUNTS = st.integers(0, 10**6)
WORKS = (st.builds(StageWork, COUNTS, st.sampled_from(LETTERS), COUNTS) | st.builds(BlockWork, NAMES, COUNTS))
REDUCTIONS = st.builds(lambda stages: Reduce(tuple(sorted(stages))), st.sets(COUNTS, min_size=1, max_size=4))
INSTRUCTIONS = WORKS | st.builds(Send, WORKS, COUNTS) | st.builds(Recv, WORKS, COUNTS) | REDUCTIONS


@given(INSTRUCTIONS)
def test_every_instruction_prints_and_parses_back(instruction: Instruction) -> None:
    assert parse_instruction(str(instruction)) == instruction


@given(INSTRUCTIONS, st.integers(0, 30), st.sampled_from(" 0F[]<>\"x\\\n"))
def test_an_inserted_character_is_never_read_as_the_same_instruction(
        instruction: Instruction, at: int, character: str) -> None:
    text = str(instruction)
    changed = text[:at] + character + text[at:]
    with contextlib.suppress(ProgramError):
        assert parse_instruction(changed) != instruction


@for_all(problems(), st.integers(1, 3), st.integers(0, 2**32), tries=int(os.environ.get("WEFT_PLANS", "150")))
def test_blocks_of_any_kind_have_a_plan_or_a_refusal_in_words(problem: Problem, micro_batches: int, seed: int) -> None:
    """Whatever gradients wait for, and on whatever devices they are."""
    schedule = any_order(problem, micro_batches, random.Random(seed))
    try:
        plan = plan_of(schedule)
    except ProgramError as error:
        assert "waits for no forward block" in str(error) or "of its stage" in str(error)  # a recompute before its F
        event("refused")
        return
    event("stages" if plan.stage_groups is not None else "blocks")
    assert len(plan.times) == micro_batches * len(problem.blocks)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A random block graph (several devices a block, branches, lags, waits for the previous micro-batch) or a pipeline
    with full or split backwards and some stages offloaded, run in a random order that its dependencies allow."""
    problem = draw(st.one_of(_graphs(), _pipelines()))
    micro_batches = draw(st.integers(1, 4))
    return any_order(problem, micro_batches, random.Random(draw(st.integers(0, 2**32))))


@st.composite
def _graphs(draw: st.DrawFn) -> Problem:
    devices, blocks = draw(st.integers(1, 4)), []
    for i in range(draw(st.integers(1, 7))):
        where = draw(st.lists(st.integers(0, devices - 1), min_size=1, max_size=2, unique=True))
        producers = draw(st.lists(st.integers(0, i), max_size=3))
        after = tuple(Dependency(f"b{p}", draw(st.sampled_from([0, 0.5, 2])),
                                 distance=1 if p == i else draw(st.sampled_from([0, 0, 1, 2]))) for p in producers)
        blocks.append(Block(f"b{i}", BlockKind.OTHER, tuple(where), draw(st.sampled_from([1, 2, 0.3])), after=after))
    return Problem("graph", tuple(Device(str(d)) for d in range(devices)), tuple(blocks))


@st.composite
def _pipelines(draw: st.DrawFn) -> Problem:
    devices, stages = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    one, two = (st.lists(st.integers(0, devices - 1), min_size=1, max_size=most, unique=True) for most in (1, 2))
    where = [tuple(draw(st.one_of(one, one, two))) for _ in range(stages)]
    lag = draw(st.sampled_from([0, 0.5]))
    blocks = [Block(f"f{s}", BlockKind.FORWARD, where[s], draw(st.sampled_from([1, 1.5])), (2,) * len(where[s]),
                    after=(Dependency(f"f{s - 1}", lag),) if s else ()) for s in range(stages)]
    before, offloads = f"f{stages - 1}", list[Offload]()
    for s in reversed(range(stages)):
        split = draw(st.booleans())
        kind, name = (BlockKind.INPUT_GRAD, f"i{s}") if split else (BlockKind.BACKWARD, f"b{s}")
        blocks.append(Block(name, kind, where[s], 2, (0 if split else -2,) * len(where[s]),
                            after=(Dependency(before, lag),)))
        if split:
            blocks.append(Block(f"w{s}", BlockKind.WEIGHT_GRAD, where[s], 1, (-2,) * len(where[s]),
                                after=(Dependency(name),)))
        if len(where[s]) == 1 and draw(st.integers(0, 3)) == 0:
            offloads.append(Offload(f"f{s}", name, draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 0.7]))))
        before = name
    problem = Problem("pipeline", tuple(Device(str(d)) for d in range(devices)), tuple(blocks))
    return with_offloads(problem, offloads, 0.1)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Schedule, Plan]:
    """A schedule, and its plan, in which some sets of stages hold parameters together."""
    schedule = draw(schedules())
    plan = plan_of(schedule)
    stages = 0 if plan.stage_groups is None else len(plan.stage_groups)
    if stages < 2:
        return schedule, plan
    sets = st.lists(st.integers(0, stages - 1), min_size=2, max_size=3, unique=True)
    return schedule, plan.sharing(draw(st.lists(sets, max_size=2)))


@given(plans())
def test_every_schedule_lowers_to_a_program_that_is_proven(made: tuple[Schedule, Plan]) -> None:
    schedule, plan = made
    for device, row in enumerate(schedule.device_orders):
        assert list(plan.program.works(device)) == [plan.vocabulary.work(o.block, o.micro_batch) for o in row]
    assert _runs_asynchronously(plan.program, plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan.digest == plan.sharing(()).digest


@st.composite
def faults(draw: st.DrawFn, plan: Plan) -> tuple[str, int, Instruction, Program]:
    """What one fault is, on which rank, at which instruction (a sum of gradients as often as not), and the program."""
    rows = [list(row) for row in plan.program.ranks]
    places = [(rank, step) for rank, row in enumerate(rows) for step in range(len(row))]
    reductions = [(rank, step) for rank, step in places if isinstance(rows[rank][step], Reduce)]
    rank, step = draw(st.sampled_from(places) | st.sampled_from(reductions or places))
    row, instruction = rows[rank], rows[rank][step]
    fault = draw(st.sampled_from(["drop", "double", "swap", "move", "exchange", "other"]))
    if fault == "drop":
        del row[step]
    elif fault == "double":
        row.insert(draw(st.integers(0, len(row))), instruction)
    elif fault == "swap":
        assume(step + 1 < len(row))
        row[step], row[step + 1] = row[step + 1], row[step]
    elif fault == "move":
        row.insert(draw(st.integers(0, len(row) - 1)), row.pop(step))
    elif fault == "exchange":
        assume(isinstance(instruction, Reduce))
        there = draw(st.sampled_from([there for where, there in reductions if where == rank]))
        row[step], row[there] = row[there], row[step]
    else:
        row[step] = draw(_others(plan, instruction).filter(lambda other: other != instruction))
    return fault, rank, instruction, Program(tuple(tuple(row) for row in rows))


def _others(plan: Plan, instruction: Instruction) -> st.SearchStrategy[Instruction]:
    """Sums of other parameters; messages from or to other ranks, or of other micro-batches; work of these."""
    if isinstance(instruction, Reduce):
        stages = len(plan.stage_groups or ())
        return st.sampled_from([Reduce(group) for group in [*plan.parameter_groups, (stages,), (0, stages)]])
    numbers = st.integers(0, plan.micro_batches)
    if isinstance(instruction, StageWork | BlockWork):
        return numbers.map(lambda m: instruction._replace(micro_batch=m))
    what, peers = instruction.what, st.integers(0, len(plan.program.ranks))
    return (peers.map(lambda peer: replace(instruction, peer=peer))
            | numbers.map(lambda m: replace(instruction, what=what._replace(micro_batch=m))))


@for_all(plans(), st.data(), tries=300)
def test_one_fault_is_refused_or_changes_nothing(made: tuple[Schedule, Plan], data: st.DataObject) -> None:
    """Dropped, doubled and redirected instructions are always refused. Two neighbours or sums that change places, and
    one instruction that moves elsewhere, are refused, or they are independent of what they pass: then the program still
    runs, in another valid order."""
    _, plan = made
    fault, rank, instruction, faulty = data.draw(faults(plan))
    kind = "REDUCE " if isinstance(instruction, Reduce) else ""
    try:
        check_program(faulty, plan.problem, plan.micro_batches, plan.parameter_groups)
    except ProgramError as error:
        event(f"{kind}{fault}: refused")
        assert "<-- here" in str(error) and (not kind or f"rank {rank}" in str(error))
        return
    event(f"{kind}{fault}: harmless")
    assert fault in ("swap", "move", "exchange")
    assert _runs_asynchronously(faulty, plan)


def _runs_asynchronously(program: Program, plan: Plan) -> bool:
    problem, micro_batches = plan.problem, plan.micro_batches
    names = {str(work): work for row in program.ranks for work in row}
    sent: dict[tuple[int, int], list[str]] = {}
    got: list[set[str]] = [set() for _ in program.ranks]
    done: list[list[str]] = [[] for _ in program.ranks]
    asked: dict[tuple[int, int], list[str]] = {}
    step = [0] * len(program.ranks)

    def block_of(text: str) -> tuple[int, int]:
        work = names[text]
        assert isinstance(work, (StageWork, BlockWork))
        if isinstance(work, BlockWork):
            return problem.index[work.block], work.micro_batch
        letter, stage = work.letter.lower(), work.stage
        name = {"o": f"f{stage} out", "l": f"f{stage} in"}.get(letter, f"{letter}{stage}")  # as _pipelines names them
        return problem.index[name], work.micro_batch

    def adds_all(rank: int, stages: tuple[int, ...]) -> bool:
        """Whether ``rank`` has run everything that adds to the gradients of ``stages``, whose passes are named b3."""
        wanted = {(b, m) for m in range(micro_batches) for b in problem.blocks_on[rank]
                  if problem.blocks[b].name in [f"{letter}{s}" for letter in "biw" for s in stages]}
        return wanted <= {block_of(text) for text in done[rank] if not text.startswith("REDUCE")}

    def deliver() -> bool:
        return all(a == b for pair, wanted in asked.items() for a, b in zip(wanted, sent.get(pair, []), strict=False))

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(program.ranks):
            if step[rank] == len(row):
                continue
            instruction = row[step[rank]]
            if isinstance(instruction, Send):
                if str(instruction.what) not in done[rank]:
                    return False
                sent.setdefault((rank, instruction.peer), []).append(str(instruction.what))
            elif isinstance(instruction, Recv):
                asked.setdefault((instruction.peer, rank), []).append(str(instruction.what))
            elif isinstance(instruction, Reduce):
                members = plan.parameter_groups[instruction.stages]
                at = [program.ranks[o][step[o]] if step[o] < len(program.ranks[o]) else None for o in members]
                if not adds_all(rank, instruction.stages):
                    return False
                if rank == min(members) and any(other != instruction for other in at):
                    continue
                if rank != min(members) and str(instruction) not in done[min(members)]:
                    continue
                done[rank].append(str(instruction))
            else:
                block, m = block_of(str(instruction))
                arrived = {text for (source, target), wanted in asked.items() if target == rank
                           for text, _ in zip(wanted, sent.get((source, target), []), strict=False)}
                got[rank] = {*(text for text in done[rank] if not text.startswith("REDUCE")), *arrived}
                have = {block_of(text) for text in got[rank]}
                needed = {(problem.index[d.block], m - d.distance) for d in problem.blocks[block].after
                          if m >= d.distance}
                together = problem.blocks[block].devices
                at = [program.ranks[o][step[o]] if step[o] < len(program.ranks[o]) else None for o in together]
                if not needed <= have or (rank == min(together) and any(other != instruction for other in at)):
                    continue
                if rank != min(together) and str(instruction) not in done[min(together)]:
                    continue
                done[rank].append(str(instruction))
            step[rank] += 1
            moved = True
            if not deliver():
                return False
    complete = all(sorted(block_of(text) for text in texts if not text.startswith("REDUCE"))
                   == [(b, m) for b in blocks for m in range(micro_batches)]
                   for texts, blocks in zip(done, problem.blocks_on, strict=True))
    complete &= all(sorted(text for text in texts if text.startswith("REDUCE"))
                    == sorted(str(Reduce(stages)) for stages, ranks in plan.parameter_groups.items() if rank in ranks)
                    for rank, texts in enumerate(done))
    return complete and all(len(asked.get(pair, [])) == len(messages) for pair, messages in sent.items()) and all(
        step[rank] == len(row) for rank, row in enumerate(program.ranks))
