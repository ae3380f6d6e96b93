"""A model's arguments, leaf by leaf, and batches cut into micro-batches."""
