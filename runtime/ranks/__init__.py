"""How do processes become the ranks of a plan, and what ends them when one of them fails?

In: the environment that ``torchrun`` sets, or a command to start once for each rank
(:mod:`~weft.runtime.ranks.launch`, the only place where ranks are started; they end with whoever starts them, by
:mod:`~weft.runtime.ranks.children`, and so does what they share, by :mod:`~weft.runtime.ranks.leftovers`). Out: a
:class:`~weft.runtime.ranks.session.Session`: this process as one rank, its process groups, and the clock that all ranks
share. Ranks find each other in :mod:`~weft.runtime.ranks.joining`, or inside a group that there is
(:mod:`~weft.runtime.ranks.within`); those of one machine on its loopback interface
(:mod:`~weft.runtime.ranks.loopback`); :mod:`~weft.runtime.ranks.watch` stops all of them, with a sentence, when one
fails or hangs, by the :mod:`~weft.runtime.ranks.words` that they say of themselves;
:mod:`~weft.runtime.ranks.stopwatch` times blocks; :mod:`~weft.runtime.ranks.health` refuses losses that are not finite.
"""
