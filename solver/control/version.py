"""weft's version. It is below everything else, so that searches, commands and the front door can share it."""

from __future__ import annotations

#: Also read by the packaging.
VERSION = "0.1.0"
