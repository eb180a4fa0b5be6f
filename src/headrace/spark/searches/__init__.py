"""Stored searches that are matched against each event: ``hr.match_searches``.

``query`` says what a search is, ``language`` reads its text, ``analysis`` makes words and numbers of columns,
``compiling`` turns a search into a tree of conditions. ``index`` holds all searches and finds candidates by their
rarest condition, ``matching`` tests candidates against a batch of events, in columns. ``search_operator`` stands on the
state kernel. Only ``searches`` knows Spark.
"""
