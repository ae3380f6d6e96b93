"""Plans of one's own: transform a model's operators, place and order them, and have the communication derived.

::

    from weft import plans

    program = plans.with_backward(plans.program("block.pt2"))
    plan = plans.Plan(program).split("linear_4*", "n", 4).split("linear_6.product", "k", 4).assign("*", range(4))
    print(plan.preserve())

    plan = plans.tensor_parallel(plans.Plan(program), range(4))  # cuts by the cheapest conversions, as Megatron's
    training = plans.PlanOnRank(plan.preserve())                 # on each rank of torch.distributed
    training.load(module.state_dict())
    training.step({"x": batch})                                  # of a program with plans.with_update
    training.state_dict()

:class:`Plan` has ``split``, ``replicate``, ``co_shard``, ``recompute``, ``pipeline``, ``assign``, ``order``, ``apply``
(a transformation of one's own: a function of what is planned) and ``preserve``. What it leaves open (the order of a
``pipeline`` with ``schedule="open"``, devices that are :func:`one_of` several or not said at all, splits to ``choose``
from) :func:`solve` searches for. :func:`program` reads a captured model,
:class:`ProgramBuilder` writes one, :func:`operator` registers a function of tensors as an operator of one's own with
its annotation; :func:`error` compares what a plan computes with one device,
:func:`convert` finds the cheapest way between two layouts; :class:`PlanOnRank` runs a preserved plan on the ranks of
``torch.distributed``. All errors are :class:`PlanError` or :class:`LayoutError`,
both ``ValueError``. The names are loaded on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from weft.solver.public_names import listed, loaded

if TYPE_CHECKING:
    from torch.nn import Module

    from weft.app.lib.options import SearchKeywords, SearchOptions
    from weft.app.plans.checking import error
    from weft.app.plans.operators import operator
    from weft.app.plans.run import PlanOnRank
    from weft.app.plans.solving import Machine, SolvedPlan
    from weft.models.layouts.conversion import Conversion, convert
    from weft.models.layouts.layout import Layout, LayoutError, Placed
    from weft.models.layouts.prices import DevicePrices, Prices, RingPrices, uniform
    from weft.models.transform.annotation import Annotation, PlanError, annotation
    from weft.models.transform.as_blocks.costs import GivenCosts, ModelledCosts
    from weft.models.transform.backward import with_backward, with_update
    from weft.models.transform.choices import one_of
    from weft.models.transform.plan import Plan, Preserved
    from weft.models.transform.planned import Cut, Part, Planned
    from weft.models.transform.program import Operation, Program, ProgramBuilder

__all__ = ["Annotation", "Conversion", "Cut", "DevicePrices", "GivenCosts", "Layout", "LayoutError", "Machine",
           "ModelledCosts", "Operation", "Part", "Placed", "Plan", "PlanError", "PlanOnRank", "Planned", "Preserved",
           "Program", "ProgramBuilder", "RingPrices", "SolvedPlan", "annotation", "convert", "error", "one_of",
           "operator", "program", "seconds", "solve", "tensor_parallel", "uniform", "with_backward", "with_update"]

#: The module of each name, in :mod:`weft.models` but for one.
_HOME = {
    "Annotation": "transform.annotation", "PlanError": "transform.annotation", "annotation": "transform.annotation",
    "Conversion": "layouts.conversion", "convert": "layouts.conversion", "Layout": "layouts.layout",
    "LayoutError": "layouts.layout", "Placed": "layouts.layout", "DevicePrices": "layouts.prices",
    "RingPrices": "layouts.prices", "uniform": "layouts.prices", "with_backward": "transform.backward",
    "with_update": "transform.backward", "operator": "weft.app.plans.operators", "Plan": "transform.plan",
    "PlanOnRank": "weft.app.plans.run", "error": "weft.app.plans.checking",
    "Machine": "weft.app.plans.solving", "SolvedPlan": "weft.app.plans.solving",
    "GivenCosts": "transform.as_blocks.costs", "ModelledCosts": "transform.as_blocks.costs",
    "one_of": "transform.choices",
    "Preserved": "transform.plan", "Cut": "transform.planned", "Part": "transform.planned",
    "Planned": "transform.planned", "Operation": "transform.program", "Program": "transform.program",
    "ProgramBuilder": "transform.program",
}


def program(source: str | os.PathLike[str] | Module, inputs: tuple[Any, ...] | None = None,
            keywords: Mapping[str, Any] | None = None) -> Program:
    """The operators of a model, each with how it splits: of a ``.pt2`` file, or of a module called with ``inputs``.

    ``notes`` of the result name the operators that are not known; every device computes all of those. A module that
    writes into views is exported once more, as one that does not. Raises
    :class:`weft.models.capture.exported.ExportError`, and :class:`PlanError` for a file of one that does, and for a
    module that writes into its inputs or parameters.
    """
    import tempfile
    from pathlib import Path

    from weft.models.transform.annotation import PlanError
    from weft.models.transform.captured import read_program

    if isinstance(source, str | os.PathLike):
        return read_program(source)
    from weft.models.capture.capture import save_exported

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{type(source).__name__}.pt2"
        save_exported(source, inputs or (), path, keywords)
        try:
            return read_program(path)
        except PlanError as error:
            if "shares its memory with views" not in str(error):
                raise
        save_exported(source, inputs or (), path, keywords, functional=True)
        return read_program(path)


def tensor_parallel(plan: Plan, devices: Sequence[int], operators: str = "*", *, prices: Prices | None = None) -> Plan:
    """Cut a plan's operators over devices as Megatron does, or better: the cheapest conversions decide.

    As :func:`weft.models.transform.tensor_parallel.tensor_parallel`; the plan is changed and given back. Raises
    :class:`PlanError` for devices that are named twice, and for operators that are cut over devices already.
    """
    return plan.tensor_parallel(devices, operators, prices=prices)


def solve(plan: Plan, machine: Machine, *, options: SearchOptions | None = None,
          **search: Unpack[SearchKeywords]) -> SolvedPlan:
    """The plan with what it leaves open decided so that a step is shortest, with a proven lower bound.

    Open is the order of all parts and communications that no ``order`` or ``pipeline`` fixes, what ``choose`` and
    :func:`one_of` leave open, and the devices of operators that no ``assign`` names (``machine.devices`` says how many
    there are). The result's ``plan`` has the order that was found as one more rule and runs as any other; it was judged
    as a schedule of blocks, its communications derived anew, and its times checked against what every part reads.

    ``options``, or ``time_limit``, ``effort``, ``seed`` and ``workers`` as keywords, limit the search as those of
    :func:`weft.solve`: one limit for all, from listing the plans to checking the answer. Of the plans that are open as
    many are made as its first two fifths allow, one in any case, and ``complete`` of the result says whether these are
    all; past the limit there is only what putting together and checking one plan takes.

    Raises :class:`PlanError` for a plan that cannot be (with the circle, where data and orders close one),
    :class:`weft.solver.step.search.Infeasible` where no order of any plan fits the memory, and its subclass
    ``NoneFound`` where none was found and that is open.
    """
    from weft.app.lib.options import SearchOptions
    from weft.app.plans.solving import solve_plan

    return solve_plan(plan, machine, SearchOptions.given(options, search))


def seconds(plan: Plan, machine: Machine) -> float:
    """What a step of the plan takes in its own order, without a search; choices take their first option."""
    from weft.app.plans.solving import as_written

    return as_written(plan, machine)


def __getattr__(name: str) -> Any:
    return loaded(__name__, _HOME, name, "weft.models")


def __dir__() -> list[str]:
    return listed(__name__)
