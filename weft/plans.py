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

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from weft.app.plans.checking import error
    from weft.app.plans.programs import operator, program
    from weft.app.plans.run import PlanOnRank
    from weft.app.plans.solving import PlanMachine as Machine
    from weft.app.plans.solving import SolvedPlan
    from weft.app.plans.solving import as_written as seconds
    from weft.app.plans.solving import solve_plan as solve
    from weft.models.layouts.conversion import Conversion, RingPrices, convert, device_prices, uniform
    from weft.models.layouts.layout import Layout, LayoutError, Placed
    from weft.models.transform.as_blocks.costs import GivenCosts, ModelledCosts
    from weft.models.transform.backward import with_backward, with_update
    from weft.models.transform.choices import one_of
    from weft.models.transform.plan import Preserved, tensor_parallel
    from weft.models.transform.plan import TransformPlan as Plan
    from weft.models.transform.planned import Cut, Part, Planned
    from weft.models.transform.program import Annotation, PlanError, ProgramBuilder, annotation
    from weft.models.transform.program import PlanOperation as Operation
    from weft.models.transform.program import PlanProgram as Program

__all__ = ["Annotation", "Conversion", "Cut", "device_prices", "GivenCosts", "Layout", "LayoutError", "Machine",
           "ModelledCosts", "Operation", "Part", "Placed", "Plan", "PlanError", "PlanOnRank", "Planned", "Preserved",
           "Program", "ProgramBuilder", "RingPrices", "SolvedPlan", "annotation", "convert", "error", "one_of",
           "operator", "program", "seconds", "solve", "tensor_parallel", "uniform", "with_backward", "with_update"]

__getattr__, __dir__ = lazily(__name__)
