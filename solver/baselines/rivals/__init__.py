"""Rivals that search: baselines that use costs and the devices' memory, and try many orders, one file each.

``zb_auto`` and ``zb_v_auto`` are programs that came with publications, ``building_blocks`` searches the published space
of building blocks, ``greedy`` and ``stream`` schedule any block graph, ``round_list`` runs whose micro-batches differ.
The other files support them: ``placing`` puts one operation after the other, ``weights_anew`` fills in weight
gradients, ``block_choices``, ``laid_out`` and ``reordering`` list the candidates of a search over building blocks,
``demand`` orders blocks that take memory late, ``twins`` are devices that run the same.
"""
