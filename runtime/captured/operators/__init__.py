"""Operators of a captured graph: which are layers whose weight gradient can wait, by which formula, and which learn."""
