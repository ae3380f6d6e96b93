"""Programs of computation and communication on ranks: :mod:`weft.app.communication.lowering` generates their
instructions, :mod:`weft.app.communication.run` runs them in the caller's process group."""
