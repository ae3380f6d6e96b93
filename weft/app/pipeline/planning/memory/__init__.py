"""Plans which activations are kept, recomputed or offloaded: the chain of operators, plans of it, and their trials."""
