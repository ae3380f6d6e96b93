"""cut an operator graph into stages on devices

GRAPH is a JSON file in the format of msr-fiddle/dnn-partitioning or of Piper: operators with their times on each kind
of device and their memory, what they send each other, and how many devices there are. Or it is a model spec with its
cluster (.yaml), or an operator graph (weft.operators/1, as `weft capture` writes it) with the types of devices to model
in --devices, such as a100-80gb=4.

With --stage-graph independent stages run at once, and a stage holds as many micro-batches as it is deep; of the
placements with the least largest load the shallowest is found. With --replicate, for a spec of a model family, a stage
may be on 2, 4, 8 ... devices, which share every micro-batch and add up their gradients once a step. --problem writes
the stages as a block problem, which `weft solve` schedules.

With --stage-graph and --schedule the order is searched with the placement: several graphs, all trade-offs of load and
depth that their loads do not rule out, best bound first. With --micro-batch-sizes each stage may run micro-batches of
its own size. Of a model family costs at all sizes are modelled; an operator graph and a spec's graph or profile file
have those of one size (the spec's micro_batch_size, or the first in the list), and the others need a file each, or
--overhead. The answer says over which graphs it is proven.

With --memory the model of a spec is cut into a chain at any operator, and each operator is kept, recomputed or, where
the cluster names its host_bandwidth, offloaded, so that the slowest stage is fastest under 1F1B. Printed are cuts, what
is decided, time and memory by class, and the bound. `placement: {memory: decide}` in a spec lets `weft solve` schedule
such chains beside the others.

With --backends GRAPH is a file of torch.export.save (.pt2), which is run, so it must be one that you trust: parts of it
are measured with each backend (torch's own operators, torch.compile, kernels of attention, OpenVINO where it is
installed), each in a process of its own, and a cover of the graph by such parts is searched, with a bound. The fastest
of those that are then run whole is written, for weft.build; it is never slower than a backend alone, as measured.

The largest load of a stage, with its transfers, is made as small as possible under each device's memory; then, with
--latency, the time one micro-batch takes. The answer carries a bound that holds for the graph as given. Graphs of many
thousands of operators are coarsened first, which the answer says. Where nothing fits, an operator and the memory that
is missing are named; where nothing was found and nothing is proven, the answer says so (exit status 1 both).

example:
  weft place bert.json --devices accelerator=4:16GiB,cpu=0 -o stages.json
  weft place model.pt2 --backends all -o assignment.json
  weft place towers.yaml --stage-graph --micro-batch-sizes 1,2,4 --schedule step.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Unpack

from weft.app.lib.arguments import Option, count, share
from weft.app.lib.options import OptionsTaken, SearchKeywords, SearchOptions, parted
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command, into
from weft.cli.lib.output import JSON, kept, require_output, require_torch, save, search, show, told, written

if TYPE_CHECKING:
    from weft.app.place.backends import BackendChoice
    from weft.app.place.memory_plans import MemoryPlans
    from weft.models.graph.operators import OperatorGraph
    from weft.models.spec.spec import Spec
    from weft.solver.placement.bracket import Standing
    from weft.solver.placement.joint.answer import PlacedStep
    from weft.solver.placement.placement import Placement
    from weft.solver.placement.problem import PlacementProblem
    from weft.solver.problem import Problem
    from weft.solver.step.search import Progress

_SEARCH = OptionsTaken()


def _devices(text: str) -> dict[str, tuple[int, float | None]]:
    from weft.app.place.place import parse_devices

    return parse_devices(text)


def _sizes(text: str) -> dict[int, str | None]:
    from weft.app.place.step import parse_sizes

    return parse_sizes(text)


_GRAPH = Option("an operator graph (weft.operators/1, dnn-partitioning or Piper JSON) or a model spec (.yaml)", "GRAPH")
Placed: TypeAlias = Annotated["PathLike | PlacementProblem | OperatorGraph | Spec", _GRAPH]
Devices: TypeAlias = Annotated[Mapping[str, tuple[int, float | None]] | None, Option(
    "number of devices of each kind, and their memory (default: as in GRAPH)", "KIND=N[:MEMORY],...", _devices)]


class StagesKeywords(SearchKeywords, total=False):
    """What :func:`place` and :func:`place_step` are asked, and how they search."""

    replicate: Annotated[bool, Option("with --stage-graph, of a spec: a stage may be on several devices")]
    whole_layers: Annotated[bool, Option(
        "specs and operator graphs: cut between any two operators, not between layers only", flags="--operators",
        default=True)]


class PlaceKeywords(StagesKeywords, total=False):
    """What is asked of :func:`place` beside devices, and how it is searched."""

    recompute: Annotated[bool, Option("Piper graphs: of an operator's alternatives take the one that keeps least")]
    latency: Annotated[bool, Option("then minimise the time one micro-batch takes through the stages")]
    stage_graph: Annotated[bool, Option(
        "stages form a graph: memory by depth, and the least depth at the least load")]
    slack: Annotated[float, Option(
        "with --stage-graph: how far the load may rise above the least, for a shallower graph (default: 0)", "FRACTION",
        share, default=0.0)]


class StepKeywords(StagesKeywords, total=False):
    """What is asked of :func:`place_step` beside sizes and devices, and how it is searched."""

    overhead: Annotated[float | None, Option(
        "with --micro-batch-sizes, where costs are of one size: what of every operator's time is the same at every "
        "size, in GRAPH's unit (s for specs and operator graphs)", "TIME", share)]
    mini_batch: Annotated[int | None, Option(
        "with --micro-batch-sizes or --schedule: samples of a step (a spec says it itself)", "N", count)]
    one_size: Annotated[bool, Option(
        "with --micro-batch-sizes: all stages have the same size, as `weft replay` runs them")]


def place(
    graph: Placed,
    *,
    devices: Devices = None,
    options: Annotated[SearchOptions | None, _SEARCH] = None,
    on_step: Callable[[Standing], None] = lambda _: None,
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

    keywords, question = parted(wishes, SearchKeywords.__annotations__)
    return place_source(graph, PlaceQuestion(devices, **question), _SEARCH.given(options, keywords), on_step)


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


def place_backends(
    graph: Annotated[PathLike, _GRAPH],
    *,
    backends: str | Sequence[str] = "all",
    time_limit: float = 20.0,
    measure_limit: Annotated[float, Option("with --backends: measure parts for this time", "SECONDS", share)] = 600.0,
    trial_limit: float = 120.0,
    trains: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> BackendChoice:
    """Which backend computes which part of a captured model, for :func:`weft.build` to run.

    ``graph``: a ``.pt2`` file, which is run, so it must be one that you trust. ``backends``: names of those registered
    with :func:`weft.backend` or shipped, or ``"all"``; what cannot be used here is named and skipped. ``time_limit``:
    seconds of the search; ``measure_limit``: for measuring parts, after which what is not measured yet is left out;
    ``trial_limit``: for one part, building included. ``trains``: forward and backward are measured, of backends that
    have one. ``on_progress`` is told what is being done. Figures are kept in the user's cache folder.

    ``str()`` of the result is a table, ``.assignment`` what was chosen. Raises
    :class:`weft.runtime.backends.registry.BackendError`.
    """
    from weft.app.place.backends import choose_backends

    return choose_backends(graph, backends, time_limit=time_limit, measure_limit=measure_limit,
                           trial_limit=trial_limit, trains=trains, on_progress=on_progress)


def place_step(
    graph: Placed,
    *,
    micro_batch_sizes: Annotated[Mapping[int, PathLike | None] | Sequence[int], Option(
        "with --stage-graph: samples that a micro-batch of a stage may have, each stage its own; graph, sizes and "
        "order of a step are searched together. FILE: a graph, or a spec's costs, at that size", "N[=FILE],...",
        _sizes)] = (),
    devices: Devices = None,
    options: Annotated[SearchOptions | None, _SEARCH] = None,
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
    from weft.app.place.step import SizesAsked, place_step_source

    keywords, rest = parted(wishes, SearchKeywords.__annotations__)
    costs, question = parted(rest, ("overhead", "mini_batch", "one_size"))
    files = ({size: file for size, file in micro_batch_sizes.items() if file is not None}
             if isinstance(micro_batch_sizes, Mapping) else {})
    return place_step_source(graph, SizesAsked(tuple(micro_batch_sizes), files, **costs),
                             PlaceQuestion(devices, stage_graph=True, **question), _SEARCH.given(options, keywords),
                             on_progress)


@command(place, place_step, place_backends)
def run(
    call: Call,
    *,
    schedule: Annotated[str | None, Option(
        "with --stage-graph: search several graphs of stages with their orders, and write the best schedule of a step "
        "there (.json)", "FILE")] = None,
    problem: Annotated[str | None, Option(
        "with --stage-graph or --memory: write the stages there as a block problem (.json)", "FILE")] = None,
    memory: Annotated[bool, Option(
        "of a spec: a chain cut at any operator, each kept, recomputed or offloaded")] = False,
    backends: Annotated[str | None, Option(
        "of a .pt2 file: measure these backends on its parts and choose one for each part (all, or names)",
        "NAME,...")] = None,
    output: Annotated[str | None, into(
        "write the answer there (.json): format, objective, bound, status, stages")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    if backends is not None:
        _place_backends(call, output, backends)
        return GOOD
    from weft.app.place.question import require_question

    require_question(call.values)
    require_output(output, "a placement", JSON, [call.graph])
    require_output(problem, "a problem", JSON, [call.graph, output])
    if memory:
        _place_memory(call)
    elif call.micro_batch_sizes or schedule:
        require_output(schedule, "a schedule", JSON, [call.graph, output, problem])
        _place_step(call)
    else:
        _place(call)
    written(output, problem, schedule, silent=as_json)
    return GOOD


def _place(call: Call) -> None:
    from weft.app.place.place import blocks_of, placement_text
    from weft.cli.lib.progress import lines, step_lines

    with lines(step_lines(), quiet=call.quiet) as listener:
        found = call(place, on_step=told(listener, lambda step: step.objective < float("inf")))
    answer = found.to_json()
    _write(call, answer, blocks_of(found, _likeness(call.graph)) if call.problem else None)
    print(json.dumps(answer) if call.as_json else placement_text(found))


def _place_step(call: Call) -> None:
    from weft.app.place.step import step_schedule, step_text

    found = search(call, call.quiet, place_step)
    schedule, answer = step_schedule(found, _likeness(call.graph)), found.to_json()
    _write(call, answer, schedule.problem)
    if call.schedule:
        save(schedule, call.schedule)
    print(json.dumps(answer) if call.as_json else step_text(found))


def _place_backends(call: Call, output: str | None, backends: str) -> None:
    from weft.solver.placement.problem import PlacementError

    if not call.graph.endswith(".pt2"):
        raise PlacementError(f"{call.graph}: --backends is for models that torch.export.save wrote (.pt2)")
    require_torch("place --backends")
    require_output(output, "an assignment", JSON, [call.graph])
    from weft.runtime.backends.assignment import save_assignment

    def tell(text: str) -> None:
        if not call.quiet:
            print(text, file=sys.stderr, flush=True)

    found = call(place_backends, backends=backends, time_limit=call.time_limit, on_progress=tell)
    if output:
        kept(lambda name: save_assignment(found.assignment, name), output, "the assignment")
    print(json.dumps(found.to_json()) if call.as_json else found)
    written(output, silent=call.as_json)


def _place_memory(call: Call) -> None:
    from weft.app.place.memory_plans import with_static

    found = place_memory(call.graph, time_limit=call.time_limit)
    _write(call, found.to_json(), with_static(found.candidates[0]))
    show(found, call.as_json)


def _likeness(path: str) -> float:
    """How far a model may be from the graph or spec at ``path``: not at all from a graph that was captured."""
    from weft.models.candidates.build import LIKENESS
    from weft.models.spec.model_sections import GraphModel
    from weft.models.spec.spec import load_spec

    return 0.0 if path.endswith(".json") or isinstance(load_spec(path).model, GraphModel) else LIKENESS


def _write(call: Call, answer: dict[str, Any], blocks: Problem | None) -> None:
    from weft.solver.io.problem_files import save_problem
    from weft.solver.io.writing import write_atomically

    if call.output:
        kept(lambda name: write_atomically(name, json.dumps(answer) + "\n"), call.output, "the placement")
    if call.problem and blocks is not None:
        kept(lambda name: save_problem(blocks, name), call.problem, "the problem")
