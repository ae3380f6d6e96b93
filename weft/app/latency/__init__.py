"""How long one micro-batch takes while another one starts every period.

In come a source and a floor of throughput, or none; out comes a :class:`~weft.app.latency.serving.Serving`: the least
latency at the floor, or the front of latency against throughput, with proven bounds over all placements.
:mod:`~weft.app.latency.search` asks the solver, :mod:`~weft.app.latency.serving` keeps what is known of one placement.
"""
