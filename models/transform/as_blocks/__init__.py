"""A plan as a block problem: its parts and communications, what they cost and what they hold, for the search."""
