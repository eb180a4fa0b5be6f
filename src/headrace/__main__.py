"""``python -m headrace`` is ``headrace``."""

from headrace.cli import main

main()
