"""What a model is called with: its arguments, leaf by leaf, and batches cut into micro-batches."""
