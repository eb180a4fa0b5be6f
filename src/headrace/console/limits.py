"""Every limit of the console, by name: what one browser, or one that means harm, can make it hold or do."""

from __future__ import annotations

CONNECTIONS_MAX = 128
HEAD_BYTES_MAX = 256 * 1024
"""The address of the next page of messages has a range of offsets for each partition, of thousands."""
HEAD_S = 5.0
"""From the first byte, or from the connection, to the end of a request's header."""
BODY_S = 20.0
IDLE_S = 30.0
BODY_BYTES_MAX = 4 * 1024 * 1024

WORKERS = 4
"""Threads, each with a client, that answer requests."""
WAITING_MAX = 64
"""Requests that wait for a worker."""
LIVE_MAX = 48
TAILS_MAX = 8
SEARCHES_MAX = 4
EXPORTS_MAX = 2
STREAM_ITEMS_MAX = 64
"""Events of a stream that wait for a slow browser; the thread that makes them waits then."""
HEARTBEAT_S = 10.0

PAGE_ROWS_MAX = 500
NAMES_MAX = 5_000
"""Names of one kind that the command palette is given."""

MESSAGES_MAX = 500
"""Messages of one answer, and matches of one search."""
PAGE_S = 4.0
"""That a page of messages is looked for, where compaction or aborted transactions have left few."""
PREVIEW_BYTES_MAX = 8 * 1024
"""Of a key, a value or a header in a list; the whole is asked for when it is opened."""
RECORD_BYTES_MAX = 1024 * 1024
"""Of a key, a value or a header that is opened."""
BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Of one batch when it is decompressed."""
CHUNK_OFFSETS_MAX = 200_000
HELD_BYTES_MAX = 32 * 1024 * 1024
"""Of messages that were found and wait to be put in order."""
SEARCH_RECORDS_MAX = 20_000_000
SEARCH_S = 300.0
SEARCH_TEXT_MAX = 1_000
EXPORT_RECORDS_MAX = 1_000_000
TAIL_RECORDS_PER_S_MAX = 200
TAIL_POLL_S = 0.25
PRODUCE_COUNT_MAX = 1_000

SAMPLE_S = 1.0
SAMPLE_SHARE_MAX = 0.04
"""Of one core: a sample that costs more is taken less often."""
METADATA_S = 2.0
SIZES_S = 10.0
GROUPS_S = 5.0
GROUPS_PER_SAMPLE = 50
GROUPS_MAX = 1_000
PARTITIONS_PER_REQUEST = 4_000
FINE_POINTS = 600
COARSE_S = 30.0
COARSE_POINTS = 2_880
SERIES_MAX = 2_500
CHART_POINTS_MAX = 400
