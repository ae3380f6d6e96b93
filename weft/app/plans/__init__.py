"""Plans written by hand, made ready to run: :mod:`weft.app.plans.lowering` makes each rank's instructions."""
