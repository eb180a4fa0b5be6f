"""Event time: watermarks per source, what holds one back, and clocks of devices that are wrong.

Owns ``hr.watermark``, ``hr.explain_watermark`` and ``hr.correct_clock``. It never decides what becomes of a late row:
that is the operator's.
"""
