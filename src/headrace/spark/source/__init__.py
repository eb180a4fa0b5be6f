"""Topics as DataFrames: the Python data source ``headrace``, and ``hr.stream``, ``hr.batch``, ``hr.table``.

Owns the options of a read, positions and how ranges are cut into tasks, the decoding of raw batches into Arrow columns
(``decode``, ``starts``), values as typed columns (``values``, ``json_columns``), and the positions that lag tools see.
It never writes to a topic, keeps no state between batches, and knows no operator.
"""
