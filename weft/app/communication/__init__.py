"""Programs of computation and communication on ranks: :mod:`weft.app.communication.lowering` makes each one's
instructions, :mod:`weft.app.communication.run` runs them in the caller's process group."""
