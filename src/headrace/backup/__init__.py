"""Backups of a data directory: consistent, incremental, and checked when they are restored.

    source.py      what is copied: a snapshot that a running broker has made, or the directory of a stopped one
    repository.py  where it is kept: objects by their checksum, and one manifest for each backup
    manifest.py    the bytes of a manifest
    create.py      one backup
    restore.py     a new data directory from a backup

``log/snapshot.py`` says how a broker that serves has one moment to be copied.
"""
