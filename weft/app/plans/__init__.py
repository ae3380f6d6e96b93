"""Plans written by hand, prepared to run: :mod:`weft.app.plans.lowering` generates each rank's instructions."""
