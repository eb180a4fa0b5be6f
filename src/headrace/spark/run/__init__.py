"""Pipelines and what keeps them running: sessions, checkpoints, locks, restarts and rebuilds.

Owns ``hr.pipeline``, ``hr.session`` and ``headrace run``. It never looks into rows: what a query computes belongs
to the other folders, what of a plan matters to a checkpoint to ``spark/plan/`` and ``spark/shape.py``.
"""
