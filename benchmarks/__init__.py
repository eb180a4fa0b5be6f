"""One benchmark for each hop of a record's way, each figure beside a peer or a physical limit of the same run.

``python -m benchmarks`` runs them all; ``docs/benchmarks.md`` tells how to read the tables and keeps the last results.
"""
