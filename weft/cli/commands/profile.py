"""time operators or stages on this machine

MODEL is what torch.export.save wrote: each distinct operator of it is run alone on random tensors, never the model. One
that would not fit is skipped and its time filled in; the result says of each figure whether it was measured,
interpolated or modelled.

--stages names a function without arguments that gives a weft.runtime.Training with all stages of a chain, or of a graph
(weft.profile_stages in Python): each is run alone as `weft replay` runs it, for the time and memory of its forward, its
backward, and the two halves of the backward. --problem writes what to solve (these durations, this memory, one stage a
device). Ranks that share a host's CPUs slow each other down: with --ranks N, N processes measure at once, as in a run.

--graph-network names a ready layer (gcn, sage-mean, sage-pool, gat, gated-gcn: two of it) or a spec of a graph network.
GRAPH is a file .npz, .mtx or with an edge a line (default: the spec's). Each stage of each layer is counted and run
alone.

example:
  weft profile model.pt2 -o times.json
  weft profile --stages mine.py:stages --problem problem.json --backward split --memory 16GiB
  weft profile --graph-network gcn cora.npz -o stages.svg
  weft solve problem.json -n 8
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

from weft.app.lib.arguments import Option, count, natural, workers
from weft.app.lib.arguments import memory as memory_size
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, Quiet, command, into
from weft.cli.lib.output import JSON, keep_and_show, kept, require_output, require_torch, written

if TYPE_CHECKING:
    from weft.app.profile.graph_network import GraphNetworkStages
    from weft.models.graph_network.graph import Graph
    from weft.models.times.measured_times import MeasuredTimes
    from weft.runtime.interface.training import Training
    from weft.runtime.measure.stage_costs import MeasuredStages

Repeats: TypeAlias = Annotated[int, Option("runs that a median is of", "N", count)]
Device: TypeAlias = Annotated[str | None, Option("where (default: a GPU if there is one)", "cpu|cuda")]


def profile(model: Annotated[PathLike, Option("a file of torch.export.save; with --graph-network a graph",
                                                "MODEL.pt2|GRAPH")], *, repeats: Repeats = 7,
            device: Device = None,
            on_progress: Callable[[int, int, str], None] = lambda done, total, kind: None) -> MeasuredTimes:
    """Each distinct operator of a ``.pt2`` file timed alone on this device, forward and backward, with its memory.

    The model as a whole never runs; what would not fit is skipped and filled in, and the result says so. Raises
    :class:`weft.models.capture.exported.ExportFault`.
    """
    from weft.app.profile.operators import profile_operators

    return profile_operators(model, repeats=repeats, device=device, on_progress=on_progress)


def profile_stages(
    stages: Annotated[str | Training, Option("stages to measure instead (or MODULE:FUNCTION)", "FILE.py:FUNCTION",
                                             flags="--stages")],
    *,
    repeats: Repeats = 7,
    device: Device = None,
    ranks: Annotated[int, Option("with --stages: processes that measure at once, as many as will run here", "N",
                                 workers)] = 1,
) -> MeasuredStages:
    """Time and memory of F, B, I and W of every stage of a training, each stage run alone by the executor's own runner.

    ``stages`` is a :class:`weft.runtime.Training` with all stages, or ``FILE.py:FUNCTION`` that
      gives one. With ``ranks``, as many processes measure at once: on CPUs of one host ranks slow each other down,
      which is then in the figures. :func:`weft.runtime.measure.stage_costs.measured_problem` makes a problem of the
      result. Raises
    ``ValueError``.
    """
    from weft.app.profile.stages import profile_stages as measure

    return measure(stages, repeats=repeats, device=device, ranks=ranks)


def profile_graph_network(
    graph_network: Annotated[PathLike, Option("stages of a ready layer, or of a spec, on the graph", "MODEL",
                                              flags="--graph-network")],
    graph: PathLike | Graph | None = None, *, repeats: Repeats = 7, device: Device = None,
) -> GraphNetworkStages:
    """FLOPs, bytes and time of every stage of a graph neural network's layers, and what bounds it.

    ``graph_network`` is a ready layer's name, of which two are taken, or a spec; ``graph`` a file or a
      :class:`weft.models.graph_network.graph.Graph` (default: the spec's). Where Scatter, ApplyEdge and Gather can be
      one sparse product, that is the stage ``fused``. What comes back is the table, ``to_json()`` the numbers,
      ``save()`` writes them or their picture. Raises ``ValueError``.
    """
    from weft.app.profile.graph_network import profile_graph_network as measure

    return measure(graph_network, graph, repeats=repeats, device=device)


@command(profile, profile_stages, profile_graph_network)
def run(
    call: Call,
    *,
    output: Annotated[str | None, into(
        "write the figures there; of a graph network's also as .html, .svg, .png")] = None,
    problem: Annotated[str | None, Option("with --stages: write the block problem there", "FILE")] = None,
    backward: Annotated[str, Option("with --problem: the backward whole or in its two halves",
                                    choices=("full", "split"))] = "full",
    memory: Annotated[int | None, Option("with --problem: memory of each device, as 16GiB (default: no limit)", "SIZE",
                                         memory_size)] = None,
    optimizer_copies: Annotated[int, Option(
        "with --problem: values that the optimizer keeps for each weight (default: 2, as Adam)", "N", natural)] = 2,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    require_torch("profile")
    if call.graph_network is not None:
        return _run_graph_network(call)
    if (call.model is None) == (call.stages is None):
        raise ValueError("profile: say what to time: MODEL.pt2, --stages FILE.py:FUNCTION, or "
                         "--graph-network MODEL GRAPH")
    file_of_stages = None if call.stages is None else call.stages.rpartition(":")[0]
    for path in (output, problem):
        require_output(path, "what was measured", JSON, [call.model, file_of_stages])
    if call.stages is not None:
        _run_stages(call)
    elif problem is not None:
        raise ValueError("profile: --problem needs --stages; operators are not yet cut into stages")
    else:
        _run_operators(call)
    written(output, problem, silent=as_json)
    return GOOD


def _run_graph_network(call: Call) -> int:
    from weft.figures.style import FORMATS

    if call.stages is not None or call.problem is not None:
        raise ValueError("profile: --graph-network goes with neither --stages nor --problem")
    require_output(call.output, "what was measured", (*JSON, *FORMATS), [call.model])
    keep_and_show(call(profile_graph_network, graph=call.model), "the figures", call.output and [call.output],
                  call.as_json)
    return GOOD


def _run_operators(call: Call) -> None:
    from weft.cli.lib.progress import OperatorLine
    from weft.models.times.measured_times import save_times, times_to_json

    with OperatorLine(quiet=call.quiet) as progress:
        times = call(profile, on_progress=progress)
    if call.output:
        kept(lambda name: save_times(times, name), call.output, "the figures")
    print(json.dumps(times_to_json(times)) if call.as_json else "\n".join(times.summary()))


def _run_stages(call: Call) -> None:
    from weft.app.profile.stages import stage_lines
    from weft.runtime.measure.stage_costs import measured_problem, save_stage_costs, stage_costs_to_json
    from weft.solver.io.problem_files import save_problem

    measured = call(profile_stages)
    if call.output:
        kept(lambda name: save_stage_costs(measured, name), call.output, "the figures")
    print(json.dumps(stage_costs_to_json(measured)) if call.as_json else "\n".join(stage_lines(measured)))
    if call.problem:
        save_problem(measured_problem(measured.stages, backward=call.backward, memory=call.memory,
                                      optimizer_copies=call.optimizer_copies, name=call.stages, ties=measured.ties),
                     call.problem)
