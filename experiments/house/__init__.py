"""The house itself: which room imports which, how large the rooms are, and their picture."""
