"""The leaves of a model's arguments, and batches cut into micro-batches."""
