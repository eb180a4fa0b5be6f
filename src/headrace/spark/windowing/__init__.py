"""Windows, sessions, and questions in one line: what the rows of an interval add up to.

``windows``, ``sessions`` and ``analytics`` are the functions on DataFrames, ``assignment`` says which windows a row
belongs to, and each ``…_operator`` is the part in columns, which never imports Spark. The folder is not called
``windows`` because ``hr.windows`` is the function: a submodule of that name would take its place.
"""
