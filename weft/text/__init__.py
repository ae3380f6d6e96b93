"""How numbers, names, tables and findings read.

In come values with their units, tables of :mod:`rich`, and what the search's diagnosis found; out goes text for people.
The room is the front door's lowest: commands, results and pictures use it, and it uses the solver's data alone. Names
are exported by their files: :mod:`~weft.text.units` (numbers and names), :mod:`~weft.text.tables` (also which points to
tell of), :mod:`~weft.text.sentences` (an explanation), and :mod:`~weft.text.version`.
"""
