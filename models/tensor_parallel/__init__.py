"""Layers computed by several GPUs together. A spec in; placements on groups of GPUs as block problems out.

:mod:`weft.models.tensor_parallel.space` has the model at every degree: its operators divided
(:mod:`weft.models.tensor_parallel.shard`) by layouts and the exchanges between them
(:mod:`weft.models.tensor_parallel.part_times`), or in parts that run in turn
(:mod:`weft.models.tensor_parallel.co_shard`). :mod:`weft.models.tensor_parallel.shapes` makes the placements of each
shape: layers on all GPUs, and chains of stages on groups (:mod:`weft.models.tensor_parallel.group_chains`,
:mod:`weft.models.tensor_parallel.group_split`), also with several chunks a group
(:mod:`weft.models.tensor_parallel.group_rows`). :mod:`weft.models.tensor_parallel.bound.any_placement` is a lower bound
over all placements on groups.
"""
