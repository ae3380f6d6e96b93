"""Which weft this is. It stands below everything, so that the front door and its commands can say it alike."""

from __future__ import annotations

#: The packaging reads it from here, too.
VERSION = "0.1.0"
