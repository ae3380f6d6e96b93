"""Which stages in a row have the least largest load? A placement problem comes in, a judged placement with a proven
bound goes out.

``place`` is the loop, ``constructions`` holds one file a technique, ``chain_bracket`` what the search knows.
``least_latency`` is the second goal, ``missing_memory`` says why nothing fits.
"""
