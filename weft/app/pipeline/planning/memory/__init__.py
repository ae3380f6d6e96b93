"""The memory of operators as part of what is decided: their chain, plans of it, and the one that is measured to fit."""
