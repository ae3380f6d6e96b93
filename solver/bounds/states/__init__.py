"""Whole steps as sequences of states: the operations run so far, one after another in order of start.

If memory is tight only few sets of operations can ever have run while the others have not, so that dynamic programming
over these sets (Gromicho, van Hoorn, Saldanha-da-Gama and Timmer, Computers & Operations Research 2012, for the job
shop) finds the least makespan and proves it, for far larger instances than other exact searches. It is limited by
bounds from both sides, and in width, as in bounded dynamic programming (Bautista and Pereira, European Journal of
Operational Research 2009). With only the blocks of some devices it bounds the makespan of all.

* :mod:`~weft.solver.bounds.states.system`: the operations, their waits, their memory; of all devices or of some;
* :mod:`~weft.solver.bounds.states.layers`: all states after a number of operations, and those after one more;
* :mod:`~weft.solver.bounds.states.search`: layer after layer, without the states that another one makes superfluous, to
  the least makespan or a bound on it.
"""

from weft.solver.bounds.states.native import fits
from weft.solver.bounds.states.search import LeastMakespan, search
from weft.solver.bounds.states.system import Analysis, System, system_of

__all__ = ["Analysis", "LeastMakespan", "System", "fits", "search", "system_of"]
