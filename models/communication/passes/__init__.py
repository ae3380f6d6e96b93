"""Passes that rewrite a program of computation and communication and preserve its values: one file each.

Each is a function from a program to a program. It raises
:class:`~weft.models.communication.program.CommunicationError` with one sentence if it is illegal.
"""
