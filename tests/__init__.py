"""The proof. A package so that tests share their servers as ``tests.servers``."""
