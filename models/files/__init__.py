"""What may a file hold? A path in, its bytes or text out; or one sentence why it is not read.

Limits on sizes stand in one place (:mod:`weft.models.files.limits`); :mod:`weft.models.files.reading` reads whole files
of a limited size and says what is wrong with a name.
"""
