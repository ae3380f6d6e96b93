"""What if several GPUs compute layers together? A spec in; placements on groups of GPUs as block problems out.

:mod:`weft.models.tensor_parallel.space` has the model at every degree: its operators divided
(:mod:`weft.models.tensor_parallel.shard`) by layouts and the exchanges between them
(:mod:`weft.models.tensor_parallel.layouts`), or in parts that run in turn
(:mod:`weft.models.tensor_parallel.co_shard`). :mod:`weft.models.tensor_parallel.shapes` makes the placements of each
shape: what all GPUs compute, and chains of stages on groups (:mod:`weft.models.tensor_parallel.group_chains`,
:mod:`weft.models.tensor_parallel.group_split`), also with several chunks a group
(:mod:`weft.models.tensor_parallel.group_rows`).
:mod:`weft.models.tensor_parallel.bound.any_placement` says what no placement on groups can go below.
"""
