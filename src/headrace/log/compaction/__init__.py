"""Compaction: keeping the latest record of every key.

    planning.py   which segments are due
    child.py      the process that does the work, and how its owner talks to it
    cleaner.py    what stays of a batch
    swap.py       replacing segments so that a crash leaves the old ones or the new one

The serving process plans and swaps. Reading and rewriting gigabytes happens in a child.
"""
