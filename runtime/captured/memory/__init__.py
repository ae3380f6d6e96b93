"""Activation memory of a captured model: a decision per operator, and stages that carry it out."""
