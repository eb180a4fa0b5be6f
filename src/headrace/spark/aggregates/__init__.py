"""What rows add up to, in columns and without Spark.

``totals`` for rows that only come (windows, sessions, rolling values), ``retracting`` for rows that come and go
(views), ``sketches`` for counts and percentiles with a stated error. Nothing here knows windows or keys: an operator
hands over rows, the numbers of their groups, and what the groups hold.
"""
