"""The shipped backends, one file each; :mod:`weft.runtime.backends.registry` lists them."""
