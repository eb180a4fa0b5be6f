"""Partition logs on disk. Knows no protocol: it takes record batches and gives file ranges."""

from __future__ import annotations
