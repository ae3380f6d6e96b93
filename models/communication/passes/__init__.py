"""What rewrites a program of computation and communication and keeps its values: a pass to a file.

Each is a function from a program to a program. It raises
:class:`~weft.models.communication.program.CommunicationError` with one sentence where it is not legal.
"""
