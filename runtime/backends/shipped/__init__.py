"""The backends that come with weft, a file each; :mod:`weft.runtime.backends.registry` lists them."""
