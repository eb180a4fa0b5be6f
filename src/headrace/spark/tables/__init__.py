"""Tables that change: changes in their one form, joins with them, and views kept up to date.

``changelog``, ``joins`` and ``views`` are the functions on DataFrames; ``join_operators``, ``view_operators`` and
``grouped`` are the parts in columns, which never import Spark. What a change does to rows is said once, in
``headrace/changes.py``. Nothing here writes to a target.
"""
