"""What the command line accepts, and what ``--help`` says about it."""

from __future__ import annotations

import argparse
import textwrap
from typing import NoReturn

import weft

__all__ = ["parser"]

_EXIT_STATUS = """\
exit status:
  0    good
  1    the answer is no: the schedule is invalid, or no schedule fits the memory
  2    bad usage, or a file that cannot be read or written
  130  interrupted before there was any answer
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
    "check": (
        "judge a schedule from first principles",
        ("Every block once per micro-batch, devices and links exclusive, dependencies with their transfers, "
         "memory at every event on every device, micro-batches in order, bounds and period consistent. Each "
         "breach is one sentence that names block, micro-batch, device, time and amount.",),
        "weft check schedule.json"),
    "draw": (
        "draw a schedule",
        ("One lane a GPU, coloured by forward, backward, input- and weight-gradient; under it its memory over "
         "time with the cap; warm-up, repetend and cool-down marked. The ending of the output chooses: .html "
         "(self-contained, details on hover), .svg, .png, or .json for a trace that Perfetto (ui.perfetto.dev) "
         "opens.",),
        "weft draw schedule.json -o schedule.svg -o schedule.png --baseline 1f1b.json"),
    "plan": (
        "lower a schedule to one instruction list a rank",
        ("Sends and receives are added so that every two ranks see their messages in the same order; the "
         "result is proven free of deadlock and complete before it is written.",),
        "weft plan schedule.json -o plan.json"),
    "replay": (
        "run a plan on real processes, one a device",
        ("Starts on every rank under torchrun: gloo on CPUs, NCCL on GPUs. With --emulate every block sleeps "
         "for its planned duration; with --stages it runs modules of yours: a function that returns this "
         "rank's stages. A rank that dies or hangs stops all of them within --timeout seconds and says what it "
         "waited for.",),
        "torchrun --nproc-per-node 4 -m weft replay plan.json --emulate"),
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
    _add_schedule(commands["check"])
    commands["check"].add_argument("--json", action="store_true", help="print {valid, faults} as JSON")
    _add_draw(commands["draw"])
    _add_schedule(commands["plan"])
    commands["plan"].add_argument("-o", "--output", metavar="FILE", help="where to (default: standard output)")
    _add_replay(commands["replay"])
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
    command.add_argument("--effort", type=_positive, metavar="SECONDS",
                         help="limit CP-SAT's deterministic time instead of the clock: the run repeats exactly")
    command.add_argument("--seed", type=_natural, default=0, metavar="N", help="random seed (default: 0)")
    command.add_argument("--workers", type=_count, default=1, metavar="N", help="CP-SAT workers (default: 1)")
    command.add_argument("--quiet", action="store_true", help="do not show progress")
    command.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_draw(command: argparse.ArgumentParser) -> None:
    _add_schedule(command)
    command.add_argument("-o", "--output", metavar="FILE", action="append",
                         help="where to, may be given several times (default: the schedule's name with .html)")
    command.add_argument("--baseline", metavar="SCHEDULE", help="another schedule, drawn above on the same time axis")
    command.add_argument("--measured", metavar="TIMELINE",
                         help="a timeline that `weft replay --timeline` wrote, laid over the plan")
    command.add_argument("--title", help="the picture's title")


def _add_replay(command: argparse.ArgumentParser) -> None:
    command.add_argument("plan", metavar="PLAN", help="a plan file (weft.plan/1)")
    command.add_argument("--emulate", action="store_true", help="sleep for each block's duration instead of computing")
    command.add_argument("--stages", metavar="MODULE:FUNCTION", help="where this rank's stages come from")
    command.add_argument("--timeout", type=_positive, default=60.0, metavar="SECONDS",
                         help="stop everything if a rank makes no progress for so long (default: 60)")
    command.add_argument("--timeline", metavar="FILE", help="write the measured timeline there")
    command.add_argument("--time-scale", type=_positive, default=1.0, metavar="X",
                         help="with --emulate: make everything X times as long (default: 1)")


def _positive(text: str) -> float:
    value = _number(text, float)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"is {text}, it must be a number greater than 0")
    return value


def _count(text: str) -> int:
    value = int(_number(text, int))
    if value < 1:
        raise argparse.ArgumentTypeError(f"is {text}, it must be a whole number of at least 1")
    return value


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
