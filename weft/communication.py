"""Programs of computation and communication: collectives split, moved, fused and run in chunks, by hand or searched.

::

    from weft import communication as comm

    step = comm.Builder("tensor parallel layer", ranks=4)
    x = step.input("x", (512, 1024), "sliced", axis=1)  # each rank has a quarter of the columns
    w = step.parameter("w", (1024, 1024), "sliced", axis=0)
    bias, residual = step.parameter("bias", (1024,)), step.input("residual", (512, 1024))
    total = step.all_reduce("total", step.matmul("xw", x, w))
    dropped = step.dropout("dropped", step.pointwise("biased", "add", total, bias), rate=0.1)
    program = step.build(step.pointwise("out", "add", dropped, residual))

    by_hand = comm.split(program, "total", axis=0)
    by_hand = comm.reorder(by_hand, ["biased", "dropped", "out"], "gather(total)")
    by_hand = comm.fuse(by_hand, ["total", "biased", "dropped", "slice(residual)", "out", "gather(out)"], "rest")
    by_hand = comm.overlap(by_hand, ["xw", "rest"], chunks=4)

    given = comm.random_values(program)
    assert abs(comm.results(by_hand, comm.run(by_hand, given))["out"]
               - comm.results(program, comm.run(program, given))["out"]).max() < 1e-12

    print(comm.tune(program, comm.Prices(bandwidth=50e9, memory=1e12, flops=50e12, launch=5e-6), effort=2.0))

:class:`Builder` writes a program; :func:`split`, :func:`reorder`, :func:`as_slice`, :func:`fuse` and :func:`overlap`
rewrite it, and refuse what would not compute the same. :func:`schedules` lists all that they reach, :func:`tune` has
the best of these found and proven under :class:`Prices` (:func:`prices_on` has those of a device), :func:`choices_of`
gives the problem that it solves. :func:`run` computes a program on virtual ranks in numpy; :class:`ProgramOnRank` runs
it on the ranks of ``torch.distributed``, its collectives beside its computation, and :class:`ShardedOptimizer` trains
a module with Adam or LAMB as reduce-scatter, update of slices and all-gather. :func:`function` registers a pointwise
function of one's own. All errors of programs are :class:`CommunicationError`, a ``ValueError``. The names are loaded
on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.solver.public_names import lazily

if TYPE_CHECKING:
    from weft.app.communication.lowering import Emulated
    from weft.app.communication.run import ProgramOnRank
    from weft.models.communication.builder import Builder, add_adam, add_lamb, add_sgd, data_parallel
    from weft.models.communication.functions import function
    from weft.models.communication.interpreter import random_values, results, run
    from weft.models.communication.passes.fuse import fuse
    from weft.models.communication.passes.overlap import overlap
    from weft.models.communication.passes.reorder import reorder
    from weft.models.communication.passes.split import as_slice, split
    from weft.models.communication.prices import Prices, prices_on
    from weft.models.communication.program import CommunicationError, Overlap
    from weft.models.communication.program import CommunicationProgram as Program
    from weft.models.communication.program import CommunicationTensor as Tensor
    from weft.models.communication.program import ProgramStage as Stage
    from weft.models.communication.search.problem import Choices, Tuned, choices_of, tune
    from weft.models.communication.search.schedules import ProgramSchedule as Schedule
    from weft.models.communication.search.schedules import Reached, schedules
    from weft.runtime.communication.failures import RankError
    from weft.runtime.communication.sharded_optimizer import ShardedOptimizer

__all__ = ["Builder", "Choices", "CommunicationError", "Emulated", "Overlap", "Prices", "Program", "ProgramOnRank",
           "RankError", "Reached", "Schedule", "ShardedOptimizer", "Stage", "Tensor", "Tuned", "add_adam", "add_lamb",
           "add_sgd", "as_slice", "choices_of", "data_parallel", "function", "fuse", "overlap", "prices_on",
           "random_values", "reorder", "results", "run", "schedules", "split", "tune"]

__getattr__, __dir__ = lazily(__name__)
