"""What the command line accepts, and what ``--help`` says about it."""

from __future__ import annotations

import argparse
import textwrap
from typing import NoReturn

import weft
from weft.exporting import EXPORTS

__all__ = ["parser"]

_EXIT_STATUS = """\
exit status:
  0    good
  1    the answer is no: the schedule is invalid, or no schedule fits the memory
  2    bad usage, or a file that cannot be read or written
  130  interrupted before there was any answer (sweep: before there was all of it)
"""

_SPEC = (
    "SPEC is a model spec in YAML (`weft schema` prints what may stand in it) or a block problem (a .json file "
    "in the format weft.problem/1)."
)

#: Command -> (summary, paragraphs, example).
_TEXTS = {
    "solve": (
        "find the best schedule for a model or a block problem",
        (_SPEC,
         "For a model every placement is searched: one stage a GPU, two chunks a GPU in a V or a loop, with "
         "the backward whole or split into input- and weight-gradient. Known schedules come first, so that "
         "there is an answer within a second; then the steady state (the repetend), warm-up and cool-down "
         "around it, and while time is left the schedule as a whole. Every answer has passed an independent "
         "check and carries a lower bound. Ctrl-C ends the search and keeps the best answer so far.",),
        "weft solve gpt.yaml -o schedule.json --time-limit 30\nweft solve problem.json --micro-batches 16 --json"),
    "compare": (
        "put weft's schedule beside the known ones",
        (_SPEC,
         "GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-V, a greedy one, and weft's: time per step, bubble, peak "
         "memory per GPU, and whether it fits. All use the same durations and the same accounting of memory; "
         "each known schedule gets the placement on which it fits and is fastest.",
         "Bubble is said three ways: steady (idle share of one period), step (of the whole makespan), span "
         "(between each device's first start and last end).",),
        "weft compare gpt.yaml --time-limit 30"),
    "sweep": (
        "show what memory buys in throughput: solve many variants, draw the Pareto front",
        (_SPEC,
         "Solves every combination of the values given and prints time, throughput and peak memory of each, beside "
         "the best known schedule at the same memory. What is not given stays as SPEC says. A point that fits no "
         "GPU, or that there are no costs for (shipped GPT profiles have micro-batches of 1, 2, 4 and 8), is left "
         "out and named. Where a known schedule needs less memory than the points asked for, points are added. "
         "The ending of the output chooses: .html, .svg, .png draw tokens per second against GiB; "
         ".json holds the numbers.",
         "Points are solved side by side, one process a core, or on a Dask cluster. Each solved point is kept on "
         "disk: after Ctrl-C, or with more values, the same command solves only what is missing.",),
        "weft sweep gpt.yaml --memory 16GiB,20GiB,24GiB --micro-batches 8,16 --recompute both -o front.html\n"
        "weft sweep problem.json --memory 1x,1.5x,2x --micro-batches 16 --json"),
    "latency": (
        "show how long one micro-batch takes at a throughput, or at every one",
        (_SPEC,
         "Latency is the time from a micro-batch's first start to its last end while another one starts every period. "
         "With --throughput (micro-batches per time) or --period (the longest allowed) the least latency at that floor "
         "is searched; without, the whole trade-off from the best throughput to the least latency. Every point "
         "carries a lower bound that holds over all placements and every schedule of one micro-batch a period. A floor "
         "that cannot be met is refused with the best throughput (exit status 1). Ctrl-C keeps what was found.",
         "-o writes, at a floor, the schedule (.json) or its picture (.html, .svg, .png); of the trade-off its numbers "
         "or its picture. The schedule's blocks wait for their time in the period: run by order alone, micro-batches "
         "that come too early would queue.",),
        "weft latency inference.yaml -o front.html\n"
        "weft latency inference.yaml --throughput 12.5/s -o schedule.json\n"
        "weft latency problem.json --period 80 --json"),
    "estimate": (
        "say what each stage of a model holds and costs, before any search",
        ("SPEC is a model spec in YAML: a family of the zoo, a Hugging Face config.json, or layers with their costs.",
         "Stages are cut as for 1F1B. Told of each are parameters, activations a micro-batch, how many are in flight, "
         "workspace, what it sends, and its times; of each GPU weights, gradients, optimizer state, activations and "
         "workspace against its memory. Every number says where it comes from: measured, interpolated, modelled or "
         "given; modelled ones with the error they had where there was something to compare with. Exit status 1: "
         "it does not fit.",),
        "weft estimate t5.yaml\nweft estimate gpt.yaml --shape v --json"),
    "check": (
        "judge a schedule from first principles",
        ("Every block once per micro-batch, devices and links exclusive, dependencies with their transfers, "
         "memory at every event on every device, micro-batches in order, bounds and period consistent. Each "
         "breach is one sentence that names block, micro-batch, device, time and amount.",),
        "weft check schedule.json"),
    "explain": (
        "say what a schedule's length hangs on, or why there is none",
        ("SOURCE is a schedule file, or a model spec or block problem, which is solved first. Told are the critical "
         "path of the makespan, the critical cycle of the period, and each GPU's idle time by what it waits for: the "
         "pipeline to fill, other blocks' results, transfers, memory to be given back, nothing but the order, the "
         "rest to end.",
         "Where no schedule fits: which blocks collide in which GPU's memory, how much is missing, and what would "
         "work (exit status 1). --what-if tries one more GiB, transfers twice as fast and each stage 10 % shorter.",),
        "weft explain schedule.json --what-if\nweft explain problem.json -n 8 --in-flight 4"),
    "draw": (
        "draw a schedule",
        ("One lane a GPU, coloured by forward, backward, input- and weight-gradient; under it its memory over "
         "time with the cap; warm-up, repetend and cool-down marked. The ending of the output chooses: .html "
         "(self-contained, details on hover), .svg, .png, or .json for a trace that Perfetto (ui.perfetto.dev) "
         "opens. --critical marks the critical path (see `weft explain`); --history draws, instead, how the search "
         "for the schedule went.",),
        "weft draw schedule.json -o schedule.svg -o schedule.png --baseline 1f1b.json"),
    "place": (
        "cut an operator graph into stages on devices",
        ("GRAPH is a JSON file in the format of msr-fiddle/dnn-partitioning or of Piper: operators with their times on "
         "each kind of device and their memory, what they send each other, and how many devices there are. Or it is a "
         "model spec with its cluster (.yaml), or an operator graph (weft.operators/1, as `weft capture` writes it) "
         "with the types of devices to model in --devices, such as a100-80gb=4.",
         "With --stage-graph independent stages run at once, and a stage holds as many micro-batches as it is deep; "
         "of the placements with the least largest load the shallowest is found.",
         "The largest load of a stage, with its transfers, is made as small as possible under each device's memory; "
         "then, with --latency, the time one micro-batch takes. The answer carries a bound that holds for the graph as "
         "given. Graphs of many thousands of operators are coarsened first, which the answer says. Where nothing fits, "
         "an operator and the memory that is missing are named (exit status 1).",),
        "weft place bert.json --devices accelerator=4:16GiB,cpu=0 -o stages.json"),
    "plan": (
        "lower a schedule to one instruction list a rank",
        ("Sends and receives are added so that every two ranks see their messages in the same order; the "
         "result is proven free of deadlock and complete before it is written.",),
        "weft plan schedule.json -o plan.json"),
    "export": (
        "write a schedule for another tool",
        ("--format says which; without it the ending does: .csv pytorch, .toml torchtitan, .py nnscaler. pytorch "
         "is torch.distributed.pipelining's CSV of what each rank computes, pytorch-comms the one with sends, "
         "receives and reductions, whose words depend on --torch. megatron is the flags of "
         "--pipeline-model-parallel-layout, without the order; torchtitan is its [parallelism] table and the CSV "
         "beside it; nnscaler is a Python module that makes the SchedulePlan; tessel and perfetto are JSON. What a "
         "format cannot express is refused with the reason.",),
        "weft export schedule.json -o order.csv\n"
        "weft export schedule.json -o comms.csv --format pytorch-comms --torch 2.15"),
    "import": (
        "read somebody's schedule",
        ("FILE is a CSV of torch.distributed.pipelining, with or without communication, or a Tessel schedule "
         "(.json). It is checked as far as a run depends on it: complete, runnable, sends and receives in one "
         "order. Times are the earliest that its order allows, with the durations of --problem, or one unit for a "
         "forward and for each half of a backward. What breaks weft's rules is told (exit status 1) and written "
         "all the same.",),
        "weft import order.csv --problem gpt.yaml -o theirs.json && weft draw theirs.json"),
    "replay": (
        "run a plan on real processes, one a device",
        ("Starts on every rank under torchrun: gloo on CPUs, NCCL on GPUs. With --emulate every block sleeps "
         "for its planned duration; with --stages it runs modules of yours: a function that returns this "
         "rank's stages. A rank that dies or hangs stops all of them within --timeout seconds and says what it "
         "waited for.",
         "With --rank-alone one rank, or all in turn, run in this process on one device, without torchrun: real "
         "stages and real memory, with what neighbours would send made here. Told are each rank's times and peak "
         "memory against the plan, and the step that they would make together.",),
        "torchrun --nproc-per-node 4 -m weft replay plan.json --emulate\n"
        "weft replay plan.json --stages my.module:training --rank-alone all"),
    "fit": (
        "turn measured timelines into corrected costs",
        ("PLAN is the plan or schedule that ran, each TIMELINE what `weft replay --timeline` wrote of a run. Told are "
         "every block's planned duration and the median of the measured ones, with their spread, and the transfers "
         "that could be seen. The problem written with -o has the measured figures, for the next `weft solve`.",),
        "weft fit plan.json run1.json run2.json -o measured.json && weft solve measured.json -n 8 -o better.json"),
    "capture": (
        "read a model of your own: its operators, what they compute, read, keep and share",
        ("MODEL is what torch.export.save wrote. Nothing in it is unpickled and no code runs but torch's own, on "
         "tensors without data; so no weight is loaded either. Counted are floating-point operations and bytes of "
         "every operator's forward and of both parts of its backward, and which tensors autograd keeps: exactly "
         "those of a run on a CPU. What could not be followed is named, with what was assumed instead.",),
        "weft capture model.pt2 -o graph.json"),
    "profile": (
        "time operators or stages on this machine, and measure their memory",
        ("MODEL is what torch.export.save wrote: each distinct operator of it is run alone on random tensors, never "
         "the model. One that would not fit is skipped and its time filled in; the result says of each figure whether "
         "it was measured, interpolated or modelled.",
         "--stages names a function without arguments that gives a runtime.training.Training with all stages of a "
         "chain (weft.profile_stages in Python): each stage is run alone as `weft replay` runs it. Told are the time "
         "and the memory of its forward, its backward, and of the backward's two halves. --problem writes what to "
         "solve (these durations, this memory, one stage a device).",),
        "weft profile model.pt2 -o times.json\n"
        "weft profile --stages mine.py:stages --problem problem.json --backward split --memory 16GiB\n"
        "weft solve problem.json -n 8"),
    "demo": (
        "plan GPT-1.3B on four V100s with measured costs",
        ("Compares the known schedules with weft's at a memory cap where the difference matters, prints the "
         "table, and writes picture (HTML, SVG, PNG), Perfetto trace, schedule and plan into a folder.",),
        "weft demo"),
    "schema": (
        "print the JSON Schema of a model spec",
        ("Editors with a YAML language server complete and check specs with it.",),
        "weft schema > weft.schema.json"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The parser of ``weft``; its result has ``command`` and that command's options."""
    top = _Parser(prog="weft", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_EXIT_STATUS,
                  description="Search for schedules of distributed DNN training and inference, with proven bounds.")
    top.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    group = top.add_subparsers(metavar="COMMAND", dest="command", required=True)
    commands = {}
    for name, (summary, paragraphs, example) in _TEXTS.items():
        text = "\n\n".join(textwrap.fill(paragraph, 100) for paragraph in (f"weft {name} - {summary}", *paragraphs))
        commands[name] = group.add_parser(
            name, help=summary, description=text, formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"example:\n{textwrap.indent(example, '  ')}\n\n{_EXIT_STATUS}")

    for name in ("solve", "compare"):
        _add_spec(commands[name])
    commands["solve"].add_argument("-o", "--output", metavar="FILE",
                                   help="write the schedule there (format weft.schedule/1)")
    for name in ("solve", "compare"):
        _add_search(commands[name], time_limit=60.0)
    _add_sweep(commands["sweep"])
    _add_latency(commands["latency"])
    commands["estimate"].add_argument("spec", metavar="SPEC", help="a model spec (.yaml)")
    commands["estimate"].add_argument("--shape", choices=("chain", "v", "loop"),
                                      help="how stages lie on the GPUs (default: the first that SPEC allows)")
    commands["estimate"].add_argument("--json", action="store_true", help="print the numbers as JSON")
    _add_place(commands["place"])
    _add_schedule(commands["check"])
    commands["check"].add_argument("--json", action="store_true", help="print {valid, faults} as JSON")
    _add_explain(commands["explain"])
    _add_draw(commands["draw"])
    _add_schedule(commands["plan"])
    commands["plan"].add_argument("-o", "--output", metavar="FILE", help="where to (default: standard output)")
    commands["plan"].add_argument("--stages", metavar="MODULE:FUNCTION",
                                  help="the stages that `weft replay` will run: it then refuses any others")
    _add_export(commands["export"])
    _add_import(commands["import"])
    _add_replay(commands["replay"])
    _add_fit(commands["fit"])
    _add_capture(commands["capture"])
    _add_profile(commands["profile"])
    commands["demo"].add_argument("-o", "--output", metavar="FOLDER", default="weft-demo",
                                  help="where to (default: weft-demo)")
    _add_search(commands["demo"], time_limit=30.0)
    return top


def _add_schedule(command: argparse.ArgumentParser) -> None:
    command.add_argument("schedule", metavar="SCHEDULE", help="a schedule file (weft.schedule/1)")


def _add_spec(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="a model spec (.yaml) or a block problem (.json)")
    command.add_argument("-n", "--micro-batches", type=_count, metavar="N",
                         help="how many micro-batches run (a spec says it itself; this overrides)")


def _add_search(command: argparse.ArgumentParser, time_limit: float) -> None:
    command.add_argument("--time-limit", type=_positive, default=time_limit, metavar="SECONDS",
                         help=f"end the search after so long (default: {time_limit:g})")
    _add_repeatable(command)
    command.add_argument("--workers", type=_count, default=1, metavar="N", help="CP-SAT workers (default: 1)")
    command.add_argument("--quiet", action="store_true", help="do not show progress")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_place(command: argparse.ArgumentParser) -> None:
    command.add_argument("graph", metavar="GRAPH",
                         help="an operator graph (weft.operators/1, dnn-partitioning or Piper JSON) or a model spec "
                         "(.yaml)")
    command.add_argument("--devices", type=_devices, metavar="KIND=N[:MEMORY],...",
                         help="so many devices of a kind, with so much memory (default: what GRAPH says)")
    command.add_argument("--recompute", action="store_true",
                         help="Piper graphs: of an operator's alternatives take the one that keeps least")
    command.add_argument("--latency", action="store_true",
                         help="then minimise the time one micro-batch takes through the stages")
    command.add_argument("--stage-graph", action="store_true",
                         help="stages form a graph: memory by depth, and the least depth at the least load")
    command.add_argument("--slack", type=_share, default=0.0, metavar="FRACTION",
                         help="with --stage-graph: let the load rise by so much for a shallower graph (default: 0)")
    command.add_argument("--operators", action="store_true",
                         help="specs and operator graphs: cut between any two operators, not between layers only")
    command.add_argument("-o", "--output", metavar="FILE", help="write {objective, bound, status, stages} there")
    _add_search(command, time_limit=60.0)


def _add_repeatable(command: argparse.ArgumentParser) -> None:
    command.add_argument("--effort", type=_positive, metavar="SECONDS",
                         help="limit CP-SAT's deterministic time instead of the clock: the run repeats exactly")
    command.add_argument("--seed", type=_natural, default=0, metavar="N", help="random seed (default: 0)")


def _add_sweep(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SPEC", help="a model spec (.yaml) or a block problem (.json)")
    command.add_argument("--memory", type=_texts, metavar="M,M,...",
                         help="memory of each GPU, as 24GiB or 1.5x what SPEC says (block problem: in its unit)")
    command.add_argument("-n", "--micro-batches", type=_counts, metavar="N,N,...", help="micro-batches in a step")
    command.add_argument("--micro-batch-size", type=_counts, metavar="B,B,...", help="sequences in a micro-batch")
    command.add_argument("--recompute", type=_recompute, metavar="on|off|both", help="recompute activations or not")
    command.add_argument("--shapes", type=_texts, metavar="S,S,...", help="solve each of chain, v, loop alone")
    command.add_argument("--chunks", type=_counts, metavar="C,C,...", help="solve each number of stages a GPU alone")
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="where to (.html, .svg, .png, .json); may be given several times")
    command.add_argument("--time-limit", type=_positive, metavar="SECONDS",
                         help="end each point's search after so long (default: 10, none with --effort)")
    _add_repeatable(command)
    command.add_argument("--workers", type=_count, metavar="N", help="processes (default: one a core)")
    command.add_argument("--dask", metavar="ADDRESS", help="solve on the Dask cluster with this scheduler instead")
    command.add_argument("--no-refine", dest="refine", action="store_false",
                         help="add no points at the memory that known schedules ahead of weft's points need")
    cache = command.add_mutually_exclusive_group()
    cache.add_argument("--cache", metavar="DIR", default=True, help="keep solved points there (default: ~/.cache/weft)")
    cache.add_argument("--no-cache", dest="cache", action="store_false", help="neither use nor keep solved points")
    command.add_argument("--quiet", action="store_true", help="do not show progress")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_latency(command: argparse.ArgumentParser) -> None:
    _add_spec(command)
    floor = command.add_mutually_exclusive_group()
    floor.add_argument("--throughput", metavar="RATE", help="at least so many micro-batches per time, as 12.5/s")
    floor.add_argument("--period", metavar="TIME", help="one micro-batch at least every so often, as 80ms")
    command.add_argument("--points", type=_count, default=8, metavar="N",
                         help="points of the trade-off, its two ends among them (default: 8)")
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="where to (.json, .html, .svg, .png); may be given several times")
    _add_search(command, time_limit=60.0)


def _add_explain(command: argparse.ArgumentParser) -> None:
    command.add_argument("spec", metavar="SOURCE", help="a schedule, a block problem (.json) or a model spec (.yaml)")
    command.add_argument("-n", "--micro-batches", type=_count, metavar="N",
                         help="how many micro-batches run (a schedule or spec says it itself)")
    command.add_argument("--what-if", action="store_true", help="add what changes of memory and speed would give")
    command.add_argument("--in-flight", type=_count, metavar="N", help="ask whether N micro-batches fit at once")
    _add_search(command, time_limit=30.0)


def _add_draw(command: argparse.ArgumentParser) -> None:
    _add_schedule(command)
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="where to, may be given several times (default: the schedule's name with .html)")
    command.add_argument("--baseline", metavar="SCHEDULE", help="another schedule, drawn above on the same time axis")
    command.add_argument("--measured", metavar="TIMELINE",
                         help="a timeline that `weft replay --timeline` wrote, laid over the plan")
    command.add_argument("--critical", action="store_true", help="outline the operations on the critical path")
    command.add_argument("--history", action="store_true",
                         help="draw the best makespan and its bound over the time of the search instead")
    command.add_argument("--title", help="the picture's title")


def _add_export(command: argparse.ArgumentParser) -> None:
    _add_schedule(command)
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="where to")
    command.add_argument("--format", choices=EXPORTS, help="which format (default: what the ending of FILE says)")
    command.add_argument("--torch", default="2.13", metavar="VERSION",
                         help="the PyTorch version that is to read it, 2.6 or newer (default: 2.13)")


def _add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="a PyTorch pipelining CSV or a Tessel schedule (.json)")
    command.add_argument("--problem", metavar="SPEC", help="a block problem, or for a CSV a model spec, to time it on")
    command.add_argument("-n", "--micro-batches", type=_count, metavar="N", help="refuse a file of another number")
    command.add_argument("-o", "--output", metavar="FILE", required=True,
                         help="write the schedule there (format weft.schedule/1)")


def _add_replay(command: argparse.ArgumentParser) -> None:
    command.add_argument("plan", metavar="PLAN", help="a plan file (weft.plan/1)")
    command.add_argument("--emulate", action="store_true", help="sleep for each block's duration instead of computing")
    command.add_argument("--stages", metavar="MODULE:FUNCTION", help="where this rank's stages come from")
    command.add_argument("--timeout", type=_positive, default=60.0, metavar="SECONDS",
                         help="stop everything if a rank makes no progress for so long (default: 60)")
    command.add_argument("--rank-alone", metavar="R", help="with --stages, without torchrun: run rank R (or all, one "
                         "after another) by itself on this device, and predict the step")
    command.add_argument("--device", choices=("cpu", "cuda"), help="with --rank-alone: where (default: what there is)")
    command.add_argument("--json", action="store_true", help="with --rank-alone: print the result as JSON")
    command.add_argument("--timeline", metavar="FILE", help="write the measured timeline there")
    command.add_argument("--time-scale", type=_positive, default=1.0, metavar="X",
                         help="with --emulate: make everything X times as long (default: 1)")
    command.add_argument("--transport", metavar="NAME",
                         help="what carries messages: gloo, nccl, shared (memory of one host), or a slow link, "
                              "emulated:LATENCY,BANDWIDTH in s and bytes/s (default: nccl on GPUs, else gloo)")
    command.add_argument("--reserve", type=_count, metavar="BYTES",
                         help="what a device has beyond its planned capacity, for messages that arrive early "
                              "(default: 1 GiB)")
    command.add_argument("--checkpoint", metavar="FOLDER", help="save training there")
    command.add_argument("--checkpoint-every", type=_count, default=0, metavar="N",
                         help="after every N batches, and after the last")
    command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    command.add_argument("--replicas", type=_count, default=1, metavar="R",
                         help="train R copies of the plan together, each on its part of every batch (default: 1)")


def _add_capture(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL.pt2", help="a file of torch.export.save")
    command.add_argument("-o", "--output", metavar="FILE", help="write the operators there (format weft.operators/1)")
    command.add_argument("--layers", action="store_true", help="write one operator a layer instead")
    command.add_argument("--json", action="store_true", help="print them as JSON")


def _add_profile(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL.pt2", nargs="?", help="a file of torch.export.save")
    command.add_argument("--stages", metavar="FILE.py:FUNCTION", help="stages to measure instead (or MODULE:FUNCTION)")
    command.add_argument("-o", "--output", metavar="FILE", help="write the figures there")
    command.add_argument("--repeats", type=_count, default=7, metavar="N", help="runs that a median is of (default: 7)")
    command.add_argument("--device", metavar="cpu|cuda", help="where (default: a GPU if there is one)")
    command.add_argument("--problem", metavar="FILE", help="with --stages: write the block problem there")
    command.add_argument("--backward", choices=("full", "split"), default="full",
                         help="with --problem: the backward whole or in its two halves (default: full)")
    command.add_argument("--memory", type=_bytes, metavar="BYTES",
                         help="with --problem: what each device has, as 16GiB (default: no limit)")
    command.add_argument("--optimizer-copies", type=_natural, default=2, metavar="N",
                         help="with --problem: values that the optimizer keeps for each weight (default: 2, as Adam)")
    command.add_argument("--quiet", action="store_true", help="do not show progress")
    command.add_argument("--json", action="store_true", help="print the figures as JSON")


def _add_fit(command: argparse.ArgumentParser) -> None:
    command.add_argument("plan", metavar="PLAN", help="the plan or schedule that ran (weft.plan/1, weft.schedule/1)")
    command.add_argument("timelines", metavar="TIMELINE", nargs="+", help="a measured run of it (weft.timeline/1)")
    command.add_argument("-o", "--output", metavar="FILE", help="write the problem with measured costs there")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _devices(text: str) -> dict[str, tuple[int, float | None]]:
    from weft.placing import parse_devices

    try:
        return parse_devices(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bytes(text: str) -> int:
    from models.quantities import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> float:
    value = _number(text, float)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"is {text}, it must be a number greater than 0")
    return value


def _share(text: str) -> float:
    value = _number(text, float)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"is {text}, it must be a number of 0 or more")
    return value


def _count(text: str) -> int:
    value = int(_number(text, int))
    if value < 1:
        raise argparse.ArgumentTypeError(f"is {text}, it must be a whole number of at least 1")
    return value


def _texts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _counts(text: str) -> list[int]:
    return [_count(part) for part in _texts(text)]


def _recompute(text: str) -> list[bool]:
    choices = {"on": [True], "off": [False], "both": [False, True]}
    if text not in choices:
        raise argparse.ArgumentTypeError(f"is {text!r}, it must be on, off or both")
    return choices[text]


def _natural(text: str) -> int:
    value = int(_number(text, int))
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"is {text}, it must be a whole number from 0 to {2**31 - 1}")
    return value


def _number(text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"is {text!r}, it must be {what}") from None
