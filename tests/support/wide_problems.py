"""Random small problems with choices, jobs and classes, for hypothesis."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from weft.solver import Schedule, baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run

_CLASSES = ("short", "long")


def keep_or_recompute(seed: int, *, classes: bool = False, choices: bool = True, tight: bool = True) -> Problem:
    """A small pipeline whose stages keep activations, or recompute them: an option of each stage's own."""
    draw = random.Random(seed)
    stages = draw.choice([2, 2, 3])
    devices = tuple(Device(f"gpu{s}", draw.randint(2, 5) if tight else None) for s in range(stages))
    blocks: list[Block] = []
    taken: dict[str, tuple[str, ...]] = {}

    def costs(least: int, most: int) -> int | Mapping[str, int]:
        if not classes:
            return draw.randint(least, most)
        short = draw.randint(least, most)
        return {"short": short, "long": short + draw.randint(0, 3)}

    amount: Number
    for s in range(stages):
        choice = f"memory{s}"
        open_ = choices and (s == 0 or draw.random() < 0.7)
        if open_:
            taken[choice] = ("keep", "recompute")
        after = () if s == 0 else (Dependency(f"F{s - 1}", draw.choice([0, 0, 1])),)
        forward = costs(1, 3)
        kept = draw.randint(1, 2)
        for option, amount in [("keep", kept), *([("recompute", draw.choice([0, 1]))] if open_ else [])]:
            when = {choice: option} if open_ else {}
            blocks.append(Block(f"F{s}", BlockKind.FORWARD, (s,), **per_class(duration=forward, memory=(amount,)),
                                after=after, when=when))
        if open_:
            blocks.append(Block(f"R{s}", BlockKind.RECOMPUTE, (s,), draw.randint(1, 2), (0,),
                                (draw.choice([0, 1]),), (Dependency(f"F{s}"),), {choice: "recompute"}))
    for s in reversed(range(stages)):
        choice = f"memory{s}"
        waits = [Dependency(f"F{s}")] + ([Dependency(f"B{s + 1}")] if s + 1 < stages else [])
        length = costs(1, 4)
        for option in ("keep", "recompute") if choice in taken else ("",):
            when = {choice: option} if option else {}
            amount = next(-block.memory[0] for block in blocks  # gives back what the forward took
                          if block.name == f"F{s}" and block.when == when)
            extra = [Dependency(f"R{s}", when={choice: "recompute"})] if option == "recompute" else []
            blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (s,), **per_class(duration=length, memory=(amount,)),
                                after=(*waits, *extra), when=when))
    return Problem(f"drawn{seed}", devices, tuple(blocks), choices=taken)


def drawn_wide(seed: int, *, choices: bool = True, classes: bool = False, jobs: bool = False) -> Problem:
    """A small block graph of any shape with what is asked for."""
    draw = random.Random(seed)
    devices = tuple(Device(f"gpu{d}", draw.choice([None, 2, 3, 4])) for d in range(draw.choice([1, 2, 2])))
    taken: dict[str, tuple[str, ...]] = {}
    if choices:
        for name in ("p", "q")[:draw.randint(1, 2)]:
            taken[name] = ("a", "b", "c")[:draw.randint(2, 3)]
    blocks: list[Block] = []
    for job in ("one", "two") if jobs else (None,):
        of_job: list[str] = []
        for i in range(draw.randint(2, 3)):
            name = f"{job or 'x'}{i}"
            choice = draw.choice([None, *taken])
            options = taken[choice] if choice is not None else ("",)
            waits = [Dependency(before, draw.choice([0, 0, 1]), distance=draw.choice([0, 0, 0, 1]))
                     for before in of_job if draw.random() < 0.5]
            present = [option for option in options if draw.random() < 0.85] or list(options)
            for option in present:
                length: int | dict[str, int] = draw.randint(1, 3)
                if classes and draw.random() < 0.7:
                    length = {label: draw.randint(1, 4) for label in _CLASSES}
                device = draw.randrange(len(devices))
                space = draw.choice([0, 0, 1])
                blocks.append(Block(name, BlockKind.OTHER, (device,), after=tuple(waits), job=job,
                                    when={} if choice is None else {str(choice): option},
                                    **per_class(duration=length, workspace=(space,))))
            of_job.append(name)
    named = {(choice, option) for block in blocks for choice, option in block.when.items()}
    for choice, options in taken.items():  # an option that nobody names means nothing
        for option in options:
            if (choice, option) not in named:
                blocks.append(Block(f"only-{choice}-{option}", BlockKind.OTHER, (0,), draw.randint(1, 2), (0,),
                                    when={choice: option}, job="one" if jobs else None))
    return Problem(f"drawn{seed}", devices, tuple(blocks), choices=taken)


def vanishing(seed: int) -> Problem:
    """One or two small jobs with classes, and one choice: under one of its options a job is gone, or what its classes
    differ in, or a block of it."""
    draw = random.Random(seed)
    devices = tuple(Device(f"gpu{d}", draw.choice([None, None, 2, 3])) for d in range(draw.choice([1, 2])))
    blocks: list[Block] = []
    for number, job in enumerate(["one", "two"] if draw.random() < 0.7 else [None]):
        gone = draw.choice(["job", "classes", "block", "nothing"]) if number or job is None else "nothing"
        if gone == "job" and job is None:
            gone = "classes"
        option = draw.choice("ab")
        for i in range(draw.randint(1, 2)):
            held = draw.choice([0, 0, 1])
            before = Block(f"{job or 'x'}{i}", BlockKind.OTHER, (draw.randrange(len(devices)),),
                           **per_class(duration={name: draw.randint(1, 4) for name in draw.sample(_CLASSES, 2)},
                                       workspace=(held,)),
                           after=(Dependency(f"{job or 'x'}{i - 1}"),) * (i > 0 and draw.random() < 0.7), job=job)
            if gone == "job" or (gone == "block" and i == 1):
                before = replace(before, when={"c": option})
            elif gone == "classes":
                blocks.append(replace(before, when={"c": "b" if option == "a" else "a"},
                                      **per_class(duration=draw.randint(1, 3))))
                before = replace(before, when={"c": option})
            blocks.append(before)
    for option in "ab":  # an option that nobody names means nothing
        if all(block.when.get("c") != option for block in blocks):
            blocks.append(Block(f"only-{option}", BlockKind.OTHER, (0,), draw.randint(1, 3), (0,),
                                when={"c": option}, job=blocks[0].job))
    return Problem(f"vanishing{seed}", devices, tuple(blocks), choices={"c": ("a", "b")})


def drawn_run(problem: Problem, seed: int) -> Run:
    """Some micro-batches of ``problem``, at most three of each job."""
    draw = random.Random(seed)
    jobs = problem.jobs or (None,)
    counted: dict[str | None, int | list[str]] = {}
    for job in jobs:
        names = problem.classes_of(job)
        count = draw.randint(1, 3)
        counted[job] = [draw.choice(names) for _ in range(count)] if names else count
    if jobs == (None,):
        return Run.of(problem, counted[None])
    return Run.of(problem, {str(job): value for job, value in counted.items()})


@st.composite
def wide_problems(draw: st.DrawFn, *, choices: bool = True, classes: bool = False, jobs: bool = False) -> Problem:
    """Either of the two kinds."""
    seed = draw(st.integers(0, 10**6))
    if not jobs and draw(st.booleans()):
        return keep_or_recompute(seed, classes=classes, choices=choices)
    return drawn_wide(seed, choices=choices, classes=classes, jobs=jobs)


@st.composite
def wide_runs(draw: st.DrawFn, *, choices: bool = True, classes: bool = False, jobs: bool = False
              ) -> tuple[Problem, Run]:
    """A problem and a run of it."""
    problem = draw(wide_problems(choices=choices, classes=classes, jobs=jobs))
    return problem, drawn_run(problem, draw(st.integers(0, 10**6)))


def two_jobs() -> Problem:
    """Two jobs on two GPUs; the micro-batches of the first are short or long. Times in ms."""
    def block(name: str, device: int, duration: Number | Mapping[str, Number], job: str, *after: str) -> Block:
        return Block(name, BlockKind.FORWARD, (device,), **per_class(duration=duration),
                     after=tuple(map(Dependency, after)), job=job)

    return Problem("two jobs", (Device("gpu 0"), Device("gpu 1")), (
        block("A0", 0, {"short": 10, "long": 20}, "chat"), block("A1", 1, {"short": 10, "long": 20}, "chat", "A0"),
        block("B1", 1, 15, "search"), block("B0", 0, 15, "search", "B1")), time_unit="ms")


def schedule_of_rounds(problem: Problem, run: Run) -> Schedule:
    """Any schedule of ``run``."""
    rounds = Rounds(problem, run)
    return replace(baseline("greedy", rounds.problem, run.rounds), rounds=rounds)


def schedule_of_jobs() -> Schedule:
    """Four micro-batches of one job of :func:`two_jobs`, two of the other, in two rounds."""
    problem = two_jobs()
    return schedule_of_rounds(problem, Run.of(problem, {"chat": ["short", "long"] * 2, "search": 2}))
