"""Operators of a captured graph as layers with deferred weight gradients."""
