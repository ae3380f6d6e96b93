"""``weft place``: an operator graph on devices."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from weft import api
from weft.cli.lib.arguments import add_search, count, search_options, share
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import JSON, kept, require_output, save, show, told

if TYPE_CHECKING:
    from weft.solver.problem import Problem

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("graph", metavar="GRAPH",
                         help="an operator graph (weft.operators/1, dnn-partitioning or Piper JSON) or a model spec "
                         "(.yaml)")
    command.add_argument("--devices", type=_devices, metavar="KIND=N[:MEMORY],...",
                         help="number of devices of each kind, and their memory (default: as in GRAPH)")
    command.add_argument("--recompute", action="store_true",
                         help="Piper graphs: of an operator's alternatives take the one that keeps least")
    command.add_argument("--latency", action="store_true",
                         help="then minimise the time one micro-batch takes through the stages")
    command.add_argument("--stage-graph", action="store_true",
                         help="stages form a graph: memory by depth, and the least depth at the least load")
    command.add_argument("--slack", type=share, default=0.0, metavar="FRACTION",
                         help="with --stage-graph: how far the load may rise above the least, for a shallower graph "
                         "(default: 0)")
    command.add_argument("--replicate", action="store_true",
                         help="with --stage-graph, of a spec: a stage may be on several devices")
    command.add_argument("--micro-batch-sizes", type=_sizes, metavar="N[=FILE],...",
                         help="with --stage-graph: samples that a micro-batch of a stage may have, each stage its own; "
                         "graph, sizes and order of a step are searched together. FILE: a graph, or a spec's costs, at "
                         "that size")
    command.add_argument("--one-size", action="store_true",
                         help="with --micro-batch-sizes: all stages have the same size, as `weft replay` runs them")
    command.add_argument("--overhead", type=share, metavar="TIME",
                         help="with --micro-batch-sizes, where costs are of one size: what of every operator's time is "
                         "the same at every size, in GRAPH's unit (s for specs and operator graphs)")
    command.add_argument("--mini-batch", type=count, metavar="N",
                         help="with --micro-batch-sizes or --schedule: samples of a step (a spec says it itself)")
    command.add_argument("--schedule", metavar="FILE",
                         help="with --stage-graph: search several graphs of stages with their orders, and write the "
                         "best schedule of a step there (.json)")
    command.add_argument("--problem", metavar="FILE",
                         help="with --stage-graph or --memory: write the stages there as a block problem (.json)")
    command.add_argument("--operators", action="store_true",
                         help="specs and operator graphs: cut between any two operators, not between layers only")
    command.add_argument("--memory", action="store_true",
                         help="of a spec: a chain cut at any operator, each kept, recomputed or offloaded")
    command.add_argument("-o", "--output", metavar="FILE",
                         help="write the answer there (.json): format, objective, bound, status, stages")
    add_search(command, time_limit=60.0)


def _run(options: argparse.Namespace) -> int:
    from weft.app.place.place import blocks_of, placement_text
    from weft.cli.lib.progress import StepLines, Waiting
    from weft.solver.placement.dag.stage_dag import GraphPlacement
    from weft.solver.placement.problem import PlacementError

    if options.memory:
        return _run_memory(options)
    if options.micro_batch_sizes or options.schedule:
        return _run_step(options)
    if options.overhead is not None or options.mini_batch is not None or options.one_size:
        raise PlacementError("--overhead, --mini-batch and --one-size are for the search of a step; add "
                             "--micro-batch-sizes or --schedule")
    if options.problem and not options.stage_graph:
        raise PlacementError("--problem writes the blocks of a graph of stages or of a memory plan; add "
                             "--stage-graph or --memory")
    _require_outputs(options)
    with Waiting(quiet=options.quiet) as waiting:
        found = api.place(options.graph, devices=options.devices, recompute=options.recompute,
                          latency=options.latency, stage_graph=options.stage_graph, slack=options.slack,
                          replicate=options.replicate, whole_layers=not options.operators,
                          options=search_options(options), on_step=told(
                              waiting.before(StepLines(quiet=options.quiet)),
                              lambda step: step.objective < float("inf")))
    answer, blocks = found.to_json(), None
    if options.problem:
        assert isinstance(found, GraphPlacement)
        blocks = blocks_of(found, 0.0 if options.graph.endswith(".json") else _likeness(options.graph))
    _write(options, answer, blocks)
    print(json.dumps(answer) if options.json else placement_text(found))
    _tell_written(options)
    return GOOD


def _likeness(path: str) -> float:
    """How far a model may be from the spec at ``path``: not at all from a graph that was captured."""
    from weft.models.candidates.build import LIKENESS
    from weft.models.spec.model_sections import GraphModel
    from weft.models.spec.spec import load_spec

    return 0.0 if isinstance(load_spec(path).model, GraphModel) else LIKENESS


def _run_step(options: argparse.Namespace) -> int:
    from weft.app.place.step import step_schedule, step_text
    from weft.cli.lib.progress import ProgressLine
    from weft.solver.placement.problem import PlacementError

    if not options.stage_graph:
        raise PlacementError("--micro-batch-sizes and --schedule are for a graph of stages; add --stage-graph")
    for name, why in (("latency", "the step is made short"), ("slack", "all trade-offs of load and depth are tried"),
                      ("recompute", "costs are of one alternative")):
        if getattr(options, name):
            raise PlacementError(f"--{name} is for a placement without an order, here {why}; leave it out")
    _require_outputs(options)
    require_output(options.schedule, "a schedule", JSON, [options.graph, options.output, options.problem])
    with ProgressLine(quiet=options.quiet) as progress:
        found = api.place_step(options.graph, micro_batch_sizes=options.micro_batch_sizes or {},
                               overhead=options.overhead, mini_batch=options.mini_batch, one_size=options.one_size,
                               devices=options.devices, replicate=options.replicate, whole_layers=not options.operators,
                               options=search_options(options), on_progress=told(progress))
    schedule = step_schedule(found, 0.0 if options.graph.endswith(".json") else _likeness(options.graph))
    answer = found.to_json()
    _write(options, answer, schedule.problem)
    if options.schedule:
        save(schedule, options.schedule)
    print(json.dumps(answer) if options.json else step_text(found))
    _tell_written(options)
    return GOOD


def _run_memory(options: argparse.Namespace) -> int:
    from weft.app.place.memory_plans import with_static
    from weft.solver.placement.problem import PlacementError

    for name in ("devices", "recompute", "latency", "stage_graph", "slack", "replicate", "operators",
                 "micro_batch_sizes", "schedule", "mini_batch", "overhead", "one_size"):
        if getattr(options, name):
            raise PlacementError(f"--memory decides a chain of a spec's operators on its own cluster; leave out "
                                 f"--{name.replace('_', '-')}")
    if options.effort is not None or options.seed or options.workers > 1:
        raise PlacementError("--memory plans with one worker and without chance, until --time-limit; leave out "
                             "--effort, --seed and --workers")
    if not options.graph.endswith((".yaml", ".yml")):
        raise PlacementError(f"{options.graph}: --memory is for model specs (.yaml)")
    _require_outputs(options)
    found = api.place_memory(options.graph, time_limit=options.time_limit)
    _write(options, found.to_json(), with_static(found.candidates[0]))
    show(found, options.json, width=180)
    _tell_written(options)
    return GOOD


def _write(options: argparse.Namespace, answer: dict[str, Any], blocks: Problem | None) -> None:
    from weft.solver.io.problem_files import save_problem
    from weft.solver.io.writing import write_atomically

    if options.output:
        kept(lambda name: write_atomically(name, json.dumps(answer) + "\n"), options.output, "the placement")
    if options.problem and blocks is not None:
        kept(lambda name: save_problem(blocks, name), options.problem, "the problem")


def _require_outputs(options: argparse.Namespace) -> None:
    require_output(options.output, "a placement", JSON, [options.graph])
    require_output(options.problem, "a problem", JSON, [options.graph, options.output])


def _tell_written(options: argparse.Namespace) -> None:
    for path in (options.output, options.problem, options.schedule):
        if path and not options.json:
            print(f"written to {path}")


def _devices(text: str) -> dict[str, tuple[int, float | None]]:
    from weft.app.place.place import parse_devices

    try:
        return parse_devices(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _sizes(text: str) -> dict[int, str | None]:
    from weft.app.place.step import parse_sizes

    try:
        return parse_sizes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


COMMAND = Command(
    name="place",
    summary="cut an operator graph into stages on devices",
    paragraphs=(
        "GRAPH is a JSON file in the format of msr-fiddle/dnn-partitioning or of Piper: operators with their times on "
        "each kind of device and their memory, what they send each other, and how many devices there are. Or it is a "
        "model spec with its cluster (.yaml), or an operator graph (weft.operators/1, as `weft capture` writes it) "
        "with the types of devices to model in --devices, such as a100-80gb=4.",
        "With --stage-graph independent stages run at once, and a stage holds as many micro-batches as it is deep; "
        "of the placements with the least largest load the shallowest is found. With --replicate, for a spec of a "
        "model family, a stage may be on 2, 4, 8 ... devices, which share every micro-batch and add up their gradients "
        "once a step. --problem writes the stages as a block problem, which `weft solve` schedules.",
        "With --stage-graph and --schedule the order is searched with the placement: several graphs, all trade-offs of "
        "load and depth that their loads do not rule out, best bound first. With --micro-batch-sizes each stage may "
        "run micro-batches of its own size. Of a model family costs at all sizes are modelled; an operator graph and a "
        "spec's graph or profile file have those of one size (the spec's micro_batch_size, or the first in the list), "
        "and the others need a file each, or --overhead. The answer says over which graphs it is proven.",
        "With --memory the model of a spec is cut into a chain at any operator, and each operator is kept, recomputed "
        "or, where the cluster names its host_bandwidth, offloaded, so that the slowest stage is fastest under 1F1B. "
        "Printed are cuts, what is decided, time and memory by class, and the bound. `placement: {memory: decide}` in "
        "a spec lets `weft solve` schedule such chains beside the others.",
        "The largest load of a stage, with its transfers, is made as small as possible under each device's memory; "
        "then, with --latency, the time one micro-batch takes. The answer carries a bound that holds for the graph as "
        "given. Graphs of many thousands of operators are coarsened first, which the answer says. Where nothing fits, "
        "an operator and the memory that is missing are named; where nothing was found and nothing is proven, the "
        "answer says so (exit status 1 both).",
    ),
    example="weft place bert.json --devices accelerator=4:16GiB,cpu=0 -o stages.json\n"
            "weft place towers.yaml --stage-graph --micro-batch-sizes 1,2,4 --schedule step.json",
    arguments=_arguments,
    run=_run,
)
