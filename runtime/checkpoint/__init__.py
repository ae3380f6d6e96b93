"""How is training saved, and resumed bit for bit, also after a machine failed while it was writing?

In: a plan, a session and one rank's training. Out: a folder a checkpoint, whose files are proven whole by checksums
(:mod:`~weft.runtime.checkpoint.files`), and the training as it was after that batch
(:mod:`~weft.runtime.checkpoint.checkpoint`). :mod:`~weft.runtime.checkpoint.state` makes tensors of everything that is
to be saved; :mod:`~weft.runtime.checkpoint.signature` tells stages of one model from those of another.
"""
