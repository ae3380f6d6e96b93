"""What may a file hold? Limits on sizes, and what is wrong with a name (:mod:`weft.models.files.limits`)."""
