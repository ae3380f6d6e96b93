"""Text formatting of numbers, names, tables and explanations.

The input is values with their units, tables of :mod:`rich`, and results of the diagnosis; the output is text. The room
is the lowest of the front door: commands, results and pictures use it, and it uses only the solver's data. Names are
exported by their files: :mod:`~weft.text.units` (numbers and names), :mod:`~weft.text.tables` (also the selection of
points), and :mod:`~weft.text.sentences` (an explanation).
"""
