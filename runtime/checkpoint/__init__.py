"""How is training saved, and resumed bit for bit, even if a machine failed while writing?

In: a plan, a session and one rank's training. Out: a folder per checkpoint, whose files are verified by checksums
(:mod:`~weft.runtime.checkpoint.files`), and the restored training (:mod:`~weft.runtime.checkpoint.checkpoint`).
:mod:`~weft.runtime.checkpoint.state` flattens the state into tensors; :mod:`~weft.runtime.checkpoint.signature`
distinguishes the stages of different models.
"""
