"""How do processes become the ranks of a plan, and what ends them when one of them fails?

In: the environment that ``torchrun`` sets, or a command to start once for each rank. Ranks are started only in
:mod:`~weft.runtime.ranks.launch`; they end with their parent process (:mod:`~weft.runtime.ranks.children`), and their
shared folders are removed with them (:mod:`~weft.runtime.ranks.leftovers`). Out: a
:class:`~weft.runtime.ranks.session.Session`: this process as one rank, its process groups, and the clock that all ranks
share. Ranks find each other in :mod:`~weft.runtime.ranks.joining`, or inside an existing process group
(:mod:`~weft.runtime.ranks.within`); ranks of one machine use its loopback interface
(:mod:`~weft.runtime.ranks.loopback`), and NCCL where they have GPUs for it (:mod:`~weft.runtime.ranks.gpus`).
:mod:`~weft.runtime.ranks.watch` stops all ranks, with a sentence, when one fails or hangs, by the status that ranks
publish (:mod:`~weft.runtime.ranks.words`). :mod:`~weft.runtime.ranks.stopwatch` times blocks;
:mod:`~weft.runtime.ranks.health` refuses losses that are not finite.
"""
