"""How do processes become the ranks of a plan, and what ends them when one of them fails?

In: the environment that ``torchrun`` sets, or a command to start once for each rank
(:mod:`~weft.runtime.ranks.launch`). Out: a :class:`~weft.runtime.ranks.session.Session`: this process as one rank, its
process groups, and the clock that all ranks share. Ranks find each other in :mod:`~weft.runtime.ranks.joining`;
:mod:`~weft.runtime.ranks.watch` stops all of them, with a sentence, when one fails or hangs;
:mod:`~weft.runtime.ranks.stopwatch` times blocks; :mod:`~weft.runtime.ranks.health` refuses losses that are not finite.
"""
