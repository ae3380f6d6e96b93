"""The command line: what a user types, sees and may interrupt.

In come arguments and signals; out come printed results, files and an exit status. :mod:`~weft.cli.main` parses and runs
one of :mod:`~weft.cli.commands`, a file each, with the public function of the same name, whose signature says what the
command accepts; what they share is in :mod:`~weft.cli.lib`.
"""
