"""What is done with a schedule: judged, drawn, lowered, run, fitted, exported, imported, unrolled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.app.lib.judged import judged, verdict
from weft.app.lib.sources import PathLike, Source

if TYPE_CHECKING:
    from weft.app.fit import Fitted
    from weft.solver.schedule import Schedule

__all__ = ["check", "draw", "export_schedule", "fit", "import_schedule", "plan", "replay", "replay_alone",
           "replay_shared", "unroll"]


def check(schedule: Schedule | PathLike) -> list[str]:
    """What is wrong with a schedule: one sentence each, none if it is valid.

    The judge (:mod:`weft.solver.judge`) derives everything from the operations; what a file states beside them is
    held against them too (:func:`weft.app.lib.judged.verdict` lists it). Raises ``FormatError`` for a file that is no
    schedule.
    """
    return verdict(schedule).faults


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

    Blocks may run micro-batches in any order, as those of an imported schedule may, and need more memory than there is:
    that stands out. Raises :class:`~weft.solver.InvalidSchedule` for a schedule that breaks any other rule.
    """
    from weft.app.draw import draw_history, draw_schedule

    if history:
        if baseline is not None or measured is not None or critical:
            raise ValueError("the history of a search is a picture of its own: leave out baseline, measured and "
                             "critical")
        draw_history(judged(schedule, in_turn=False, capacities=False), path, title=title)
        return
    above = None if baseline is None else judged(baseline, in_turn=False, capacities=False)
    draw_schedule(judged(schedule, in_turn=False, capacities=False), path, baseline=above, measured=measured,
                  title=title, critical=critical)


def plan(schedule: Schedule | PathLike, path: PathLike | None = None, stages: str | None = None, *,
         allow_unsplit: bool = False, allow_other_model: bool = False) -> Any:
    """The schedule lowered to one instruction list a rank, proven free of deadlock and complete; written to ``path``.

    With ``stages``, "module:function" as :func:`replay` has it, the plan is for these stages only; needs torch. Raises
    :class:`weft.runtime.interface.factory.FactoryError` for a function that does not give them, and
    :class:`weft.runtime.checkpoint.signature.SignatureError` for stages that are not those of the schedule's problem,
    which the last two arguments allow as they do in :func:`replay`. Blocks may run micro-batches in any order. Returns
    the :class:`weft.runtime.plan.plan.Plan`. Raises
    ``InvalidSchedule`` and :class:`weft.runtime.plan.check.ProgramError`.
    """
    from weft.runtime.plan.plan import plan_of, save_plan

    made = plan_of(judged(schedule, in_turn=False))
    if stages is not None:
        from weft.runtime.checkpoint.signature import signed
        from weft.runtime.interface.factory import load_factory
        from weft.runtime.train.agreement import Allowed, warn

        made = signed(made, load_factory(stages), Allowed(allow_unsplit, allow_other_model), warn)
    if path is not None:
        save_plan(made, path)
    return made


def export_schedule(schedule: Schedule | PathLike, path: PathLike, *, format: str | None = None,
                    torch: str = "2.13") -> list[Path]:
    """Write a schedule for another tool; returns the files written.

    ``format`` is ``pytorch`` (pipelining CSV; the default for ``.csv``), ``pytorch-comms`` (with communication, for
    PyTorch version ``torch``), ``megatron`` (flags), ``torchtitan`` (``.toml``, and a CSV beside it), ``nnscaler``
    (``.py``), ``tessel`` or ``perfetto`` (JSON). Blocks may run micro-batches in any order. Raises ``InvalidSchedule``,
    and ``ValueError`` (``ExportError``) with the reason for a schedule that the format cannot express.
    """
    from weft.app.export import export_to

    return export_to(judged(schedule, in_turn=False), path, format=format, torch=torch)


def import_schedule(path: PathLike, *, problem: Source | None = None, micro_batches: int | None = None) -> Schedule:
    """Somebody's schedule, to be checked, timed and drawn: a PyTorch pipelining ``.csv`` of either flavour, or a Tessel
    ``.json``.

    ``problem``, a block problem or for a CSV a model spec, says how long blocks take and what they hold; without one a
    forward and each half of a backward take one unit. What it breaks of weft's rules is for :func:`check` to say; what
    is odd about a CSV's communication stands in ``schedule.solver["notes"]``. Raises ``FormatError``, with row and
    cell, for a file that no rank could run.
    """
    from weft.app.export import import_from

    return import_from(path, problem=problem, micro_batches=micro_batches)


def fit(source: Schedule | PathLike, *timelines: PathLike) -> Fitted:
    """What :func:`replay` measured, as corrected costs: ``source`` is the plan or schedule that ran, each of
    ``timelines`` a run of it.

    The result's ``problem`` has every block's median duration, and the transfers that could be seen, so that the next
    :func:`solve` is on real figures; ``save(path)`` writes it, ``str()`` is the table of planned against measured,
    ``warnings`` names blocks with a large spread. Raises ``ValueError`` for a timeline of another plan.
    """
    from weft.app.fit import fit_timelines

    return fit_timelines(source, timelines)


def replay(plan: PathLike, **options: Any) -> Any:
    """Run a plan on this process's rank (under ``torchrun``); needs torch.

    ``options`` are those of :class:`weft.runtime.ReplayOptions`; errors are those of
    :func:`weft.runtime.replay.replay.replay`.
    """
    from weft.runtime.replay.options import ReplayOptions
    from weft.runtime.replay.replay import replay as run_plan

    return run_plan(plan, ReplayOptions(**options))


def replay_shared(plan: PathLike, stages: Mapping[str, str], *, processes: str = "one", **options: Any) -> Any:
    """Run the jobs of a plan with jobs, each by the function of ``stages`` that its name has, on CPUs over gloo; needs
    torch.

    ``processes``: ``"one"`` set of them for all jobs, of which this is one (under ``torchrun``; the result is on rank
    0), or one for each ``"job"``, which are started here, on this machine. Each job's losses are those that it has
    alone. One that ends or fails leaves the others running; so does one that is killed, where it has processes of its
    own. ``options`` are those of :class:`weft.runtime.share.replay.SharedOptions`; with ``job`` this process is one of
    that job's own. Gives the :class:`weft.runtime.share.result.SharedRun`. Errors are those of
    :func:`weft.runtime.share.replay.replay_shared`.
    """
    from weft.runtime.share.processes import replay_in_processes
    from weft.runtime.share.replay import SharedOptions, replay_job
    from weft.runtime.share.replay import replay_shared as run_plan

    if processes not in ("one", "job"):
        raise ValueError(f"processes is {processes!r}, it must be 'one' or 'job'")
    asked = SharedOptions(stages, **options)
    if processes == "job":
        return replay_in_processes(plan, asked)
    return run_plan(plan, asked) if asked.job is None else replay_job(plan, asked)


def replay_alone(plan: PathLike, ranks: Sequence[int] | None = None, *, stages: str, **options: Any) -> Any:
    """Run ranks of a plan one after another on this process's device, each without the others; needs torch.

    Gives every rank's times and peak memory, and the step they predict. See
    :func:`weft.runtime.replay.replay.replay_single_rank`.
    """
    from weft.runtime.replay.replay import replay_single_rank as run_alone

    return run_alone(plan, ranks, stages=stages, **options)


def unroll(schedule: Schedule | PathLike, micro_batches: int) -> Schedule:
    """A solved schedule for another number of micro-batches: whole periods put in or taken out, no search.

    Raises ``ValueError`` if it has no repetend, or too few micro-batches are asked for.
    """
    from weft.solver.step.stretch import unroll as stretch

    return stretch(judged(schedule), micro_batches)
