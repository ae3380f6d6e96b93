"""weft: schedules for distributed DNN training and inference, searched for and proven.

The functions here are what the command line does, under the same names::

    import weft
    schedule = weft.solve("gpt.yaml", time_limit=30)      # the best schedule found, with a proven bound
    print(weft.compare("gpt.yaml"))                       # beside 1F1B, interleaved, zero-bubble ...
    weft.draw(schedule, "schedule.html")

Importing weft is cheap: what a function needs (OR-Tools, the chart library, torch) is loaded when it is called.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from torch.nn import Module

    from models.measured_times import MeasuredTimes
    from models.spec import Spec
    from runtime.stage_costs import MeasuredStages
    from runtime.training import Training
    from solver.operators import OperatorGraph
    from solver.placement.placement import Placement
    from solver.placement.problem import PlacementProblem
    from solver.placement.search import Step
    from solver.problem import Number, Problem
    from solver.schedule import Schedule
    from solver.search import Progress
    from weft.comparison import Comparison
    from weft.demonstration import Demonstration
    from weft.estimating import Report
    from weft.explanation import Explanation
    from weft.fitting import Fitted
    from weft.latencies import Serving
    from weft.sweeping import SweepProgress
    from weft.tradeoff import Sweep

__all__ = ["__version__", "capture", "check", "compare", "demo", "draw", "estimate", "explain",
           "export_schedule", "fit", "import_schedule", "latency", "place", "plan", "profile", "profile_stages",
           "replay", "replay_alone", "schema", "solve", "sweep", "unroll"]

__version__ = "0.1.0"

PathLike: TypeAlias = "str | os.PathLike[str]"
#: What can be solved: a model spec or ``weft.problem/1`` file, or what one of them was read into.
Source: TypeAlias = "PathLike | Spec | Problem"


def _refuse_strangers() -> None:
    """Another installed package of the same name would be imported instead of ours and fail in strange ways."""
    home = Path(__file__).resolve().parent.parent
    for name in ("solver", "models", "runtime"):
        found = importlib.util.find_spec(name)
        origin = Path(found.origin).resolve() if found and found.origin else None
        if origin is None or origin.parent.parent != home:
            raise ImportError(f"weft needs its own package {name!r} at {home / name}, but Python finds "
                              f"{origin.parent if origin else 'none'}: start Python elsewhere, or uninstall the other")


_refuse_strangers()


def solve(
    source: Source,
    *,
    micro_batches: int | None = None,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Schedule:
    """The best schedule found for ``source`` within ``time_limit`` seconds, with a proven lower bound on its makespan.

    For a model spec all its placements (shapes, full and split backward) are searched and the best is returned; for a
    block problem ``micro_batches`` says how many run (a spec says it itself; the argument overrides). ``effort`` limits
    CP-SAT's deterministic time, so that a ``seed`` repeats a run exactly. Ctrl-C returns the best so far.

    Raises :class:`solver.search.Infeasible` where no schedule fits, and ``ValueError`` (``SpecError``, ``FormatError``)
    for a source that means nothing.
    """
    from weft.planning import solve_source

    return solve_source(source, micro_batches=micro_batches, time_limit=time_limit, effort=effort, seed=seed,
                        workers=workers, on_progress=on_progress)


def compare(
    source: Source,
    *,
    micro_batches: int | None = None,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Comparison:
    """Every known schedule that ``source`` allows beside weft's own, at equal memory and on the same durations.

    Each known schedule gets, of the placements it can run on, the one where it fits and is fastest. Arguments and
    errors are those of :func:`solve`. ``str()`` of the result is the table, ``.rows`` its numbers, ``.schedules`` the
    schedules by name.
    """
    from weft.comparison import compare_source

    return compare_source(source, micro_batches=micro_batches, time_limit=time_limit, effort=effort, seed=seed,
                          workers=workers, on_progress=on_progress)


def sweep(
    source: Source,
    *,
    memory: Sequence[Number | str] | None = None,
    micro_batches: Sequence[int] | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
    recompute: Sequence[bool] | None = None,
    shapes: Sequence[str] | None = None,
    chunks: Sequence[int] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    cache: PathLike | bool = True,
    refine: bool = True,
    time_limit: float | None = None,
    effort: float | None = None,
    seed: int = 0,
    on_progress: Callable[[SweepProgress], None] = lambda _: None,
) -> Sweep:
    """Solve ``source`` for every combination of the values given, and show what memory buys in throughput.

    ``memory`` is what each GPU has: bytes or ``"24 GiB"`` (for a block problem: its memory unit), or ``"1.5x"`` for
    that many times what the source says. ``shapes`` (``chain``, ``v``, ``loop``) or ``chunks`` (stages a GPU) solve
    each entry by itself; without them the best of all is taken. What is not given stays as the source says; a block
    problem has memory and ``micro_batches`` only. A point that fits no GPU, or that there are no costs for, is left
    out.

    A known schedule that needs less memory than the points asked for, and is faster than those with as little, calls
    for a point at the memory it needs: ``refine`` adds them, so that no known schedule is ahead of weft's front.

    Points are solved side by side on ``executor``, any :class:`concurrent.futures.Executor`, by default a process
    pool of ``workers`` (one a core); 1 solves in this process. ``cache`` names a folder for solved points (``True``:
    the user's cache folder, ``False``: none), where a sweep that was interrupted goes on. ``time_limit`` is for each
    point, 10 seconds by default; with ``effort`` the rows repeat exactly, whichever executor solves them.

    Ctrl-C returns what is solved so far. Raises ``ValueError`` for values that mean nothing or make more than 1000
    points, and the errors of :func:`solve` where no point at all can be solved.
    """
    from weft.sweeping import sweep_source
    from weft.variants import Axes

    axes = Axes(memory, micro_batches, micro_batch_sizes, recompute, shapes, chunks)
    return sweep_source(source, axes, executor=executor, workers=workers, cache=cache, refine=refine,
                        time_limit=time_limit, effort=effort, seed=seed, on_progress=on_progress)


def latency(
    source: Source,
    *,
    throughput: Number | str | None = None,
    period: Number | str | None = None,
    points: int = 8,
    micro_batches: int | None = None,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[Serving], None] = lambda _: None,
) -> Serving:
    """How long one micro-batch takes, first start to last end, when another one starts every period.

    At a floor, ``throughput`` (micro-batches per time unit, or ``"12.5/s"``) or a longest ``period`` (in the time unit,
    or ``"80 ms"``), the least latency; without one the front of latency against throughput, from the best throughput
    to the least latency, about ``points`` of it. Each point has a proven lower bound over all placements, and a judged
    schedule of ``micro_batches`` (default: what a spec says). The other arguments are those of :func:`solve`; Ctrl-C
    returns what was found. One micro-batch a period is searched.

    Raises :class:`solver.search.Infeasible` where no schedule fits or the floor cannot be met (it says what can), and
    ``ValueError`` (``SpecError``, ``FormatError``) for a source or a floor that means nothing.
    """
    from weft.serving import serve_source

    return serve_source(source, throughput=throughput, period=period, points=points, micro_batches=micro_batches,
                        time_limit=time_limit, effort=effort, seed=seed, workers=workers, on_progress=on_progress)


def estimate(source: PathLike | Spec, *, shape: str | None = None) -> Report:
    """What each stage of a model spec holds, sends and costs, before any search, and whether it fits the GPUs.

    The stages are those of ``shape`` (``chain``, ``v``, ``loop``; default the first that the spec allows) under 1F1B.
    Every number says its origin: measured, interpolated, modelled or given; modelled ones with their known error.
    ``str()`` is the table, ``.to_json()`` the numbers, ``.fits`` the verdict.

    Raises ``ValueError`` (``SpecError`` and its like) for a spec that means nothing or has no costs.
    """
    from weft.estimating import estimate_source

    return estimate_source(source, shape=shape)


def check(schedule: Schedule | PathLike) -> list[str]:
    """What is wrong with a schedule: one sentence each, none if it is valid.

    The judge (:mod:`solver.validate`) derives everything from the operations; a file's stated makespan, peak
    memory and status are held against them too. Raises ``FormatError`` for a file that is no schedule.
    """
    from solver.validate import violations

    if isinstance(schedule, str | os.PathLike):
        from solver.files import load_schedule, misstatements, read_json

        loaded = load_schedule(schedule)
        return [*violations(loaded), *misstatements(read_json(schedule), loaded)]
    return violations(schedule)


def draw(
    schedule: Schedule | PathLike,
    path: PathLike,
    *,
    baseline: Schedule | PathLike | None = None,
    measured: PathLike | None = None,
    title: str | None = None,
    critical: bool = False,
    history: bool = False,
) -> None:
    """Draw a schedule to ``path``: ``.html`` (self-contained, details on hover), ``.svg``, ``.png``; ``.json`` is a
    Perfetto trace.

    ``baseline`` is drawn above it on the same time axis; ``measured`` is a timeline that :func:`replay` wrote.
    ``critical`` marks the critical path (see :func:`explain`). ``history`` draws, instead of the schedule, the best
    makespan and the bound over the time of the search that made it.
    Raises :class:`~solver.validate.InvalidSchedule` for a schedule that breaks a rule.
    """
    from weft.drawing import draw_history, draw_schedule

    if history:
        if baseline is not None or measured is not None or critical:
            raise ValueError("the history of a search is a picture of its own: leave out baseline, measured and "
                             "critical")
        draw_history(_valid(schedule), path, title=title)
        return
    draw_schedule(_valid(schedule), path, baseline=None if baseline is None else _valid(baseline), measured=measured,
                  title=title, critical=critical)


def explain(
    source: Source | Schedule,
    *,
    micro_batches: int | None = None,
    what_if: bool = False,
    in_flight: int | None = None,
    time_limit: float = 30.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Explanation:
    """Why a schedule is as long as it is, or why a problem has none.

    ``source`` is a schedule or a schedule file, or a spec or problem, which is solved first (the arguments are those of
    :func:`solve`). The explanation holds the critical path of the makespan, the critical cycle of the period, and
    every device's idle time by what it waits for; where no schedule fits, what collides in which memory and what
    would work. ``what_if`` adds what more memory, faster transfers and shorter stages would give, each tried with
    ``effort`` and all within ``time_limit``. ``in_flight`` asks how many micro-batches at once the memory holds.
    ``str()`` is the text, ``.to_json()`` the numbers.

    Raises ``InvalidSchedule`` for a schedule that breaks a rule, and the errors of :func:`solve` for a source that
    means nothing.
    """
    from weft.explanation import explain_source

    return explain_source(source, micro_batches=micro_batches, what_if_figures=what_if, in_flight_wanted=in_flight,
                          time_limit=time_limit, effort=effort, seed=seed, workers=workers, on_progress=on_progress)


def plan(schedule: Schedule | PathLike, path: PathLike | None = None, stages: str | None = None) -> Any:
    """The schedule lowered to one instruction list a rank, proven free of deadlock and complete; written to ``path``.

    With ``stages``, "module:function" as :func:`replay` has it, the plan is for these stages only; needs torch.
    Returns the :class:`runtime.plan.Plan`. Raises ``InvalidSchedule`` and :class:`runtime.check.ProgramError`.
    """
    from runtime.plan import plan_of, save_plan

    made = plan_of(_valid(schedule))
    if stages is not None:
        from runtime.replay import load_factory
        from runtime.signature import signed

        made = signed(made, load_factory(stages))
    if path is not None:
        save_plan(made, path)
    return made


def export_schedule(schedule: Schedule | PathLike, path: PathLike, *, format: str | None = None,
                    torch: str = "2.13") -> list[Path]:
    """Write a schedule for another tool; returns the files written.

    ``format`` is ``pytorch`` (pipelining CSV; the default for ``.csv``), ``pytorch-comms`` (with communication, for
    PyTorch version ``torch``), ``megatron`` (flags), ``torchtitan`` (``.toml``, and a CSV beside it), ``nnscaler``
    (``.py``), ``tessel`` or ``perfetto`` (JSON). Raises ``InvalidSchedule``, and ``ValueError`` (``ExportError``) with
    the reason for a schedule that the format cannot express.
    """
    from weft.exporting import export_to

    return export_to(_valid(schedule), path, format=format, torch=torch)


def fit(source: Schedule | PathLike, *timelines: PathLike) -> Fitted:
    """What :func:`replay` measured, as corrected costs: ``source`` is the plan or schedule that ran, each of
    ``timelines`` a run of it.

    The result's ``problem`` has every block's median duration, and the transfers that could be seen, so that the next
    :func:`solve` is on real figures; ``save(path)`` writes it, ``str()`` is the table of planned against measured,
    ``warnings`` names blocks with a large spread. Raises ``ValueError`` for a timeline of another plan.
    """
    from weft.fitting import fit_timelines

    return fit_timelines(source, timelines)


def import_schedule(path: PathLike, *, problem: Source | None = None, micro_batches: int | None = None) -> Schedule:
    """Somebody's schedule, to be checked, timed and drawn: a PyTorch pipelining ``.csv`` of either flavour, or a Tessel
    ``.json``.

    ``problem``, a block problem or for a CSV a model spec, says how long blocks take and what they hold; without one a
    forward and each half of a backward take one unit. What it breaks of weft's rules is for :func:`check` to say; what
    is odd about a CSV's communication stands in ``schedule.solver["notes"]``. Raises ``FormatError``, with row and
    cell, for a file that no rank could run.
    """
    from weft.exporting import import_from

    return import_from(path, problem=problem, micro_batches=micro_batches)


def replay(plan: PathLike, **options: Any) -> Any:
    """Run a plan on this process's rank (under ``torchrun``); needs torch. See :func:`runtime.replay.replay`."""
    from runtime.replay import replay as run_plan

    return run_plan(plan, **options)


def replay_alone(plan: PathLike, ranks: Sequence[int] | None = None, *, stages: str, **options: Any) -> Any:
    """Run ranks of a plan one after another on this process's device, each without the others; needs torch.

    Gives every rank's times and peak memory, and the step they predict. See :func:`runtime.replay.replay_alone`.
    """
    from runtime.replay import replay_alone as run_alone

    return run_alone(plan, ranks, stages=stages, **options)


def demo(folder: PathLike = "weft-demo", **options: Any) -> Demonstration:
    """Plan GPT-1.3B on four V100s with measured costs, compare, draw, and write everything into ``folder``."""
    from weft.demonstration import demonstrate

    return demonstrate(folder, **options)


def place(
    graph: PathLike | PlacementProblem | OperatorGraph | Spec,
    *,
    devices: Mapping[str, tuple[int, float | None]] | None = None,
    recompute: bool = False,
    latency: bool = False,
    stage_graph: bool = False,
    slack: float = 0.0,
    whole_layers: bool = True,
    time_limit: float = 60.0,
    effort: float | None = None,
    seed: int = 0,
    workers: int = 1,
    on_step: Callable[[Step], None] = lambda _: None,
) -> Placement:
    """An operator graph cut into stages on devices so that the largest load is least, with a proven bound.

    ``graph`` is a :class:`~solver.placement.problem.PlacementProblem`, a model spec, an operator graph, or a file: a
    spec, ``weft.operators/1``, or the dnn-partitioning or Piper JSON format. ``devices`` overrides how many there are
    of a kind and, unless ``None``, the memory of each, by the kind's name; an operator graph knows none, so its are
    named by type (``{"a100-80gb": (4, None)}``). Layers of a spec or operator graph stay whole if ``whole_layers``.
    ``recompute`` takes, of a Piper graph's alternatives, those that keep least. ``latency`` then minimises, at that
    largest load, the time one micro-batch takes. With ``stage_graph`` independent stages run at once and hold as many
    micro-batches as they are deep (a :class:`~solver.placement.stage_dag.GraphPlacement`); then the depth is minimised,
    among largest loads up to ``slack`` above the least. ``effort``, ``seed``, ``workers`` and Ctrl-C as in
    :func:`solve`.

    Raises :class:`solver.placement.hopeless.NoPlacement` (an ``Infeasible``) where nothing fits, and ``ValueError``
    (``FormatError``, ``PlacementError``) for a graph that means nothing.
    """
    from weft.placing import place_source

    return place_source(graph, devices=devices, recompute=recompute, latency=latency, stage_graph=stage_graph,
                        slack=slack, whole_layers=whole_layers, time_limit=time_limit, effort=effort, seed=seed,
                        workers=workers, on_step=on_step)


def capture(source: PathLike | Module, inputs: tuple[Any, ...] | None = None,
            keywords: Mapping[str, Any] | None = None) -> OperatorGraph:
    """The operators of a model: of a ``.pt2`` file of ``torch.export.save``, or of a module called with ``inputs``.

    Of a file nothing is unpickled and no code runs but torch's own on tensors without data; a module is exported with
    ``torch.export.export(source, inputs, keywords)``. ``notes`` of the result say what its numbers assume. Raises
    :class:`models.exported.ExportError`.
    """
    from models.capture import capture_file, capture_module

    if isinstance(source, str | os.PathLike):
        return capture_file(source)
    return capture_module(source, inputs or (), keywords)


def profile(model: PathLike, *, repeats: int = 7, device: str | None = None) -> MeasuredTimes:
    """Each distinct operator of a ``.pt2`` file timed alone on this device, forward and backward, with its memory.

    The model as a whole never runs; what would not fit is skipped and filled in, and the result says so. Raises
    :class:`models.exported.ExportError`.
    """
    from weft.profiling import profile_operators

    return profile_operators(model, repeats=repeats, device=device)


def profile_stages(stages: str | Training, *, repeats: int = 7, device: str | None = None) -> MeasuredStages:
    """Time and memory of F, B, I and W of every stage of a training, each stage run alone by the executor's own runner.

    ``stages`` is a :class:`runtime.training.Training` with all stages, or ``FILE.py:FUNCTION`` that gives one.
    :func:`runtime.stage_costs.measured_problem` makes a problem of the result. Raises ``ValueError``.
    """
    from weft.profiling import profile_stages as measure

    return measure(stages, repeats=repeats, device=device)


def schema() -> Mapping[str, Any]:
    """The JSON Schema of a model spec."""
    from models.spec import spec_schema

    return spec_schema()


def unroll(schedule: Schedule | PathLike, micro_batches: int) -> Schedule:
    """A solved schedule for another number of micro-batches: whole periods put in or taken out, no search.

    Raises ``ValueError`` if it has no repetend, or too few micro-batches are asked for.
    """
    from solver.unroll import unroll as stretch

    return stretch(_valid(schedule), micro_batches)


def _valid(schedule: Schedule | PathLike) -> Schedule:
    """The schedule, read if it is a path, and judged."""
    from solver.validate import validate

    if isinstance(schedule, str | os.PathLike):
        from solver.files import load_schedule

        schedule = load_schedule(schedule)
    validate(schedule)
    return schedule
