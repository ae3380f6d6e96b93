"""What are the families of the zoo made of? A builder and tensors in, tensors out, operators added on the way.

:class:`~weft.models.zoo.lib.builder.GraphBuilder` puts a graph together; the other files add the operators of one kind
of block each: linear layers and norms, attention, transformer layers, learned tables, convolutions, mixtures of
experts.
"""
