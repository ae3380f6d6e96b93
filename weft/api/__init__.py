"""The public functions of :mod:`weft`: what they mean and accept. What they do is loaded when they are called."""
