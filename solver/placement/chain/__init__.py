"""Which stages in a row have the least largest load? The input is a placement problem, the output a judged placement
with a proven bound.

``place`` is the loop, ``constructions`` has one file per technique, ``chain_bracket`` the state of the search.
``least_latency`` is the second goal, ``missing_memory`` says why nothing fits.
"""
