"""The building blocks of the zoo's families. A builder and tensors in, tensors out, with operators added to the
builder.

:class:`~weft.models.zoo.lib.builder.GraphBuilder` assembles a graph; the other files add the operators of one kind
of block each: linear layers and norms, attention, transformer layers, learned tables, convolutions, mixtures of
experts.
"""
