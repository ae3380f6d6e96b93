"""A running pipeline: steps, state, what each rank is fed, and what is reported."""
