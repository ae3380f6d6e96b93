"""What is searched for: schedules and placements, compared, swept over and explained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from weft.app.lib.options import SearchKeywords, SearchOptions
from weft.app.lib.sources import MicroBatches, PathLike, Source

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from weft.app.compare import Comparison
    from weft.app.demo import Demonstration
    from weft.app.explain import Explanation
    from weft.app.latency.serving import Serving
    from weft.app.place.memory_plans import MemoryPlans
    from weft.app.share.result import Sharing
    from weft.app.sweep.result import Sweep
    from weft.app.sweep.run import SweepProgress
    from weft.models.graph.operators import OperatorGraph
    from weft.models.spec.spec import Spec
    from weft.solver.placement.bracket import Step
    from weft.solver.placement.joint.answer import PlacedStep
    from weft.solver.placement.placement import Placement
    from weft.solver.placement.problem import PlacementProblem
    from weft.solver.problem import Number
    from weft.solver.schedule import Schedule
    from weft.solver.step.search import Progress

__all__ = ["compare", "demo", "explain", "latency", "place", "place_memory", "place_step", "share", "solve", "sweep"]


def solve(
    source: Source,
    *,
    micro_batches: MicroBatches | None = None,
    throughput: Number | str | None = None,
    period: Number | str | None = None,
    overlap: str = "none",
    options: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **search: Unpack[SearchKeywords],
) -> Schedule:
    """The best schedule found for ``source`` within ``time_limit`` seconds, with a proven lower bound on its makespan.

    With another ``objective`` than ``"makespan"`` it is the best for that: ``"span"``, how soon the next step can begin
    (no device is longer busy with one step), ``"rate"``, the time per micro-batch of its steady state, or
    ``"latency"``, the least time of one micro-batch with a ``throughput`` of at least so many micro-batches per time
    (``"12.5/s"``) or a ``period`` of at most so long (``"80 ms"``): :func:`latency` at that floor. ``value`` and
    ``value_bound`` of the schedule are of the objective.

    For a model spec all its placements (shapes, full and split backward) are searched and the best is returned; for a
    block problem ``micro_batches`` says how many run (a spec says it itself; the argument overrides). A block problem
    may have choices, jobs and classes: then the answer is the best over all assignments, ``micro_batches`` is one
    number a job (``{"a": 8, "b": 4}``) and, where micro-batches differ, the class of each (``["short", "long"]``);
    ``reorder`` lets the search choose their order, ``ratio`` says how many of each job make a round.

    With ``overlap="auto"`` a spec's collectives may run beside computation: the whole model on every GPU with its sums
    of gradients in buckets, and stages on several GPUs with their all-reduces in chunks, as reduce-scatter and
    all-gather, or with two micro-batches side by side; which of these, and how many chunks, is searched with the order.
    ``solver["overlap"]`` says what it brings. It is never worse than without on the same placement.

    ``options`` limit the search (:class:`SearchOptions`: ``time_limit``, 60 s by default, ``effort``, ``seed``,
    ``workers``, ``objective``); each can also be given as a keyword, which goes before:
    ``solve("gpt.yaml", time_limit=30)``. ``effort`` limits CP-SAT's deterministic time, so that a ``seed`` repeats a
    run exactly. ``on_progress`` is called with every better schedule and bound. Ctrl-C returns the best so far.

    Raises :class:`weft.solver.step.search.Infeasible` where no schedule fits, and ``ValueError`` (``SpecError``,
    ``FormatError``) for a source that means nothing, or an objective that means nothing for it.
    """
    from weft.app.objectives import solve_for
    from weft.solver.objectives import OBJECTIVES

    given = SearchOptions.given(options, search, objectives=OBJECTIVES, differing=True)
    return solve_for(source, micro_batches, given, on_progress, throughput=throughput, period=period, overlap=overlap)


def compare(
    source: Source,
    *,
    micro_batches: MicroBatches | None = None,
    options: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **search: Unpack[SearchKeywords],
) -> Comparison:
    """Every known schedule that ``source`` allows beside weft's own, at equal memory and on the same durations.

    Each known schedule gets, of the placements it can run on, the one where it fits and is fastest. Arguments and
    errors are those of :func:`solve`; the ``objective`` is the makespan or the span, which known schedules are then
    timed for, each under its own order. ``str()`` of the result is the table, ``.rows`` its numbers, ``.schedules`` the
    schedules by name.
    """
    from weft.app.compare import compare_source

    return compare_source(source, micro_batches,
                          SearchOptions.given(options, search, objectives=("makespan", "span"), differing=True),
                          on_progress)


class SweepKeywords(TypedDict, total=False):
    """What :func:`sweep` varies, and how each point is searched."""

    memory: Sequence[Number | str] | None
    micro_batches: Sequence[int] | None
    micro_batch_sizes: Sequence[int] | None
    recompute: Sequence[bool] | None
    shapes: Sequence[str] | None
    chunks: Sequence[int] | None
    time_limit: float | None
    effort: float | None
    seed: int


def sweep(
    source: Source,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    cache: PathLike | bool | None = True,
    refine: bool = True,
    options: SearchOptions | None = None,
    on_progress: Callable[[SweepProgress], None] = lambda _: None,
    **values: Unpack[SweepKeywords],
) -> Sweep:
    """Solve ``source`` for every combination of the values given, and show what memory buys in throughput.

    What varies are ``memory``, ``micro_batches``, ``micro_batch_sizes``, ``recompute``, ``shapes`` and ``chunks``, each
    a list of values. ``memory`` is what each GPU has: bytes or ``"24 GiB"`` (for a block problem: its memory unit), or
    ``"1.5x"`` for that many times what the source says. ``shapes`` (``chain``, ``v``, ``loop``, ``m`` ...) or
    ``chunks`` (stages a GPU) solve each entry by itself; without them the best of all is taken. What is not given stays
    as the source says; a block problem has memory and ``micro_batches`` only. A point that fits no GPU, or that there
    are no costs for, is left out.

    A known schedule that needs less memory than the points asked for, and is faster than those with as little, calls
    for a point at the memory it needs: ``refine`` adds them, so that no known schedule is ahead of weft's front.

    Points are solved side by side on ``executor``, any :class:`concurrent.futures.Executor`, by default a process
    pool of ``workers`` (one a core); 1 solves in this process. ``cache`` names a folder for solved points (``True``:
    the user's cache folder, ``False`` or ``None``: none), where a sweep that was interrupted goes on.

    ``options``, or ``time_limit``, ``effort`` and ``seed`` as keywords, are for each point; without a time limit a
    point has 10 seconds, or an hour where an effort ends it. With ``effort`` the rows repeat exactly, whichever
    executor solves them.

    Ctrl-C returns what is solved so far. Raises ``ValueError`` for values that mean nothing or make more than 1000
    points, and the errors of :func:`solve` where no point at all can be solved.
    """
    from weft.app.sweep.points import Axes
    from weft.app.sweep.run import options_of_points, sweep_source

    axes, limits = _parted(values, Axes.__slots__)
    return sweep_source(source, Axes(**axes), options_of_points(options, limits), on_progress, executor=executor,
                        processes=workers, cache=cache, refine=refine)


def latency(
    source: Source,
    *,
    throughput: Number | str | None = None,
    period: Number | str | None = None,
    points: int = 8,
    micro_batches: MicroBatches | None = None,
    options: SearchOptions | None = None,
    on_progress: Callable[[Serving], None] = lambda _: None,
    **search: Unpack[SearchKeywords],
) -> Serving:
    """How long one micro-batch takes, first start to last end, when another one starts every period.

    At a floor, ``throughput`` (micro-batches per time unit, or ``"12.5/s"``) or a longest ``period`` (in the time unit,
    or ``"80 ms"``), the least latency; without one the front of latency against throughput, from the best throughput
    to the least latency, about ``points`` of it. Each point has a proven lower bound over all placements, and a judged
    schedule of ``micro_batches`` (default: what a spec says). The other arguments are those of :func:`solve`; Ctrl-C
    returns what was found. One micro-batch a period is searched.

    Raises :class:`weft.solver.step.search.Infeasible` where no schedule fits or the floor cannot be met (it says what
    can), and
    ``ValueError`` (``SpecError``, ``FormatError``) for a source or a floor that means nothing.
    """
    from weft.app.latency.search import serve_source

    return serve_source(source, micro_batches, SearchOptions.given(options, search, differing=True), on_progress,
                        throughput=throughput, period=period, points=points)


class LimitKeywords(TypedDict, total=False):
    """The limits of a search, where what else may be asked of one means nothing."""

    time_limit: float
    effort: float | None
    seed: int
    workers: int


def share(
    *sources: Source,
    ratio: str | Sequence[int] | Mapping[str, int] | None = None,
    max_slowdown: float | Mapping[str, float] | None = None,
    rounds: int | None = None,
    parallel: str = "auto",
    options: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **limits: Unpack[LimitKeywords],
) -> Sharing:
    """Two or more jobs on the same GPUs in one period: one computes while another communicates.

    Each of ``sources`` is a job: a block problem, whose micro-batch is one step of it (an edge of distance 1 from its
    last collective to its first block has steps follow each other), or a model spec. A spec that trains runs data
    parallel, with the whole model on every GPU and gradients summed in parts behind the backward, or as the pipeline
    that is fastest alone: ``parallel`` is ``"data"``, ``"pipeline"``, or ``"auto"``, data parallel where that fits.
    Jobs are on the same GPUs, share their memory, and are called by their files.

    ``ratio`` says how many steps of each job a round has: ``"2:1"``, numbers in the order of the jobs, or a number by
    name; without one small ratios are tried, and the one with the largest speed-up is taken. ``max_slowdown``: how many
    times as long as alone, with its own overlap, a step may take at most, of all jobs or by name. ``rounds``: of the
    schedule, by default 8, or more where the steady state takes more to appear. ``options`` limit the search as in
    :func:`solve`.

    The result has the period with its bound, the speed-up over running in turn with and without overlap inside each
    job, each job's slowdown, and the ``schedule``; ``str()`` is the table, ``save(path)`` writes schedule or picture.
    Raises :class:`weft.solver.step.search.Infeasible` where jobs do not fit together or some gets too slow, and
    ``ValueError`` (``SharingError``, ``SpecError``, ``FormatError``) for jobs that cannot share GPUs.
    """
    from weft.app.share.search import Question, share_sources

    return share_sources(sources, Question(ratio, max_slowdown, rounds, parallel),
                         SearchOptions.given(options, cast(SearchKeywords, limits)), on_progress)


def explain(
    source: Source | Schedule,
    *,
    micro_batches: MicroBatches | None = None,
    what_if: bool = False,
    in_flight: int | None = None,
    options: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **search: Unpack[SearchKeywords],
) -> Explanation:
    """Why a schedule is as long as it is, or why a problem has none.

    ``source`` is a schedule or a schedule file, or a spec or problem, which is solved first (the arguments are those of
    :func:`solve`). The explanation holds the critical path of the makespan, the critical cycle of the period, and
    every device's idle time by what it waits for; where no schedule fits, what collides in which memory and what
    would work. ``what_if`` adds what more memory, faster transfers and shorter stages would give, each tried with
    ``effort`` and all within ``time_limit``. ``in_flight`` asks how many micro-batches at once the memory holds.
    ``str()`` is the text, ``.to_json()`` the numbers.

    Raises ``InvalidSchedule`` for a schedule that breaks a rule (micro-batches may run in any order, but not with
    ``what_if``), and the errors of :func:`solve` for a source that means nothing.
    """
    from weft.app.explain import explain_source

    given = SearchOptions.given(options, search, time_limit=30.0, differing=True)
    return explain_source(source, micro_batches, given, on_progress,
                          what_if_figures=what_if, in_flight_wanted=in_flight)


class PlaceKeywords(SearchKeywords, total=False):
    """What is asked of :func:`place` beside devices, and how it is searched."""

    recompute: bool
    latency: bool
    stage_graph: bool
    slack: float
    replicate: bool
    whole_layers: bool


def place(
    graph: PathLike | PlacementProblem | OperatorGraph | Spec,
    *,
    devices: Mapping[str, tuple[int, float | None]] | None = None,
    options: SearchOptions | None = None,
    on_step: Callable[[Step], None] = lambda _: None,
    **wishes: Unpack[PlaceKeywords],
) -> Placement:
    """An operator graph cut into stages on devices so that the largest load is least, with a proven bound.

    ``graph`` is a :class:`~weft.solver.placement.problem.PlacementProblem`, a model spec, an operator graph, or a file:
    a spec, ``weft.operators/1``, or the dnn-partitioning or Piper JSON format. ``devices`` overrides how many there are
    of a kind and, unless ``None``, the memory of each, by the kind's name; an operator graph knows none, so its are
    named by type (``{"a100-80gb": (4, None)}``).

    Further keywords, all false or 0 but for ``whole_layers``: layers of a spec or operator graph stay whole if
    ``whole_layers``. ``recompute`` takes, of a Piper graph's alternatives, those that keep least. ``latency`` then
    minimises, at that largest load, the time one micro-batch takes. With ``stage_graph`` independent stages run at once
    and hold as many micro-batches as they are deep (a
    :class:`~weft.solver.placement.dag.stage_dag.GraphPlacement`); then the depth is minimised, among largest loads up
    to ``slack`` above the least. With ``replicate`` (a spec's) its stages may each be on 1, 2, 4 ... devices that share
    every micro-batch. ``options``, their fields as keywords and Ctrl-C as in :func:`solve`.

    Raises :class:`weft.solver.placement.refusals.NoPlacement` (an ``Infeasible``) where nothing fits, and
    ``ValueError`` (``FormatError``, ``PlacementError``) for a graph that means nothing.
    """
    from weft.app.place.place import PlaceQuestion, place_source

    search, question = _parted(wishes, SearchKeywords.__annotations__)
    return place_source(graph, PlaceQuestion(devices, **question),
                        SearchOptions.given(options, cast(SearchKeywords, search)), on_step)


def place_memory(spec: PathLike | Spec, *, time_limit: float = 20.0) -> MemoryPlans:
    """A spec's model as a chain of stages cut at any operator, each kept, recomputed or (where the cluster names its
    ``host_bandwidth``) offloaded, so that the slowest stage is fastest under 1F1B, with a proven bound; not scheduled.

    There is a plan with offloading and one without, where these differ. ``time_limit``: seconds for the first of them.
    ``str()`` of the result is a table a plan, ``.to_json()`` the numbers. Raises
    :class:`weft.solver.step.search.Infeasible` where nothing fits, and ``ValueError`` (``SpecError``) for a spec that
    means nothing or whose memory cannot be decided.
    """
    from weft.app.place.memory_plans import memory_plans

    return memory_plans(spec, time_limit)


class StepKeywords(SearchKeywords, total=False):
    """What is asked of :func:`place_step` beside sizes and devices, and how it is searched."""

    overhead: float | None
    mini_batch: int | None
    one_size: bool
    replicate: bool
    whole_layers: bool


def place_step(
    graph: PathLike | PlacementProblem | OperatorGraph | Spec,
    *,
    micro_batch_sizes: Mapping[int, PathLike | None] | Sequence[int] = (),
    devices: Mapping[str, tuple[int, float | None]] | None = None,
    options: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **wishes: Unpack[StepKeywords],
) -> PlacedStep:
    """A graph of stages, the size of every stage's micro-batches and the order of one step, searched together.

    ``graph``, ``devices``, ``replicate`` and ``whole_layers`` are those of :func:`place`. ``micro_batch_sizes``:
    samples that a micro-batch of a stage may have, each dividing the next larger one and the mini-batch (default: what
    ``graph`` has). Costs of a model family are modelled at each size. Those of an operator graph, of a graph with times
    and of a spec with a profile file are of one size: the spec's ``micro_batch_size``, or the first that is given. Then
    every other size is given with a file of its own (``{2: None, 4: "graph4.json"}``), or ``overhead`` says what of
    every operator's time, in the graph's unit, is the same at every size: the rest grows with the samples.
    ``mini_batch``: samples of a step, where ``graph`` is no spec. ``one_size``: all stages have the same size, as the
    executor runs them.

    Several graphs are considered, all trade-offs of load and depth that their loads do not rule out, with every choice
    of sizes; the search of a step then orders what no bound rules out. The result's ``schedule`` is the best, its
    ``bound`` holds over these graphs, ``any_bound`` over all. The time limit is one for all, from reading to judging:
    past it there is only what one graph's first schedule takes to make. Raises what :func:`place` does.
    """
    from weft.app.place.place import PlaceQuestion
    from weft.app.place.step import Sizes, place_step_source

    search, rest = _parted(wishes, SearchKeywords.__annotations__)
    costs, question = _parted(rest, ("overhead", "mini_batch", "one_size"))
    files = ({size: file for size, file in micro_batch_sizes.items() if file is not None}
             if isinstance(micro_batch_sizes, Mapping) else {})
    return place_step_source(graph, Sizes(tuple(micro_batch_sizes), files, **costs),
                             PlaceQuestion(devices, stage_graph=True, **question),
                             SearchOptions.given(options, cast(SearchKeywords, search)), on_progress)


def demo(
    folder: PathLike = "weft-demo",
    *,
    options: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **search: Unpack[SearchKeywords],
) -> Demonstration:
    """Plan GPT-1.3B on four V100s with measured costs, compare, draw, and write everything into ``folder``.

    The search ends after a fixed ``effort`` (default: about two minutes'), so that rows and bounds do not depend on the
    machine's speed; where ``time_limit`` comes first, ``cut_short`` of the result says so. The other arguments are
    those of :func:`solve`. Raises ``OSError`` if ``folder`` is unwritable.
    """
    from weft.app.demo import DEMO_LIMIT, demonstrate

    return demonstrate(folder, SearchOptions.given(options, search, time_limit=DEMO_LIMIT), on_progress)


def _parted(keywords: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of ``keywords`` with these ``names``, and the others."""
    return ({name: value for name, value in keywords.items() if name in names},
            {name: value for name, value in keywords.items() if name not in names})
