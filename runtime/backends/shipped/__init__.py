"""weft's own backends, a file each; :mod:`weft.runtime.backends.registry` lists them."""
