"""The latency of one micro-batch while another one starts every period.

The input is a source and an optional floor of throughput; the output is a :class:`~weft.app.latency.serving.Serving`:
the least latency at the floor, or the front of latency against throughput, with proven bounds over all placements.
:mod:`~weft.app.latency.search` calls the solver, :mod:`~weft.app.latency.serving` keeps the results of one placement.
"""
