"""Compaction: keeping the latest record of every key.

    planning.py   which segments are due
    owner.py      starts the child and waits for its result
    child.py      the process that does the work
    cleaner.py    what stays of a batch
    swap.py       replacing segments so that a crash leaves the old ones or the new one

The serving process plans and swaps. Reading and rewriting gigabytes happens in a child.
"""
