"""Optima of small problems by other ways than the search's; nothing here uses the search."""
