"""weft's version. It is below everything else, so that the front door and its commands can share it."""

from __future__ import annotations

#: Also read by the packaging.
VERSION = "0.1.0"
