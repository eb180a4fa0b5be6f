"""SQLite as a source of changes: triggers write them into a table of the same file, and capture reads that.

Owns the triggers and that table. Never holds the file's write lock longer than one short transaction needs it.
"""
