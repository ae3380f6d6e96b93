"""The command line: arguments, output and interrupts.

The inputs are arguments and signals; the outputs are printed results, files and an exit status. :mod:`~weft.cli.main`
parses and runs one of :mod:`~weft.cli.commands`, one file each, with the public function of the same name, whose
signature defines the command's options; shared code is in :mod:`~weft.cli.lib`.
"""
