"""What our code does for the Python workers that Spark runs it in.

Spark keeps a worker for many tasks and has it collect garbage after each, all of it. A worker that has imported pyarrow
and pandas holds some 300,000 objects that are not garbage and never will be; looking at them all took 50 ms of a core
after every task, more than most tasks of a micro-batch take themselves. Python can be made to skip what is there
now (``gc.freeze``).
"""

from __future__ import annotations

import gc

__all__ = ["settle"]

TASKS_SETTLED = 3
"""Some modules are first imported in a worker's second task or so. Later on, what is there may be garbage one day."""

_tasks = 0


def settle() -> None:
    """To be called when a task begins."""
    global _tasks
    if _tasks < TASKS_SETTLED:
        _tasks += 1
        gc.freeze()
