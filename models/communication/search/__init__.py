"""The best of the programs reachable by passes, its number of chunks and its order: one problem of all."""
