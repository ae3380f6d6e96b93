"""Limits on files. A path in, its bytes or text out; or one sentence on why it is not read.

Limits on sizes are in one place (:mod:`weft.models.files.limits`); :mod:`weft.models.files.reading` reads whole files
of a limited size and checks names.
"""
