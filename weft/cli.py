"""The command line: each command a thin face of the function of :mod:`weft` with the same name."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft.manual import parser

if TYPE_CHECKING:
    from solver.schedule import Schedule
    from weft.comparison import Comparison
    from weft.fitting import Fitted
    from weft.latencies import Serving
    from weft.tradeoff import Sweep

__all__ = ["main"]

GOOD, NO, BAD, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Errors a user can mend are one sentence on standard error."""
    options = parser().parse_args(arguments)
    try:
        return _checked(_COMMANDS[options.command], options)
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD


def _checked(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(BAD, f"{name}{error.strerror or error}")
    except ImportError as error:
        return _fail(BAD, str(error))
    except ValueError as error:
        from solver.search import Infeasible
        from solver.validate import InvalidSchedule

        return _fail(NO if isinstance(error, Infeasible | InvalidSchedule) else BAD, str(error))


def _fail(status: int, message: str) -> int:
    print(f"weft: {message}", file=sys.stderr)
    return status


# -- the commands --------------------------------------------------------------------------------------------------


def _solve(options: argparse.Namespace) -> int:
    _require_writable(options.output)
    schedule = _search(weft.solve, options)
    if options.output:
        _save(schedule, options.output)
    if options.json:
        from solver.files import schedule_to_json

        summary = schedule_to_json(schedule)
        for bulky in ("problem", "operations"):
            del summary[bulky]
        print(json.dumps({"name": schedule.problem.name, **summary}))
    else:
        print(_summary(schedule))
        if options.output:
            print(f"written to {options.output}")
    return GOOD


def _compare(options: argparse.Namespace) -> int:
    comparison = _search(weft.compare, options)
    _show(comparison, options.json)
    return GOOD


def _sweep(options: argparse.Namespace) -> int:
    from weft.progress import SweepLines
    from weft.sweeping import dask_executor
    from weft.tradeoff import OUTPUTS as SWEEP_OUTPUTS

    for output in options.output or ():
        _require_output(output, "a sweep", SWEEP_OUTPUTS)
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(dask_executor(options.dask)) if options.dask else None
        found = weft.sweep(
            options.spec, memory=options.memory, micro_batches=options.micro_batches,
            micro_batch_sizes=options.micro_batch_size, recompute=options.recompute, shapes=options.shapes,
            chunks=options.chunks, executor=executor, workers=options.workers, cache=options.cache,
            refine=options.refine, time_limit=options.time_limit, effort=options.effort, seed=options.seed,
            on_progress=SweepLines(quiet=options.quiet))
    _show(found, options.json)
    for output in options.output or ():
        found.save(output)
        if not options.json:
            print(f"written to {output}")
    return INTERRUPTED if found.interrupted else GOOD


def _latency(options: argparse.Namespace) -> int:
    from weft.latencies import OUTPUTS
    from weft.serving import PointLines

    for output in options.output or ():
        _require_output(output, "a latency", OUTPUTS)
    found = weft.latency(
        options.spec, throughput=options.throughput, period=options.period, points=options.points,
        micro_batches=options.micro_batches, time_limit=options.time_limit, effort=options.effort, seed=options.seed,
        workers=options.workers, on_progress=PointLines(quiet=options.quiet))
    _show(found, options.json)
    for output in options.output or ():
        found.save(output)
        if not options.json:
            print(f"written to {output}")
    return GOOD


def _check(options: argparse.Namespace) -> int:
    faults = weft.check(options.schedule)
    if options.json:
        print(json.dumps({"valid": not faults, "faults": faults}))
    elif faults:
        print(f"{options.schedule}: not a valid schedule")
        for fault in faults:
            print(f"  {fault}")
    else:
        from solver.files import load_schedule

        print(f"{options.schedule}: valid")
        print(_summary(load_schedule(options.schedule)))
    return NO if faults else GOOD


def _draw(options: argparse.Namespace) -> int:
    outputs = options.output or [str(Path(options.schedule).with_suffix(".html"))]
    for output in outputs:
        weft.draw(options.schedule, output, baseline=options.baseline, measured=options.measured, title=options.title,
                  critical=options.critical, history=options.history)
        print(f"written to {output}")
    return GOOD


def _explain(options: argparse.Namespace) -> int:
    found = _search(weft.explain, options, what_if=options.what_if, in_flight=options.in_flight)
    print(json.dumps(found.to_json()) if options.json else found)
    return NO if found.schedule is None else GOOD


def _place(options: argparse.Namespace) -> int:
    from weft.placing import StepLines, placement_text

    _require_writable(options.output)
    found = weft.place(options.graph, devices=options.devices, recompute=options.recompute, latency=options.latency,
                       stage_graph=options.stage_graph, slack=options.slack, whole_layers=not options.operators,
                       time_limit=options.time_limit, effort=options.effort, seed=options.seed,
                       workers=options.workers, on_step=StepLines(quiet=options.quiet))
    answer = json.dumps(found.to_json())
    if options.output:
        from solver.files import write_atomically

        write_atomically(options.output, answer + "\n")
    print(answer if options.json else placement_text(found))
    if options.output and not options.json:
        print(f"written to {options.output}")
    return GOOD


def _plan(options: argparse.Namespace) -> int:
    _require_writable(options.output)
    plan = weft.plan(options.schedule, options.output, options.stages)
    if options.output:
        print(f"written to {options.output}")
    else:
        from runtime.plan import plan_to_json

        print(json.dumps(plan_to_json(plan), indent=1))
    return GOOD


def _export(options: argparse.Namespace) -> int:
    _require_writable(options.output)
    for path in weft.export_schedule(options.schedule, options.output, format=options.format, torch=options.torch):
        print(f"written to {path}")
    return GOOD


def _import(options: argparse.Namespace) -> int:
    from solver.validate import violations

    _require_writable(options.output)
    schedule = weft.import_schedule(options.file, problem=options.problem, micro_batches=options.micro_batches)
    _save(schedule, options.output)
    print(_summary(schedule))
    for note in schedule.solver.get("notes", ()):
        print(f"note      {note}")
    faults = violations(schedule)
    for fault in faults:
        print(f"fault     {fault}")
    print(f"written to {options.output}")
    return NO if faults else GOOD


def _fit(options: argparse.Namespace) -> int:
    _require_writable(options.output)
    found = weft.fit(options.plan, *options.timelines)
    if options.output:
        found.save(options.output)
    _show(found, options.json)
    if not options.json:
        for warning in found.warnings:
            print(f"warning: {warning}")
        if options.output:
            print(f"written to {options.output}")
    return GOOD


def _replay(options: argparse.Namespace) -> int:
    try:
        import torch  # noqa: F401
    except ImportError:
        return _fail(BAD, "replay needs PyTorch: install it with  pip install 'weft[torch]'")
    if options.rank_alone is not None:
        return _replay_alone(options)
    if options.device is not None or options.json:
        return _fail(BAD, "--device and --json of replay are for --rank-alone")
    found = weft.replay(options.plan, emulate=options.emulate, stages=options.stages, timeout=options.timeout,
                        timeline_path=options.timeline, time_scale=options.time_scale, transport=options.transport,
                        reserve=options.reserve, checkpoint=options.checkpoint,
                        checkpoint_every=options.checkpoint_every, resume=options.resume,
                        replicas=options.replicas)
    if found is not None:  # rank 0 has the whole picture
        print(found)
    return GOOD


def _replay_alone(options: argparse.Namespace) -> int:
    if options.rank_alone != "all" and not options.rank_alone.isdecimal():
        return _fail(BAD, f"--rank-alone is {options.rank_alone!r}, it must be the number of a rank, or all")
    if options.stages is None or options.emulate:
        return _fail(BAD, "--rank-alone runs real stages: give --stages MODULE:FUNCTION, without --emulate")
    together = {"--timeline": options.timeline, "--transport": options.transport, "--checkpoint": options.checkpoint,
                "--resume": options.resume, "--replicas": options.replicas > 1}
    for option, given in together.items():
        if given:
            return _fail(BAD, f"{option} is for ranks that run together; --rank-alone runs each by itself")
    ranks = None if options.rank_alone == "all" else [int(options.rank_alone)]
    found = weft.replay_alone(options.plan, ranks, stages=options.stages, device=options.device)
    print(json.dumps(found.to_json()) if options.json else found)
    return GOOD


def _estimate(options: argparse.Namespace) -> int:
    found = weft.estimate(options.spec, shape=options.shape)
    if options.json:
        print(json.dumps(found.to_json()))
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 180).print(found.table())
    return GOOD if found.fits else NO


def _demo(options: argparse.Namespace) -> int:
    shown = _search(weft.demo, options, source=options.output)
    _show(shown.comparison, options.json)
    if not options.json:
        print("written: " + "  ".join(str(path) for path in shown.files))
    return GOOD


def _capture(options: argparse.Namespace) -> int:
    _require_torch("capture")
    from models.layers_view import by_layer
    from models.operator_files import graph_to_json, save_graph
    from weft.capturing import graph_lines

    _require_writable(options.output)
    graph = weft.capture(options.model)
    shown = by_layer(graph)
    if options.output:
        save_graph(shown if options.layers else graph, options.output)
    if options.json:
        print(json.dumps(graph_to_json(shown if options.layers else graph)))
        return GOOD
    print("\n".join(graph_lines(graph, shown)))
    if options.output:
        print(f"written to {options.output}")
    return GOOD


def _profile(options: argparse.Namespace) -> int:
    _require_torch("profile")
    if (options.model is None) == (options.stages is None):
        raise ValueError("profile: say what to time: either MODEL.pt2, or --stages FILE.py:FUNCTION")
    for path in (options.output, options.problem):
        _require_writable(path)
    if options.stages is not None:
        return _profile_stages(options)
    if options.problem is not None:
        raise ValueError("profile: --problem needs --stages; operators are not yet cut into stages")
    from models.measured_times import save_times, times_to_json
    from weft.profiling import OperatorLine, profile_operators

    with OperatorLine(quiet=options.quiet) as progress:
        times = profile_operators(options.model, repeats=options.repeats, device=options.device, on_progress=progress)
    if options.output:
        save_times(times, options.output)
    print(json.dumps(times_to_json(times)) if options.json else "\n".join(times.summary()))
    if options.output and not options.json:
        print(f"written to {options.output}")
    return GOOD


def _profile_stages(options: argparse.Namespace) -> int:
    from runtime.stage_costs import measured_problem, save_stage_costs, stage_costs_to_json
    from solver.files import save_problem
    from weft.profiling import stage_lines

    measured = weft.profile_stages(options.stages, repeats=options.repeats, device=options.device)
    if options.output:
        save_stage_costs(measured, options.output)
    print(json.dumps(stage_costs_to_json(measured)) if options.json else "\n".join(stage_lines(measured)))
    if options.problem:
        save_problem(measured_problem(measured.stages, backward=options.backward, memory=options.memory,
                                      optimizer_copies=options.optimizer_copies, name=options.stages), options.problem)
    if not options.json:
        for path in filter(None, (options.output, options.problem)):
            print(f"written to {path}")
    return GOOD


def _require_torch(command: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ImportError(f"{command} needs PyTorch: install it with  pip install 'weft[torch]'") from None


def _schema(options: argparse.Namespace) -> int:
    print(json.dumps(weft.schema(), indent=1))
    return GOOD


_COMMANDS = {"solve": _solve, "compare": _compare, "sweep": _sweep, "latency": _latency, "estimate": _estimate,
             "check": _check, "explain": _explain, "draw": _draw, "place": _place, "plan": _plan, "export": _export,
             "import": _import, "fit": _fit, "capture": _capture, "profile": _profile, "replay": _replay,
             "demo": _demo, "schema": _schema}


# -- shared by the commands ------------------------------------------------------------------------------------------


def _search(function: Callable[..., Any], options: argparse.Namespace, source: Any = None, **further: Any) -> Any:
    from weft.progress import ProgressLine

    extra = {**further, **({"micro_batches": options.micro_batches} if hasattr(options, "micro_batches") else {})}
    with ProgressLine(quiet=options.quiet) as progress:
        return function(source or options.spec, time_limit=options.time_limit, effort=options.effort,
                        seed=options.seed, workers=options.workers, on_progress=progress, **extra)


def _summary(schedule: Schedule) -> str:
    from weft.choice import choice_lines
    from weft.units import memory_text, time_text

    unit = schedule.problem.time_unit

    def shown(value: float) -> str:
        return " ".join(time_text(value, unit))

    bubble = schedule.bubble
    lines = [
        f"{schedule.problem.name}: {schedule.micro_batches} micro-batches on {len(schedule.problem.devices)} devices"
        + (f", {schedule.solver['placement']}" if schedule.solver.get("placement") else ""),
        f"makespan  {shown(schedule.makespan)}, lower bound {shown(schedule.makespan_bound)}: "
        + ("proven optimal" if schedule.gap == 0 else "no bound" if schedule.gap == float("inf")
           else f"gap at most {schedule.gap:.2%}"),
    ]
    period = schedule.period or schedule.solver.get("repetend_period")
    if period is not None:
        bound = schedule.period_bound if schedule.period is not None else schedule.solver["repetend_period_bound"]
        proof = "" if bound is None else (", proven the shortest that advances one micro-batch a period"
                                          if period <= bound * (1 + 1e-6) else f", lower bound {shown(bound)}")
        which = "period    " if schedule.period is not None else "repetend  "
        where = "" if schedule.period is not None else "; not in this schedule"
        lines.append(f"{which}{shown(period)} per micro-batch{proof}{where}")
    lines.append("bubble    " + ", ".join([*([] if bubble.steady is None else [f"steady {bubble.steady:.1%}"]),
                                          f"step {bubble.step:.1%}", f"span {bubble.span:.1%}"]))
    static = schedule.solver.get("static_memory") or [0] * len(schedule.problem.devices)
    lines.append("memory    " + ", ".join(
        f"{device.name} {' '.join(memory_text(peak + base, schedule.problem.memory_unit))}"
        for device, peak, base in zip(schedule.problem.devices, schedule.peak_memory, static, strict=True)))
    if "gradients_freed" in schedule.solver:
        freed = (" ".join(memory_text(amount, schedule.problem.memory_unit))
                 for amount in schedule.solver["gradients_freed"])
        lines.append(f"AdamA     no whole gradients are held; with Adam they would take {', '.join(freed)} more")
    lines += choice_lines(schedule)
    notes = schedule.solver.get("notes")
    lines += [f"note      {note}" for note in notes] if isinstance(notes, list) else []
    return "\n".join(lines)


def _show(found: Comparison | Sweep | Serving | Fitted, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.to_json()))
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 140).print(found.table())


def _save(schedule: Schedule, path: str) -> None:
    """Save a result that may have taken hours: if ``path`` fails, somewhere else, and say so."""
    from solver.files import save_schedule

    try:
        save_schedule(schedule, path)
    except OSError as error:
        rescue = Path(tempfile.gettempdir()) / f"weft-{os.getpid()}-{Path(path).name}"
        try:
            save_schedule(schedule, rescue)
        except OSError:
            raise error from None
        raise OSError(error.errno, f"{error.strerror}; the schedule was saved to {rescue} instead", path) from None


def _require_output(path: str, what: str, endings: Sequence[str]) -> None:
    if Path(path).suffix.lower() not in endings:
        raise ValueError(f"{path}: the ending is {Path(path).suffix or 'missing'}, {what} is written as "
                         f"{', '.join(endings)}")
    _require_writable(path)


def _require_writable(path: str | None) -> None:
    """Refuse an impossible output before a long search rather than after it."""
    if path is None:
        return
    folder = Path(path).parent
    if Path(path).is_dir():
        raise OSError(21, "is a folder, name a file in it", path)
    if not folder.is_dir():
        raise OSError(2, "its folder does not exist", path)
    if not os.access(folder, os.W_OK):
        raise OSError(13, "its folder cannot be written to", path)
