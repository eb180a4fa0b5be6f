"""Patterns of events: what a user writes becomes an automaton, and the automaton runs over columns of rows.

``clauses``, ``syntax`` and ``expressions`` read the text of MATCH_RECOGNIZE, ``fluent`` is the form made by functions;
both end in the same ``automaton``. ``matcher`` runs it over the rows of many keys at once, with ``conditions`` on rows
matched before. ``skipping`` says where the next match may begin, ``measures`` what is said of one. ``operator`` hangs
this into the state kernel, ``explanation`` shows it to people. Runs are never kept in state: rows are kept, and runs
are computed again.
"""
