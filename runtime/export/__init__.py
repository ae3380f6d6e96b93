"""Schedules in the formats of other tools, and back. No room but ``weft`` looks in here."""
