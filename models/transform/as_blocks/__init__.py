"""A plan as a block problem: its parts and communications, their costs and memory, for the search."""
