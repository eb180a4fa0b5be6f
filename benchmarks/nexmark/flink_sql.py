"""The questions in Flink's SQL, after the texts that Flink is compared with, on the topics that headrace reads."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from benchmarks.nexmark.load import CLOSING, Loaded

__all__ = ["NOT_COMPARED", "SETTINGS", "SQL", "setup"]

SETTINGS = {
    "parallelism.default": "2",
    "table.local-time-zone": "UTC",
    "pipeline.object-reuse": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "state.backend.type": "hashmap",
    "execution.checkpointing.interval": "180 s",
    "execution.checkpointing.storage": "filesystem",
    "restart-strategy.type": "none",
}
"""As Flink's own Nexmark sets them, but with state in the heap, which is Flink's default and much its fastest place
(q9 took over eight minutes for two million events with RocksDB); and a job that fails is not tried again."""

NOT_COMPARED = {"q18": ("price", "channel", "url", "extra")}
"""Columns that Flink leaves open: of bids at the same time it keeps whichever came last."""

TYPES = {
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.timestamp("ms", "UTC"): "TIMESTAMP_LTZ(3)",
}
RANKS = {
    "total": None,
    "rank1": "price < 10000",
    "rank2": "price BETWEEN 10000 AND 999999",
    "rank3": "price >= 1000000",
}


def filtered(where: str | None) -> str:
    return "" if where is None else f" FILTER (WHERE {where})"


COUNTS = ", ".join(f"COUNT(*){filtered(where)} AS {label}_bids" for label, where in RANKS.items())
DISTINCT = ", ".join(
    f"COUNT(DISTINCT {role}){filtered(where)} AS {label}_{role}s"
    for label, where in RANKS.items()
    for role in ("bidder", "auction")
)
DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"
TEN_SECONDS = "DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND"
HOT = """
    SELECT window_start, window_end, auction, COUNT(*) AS num
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY window_start, window_end, auction
"""
WINNERS = """
    SELECT A.id, A.itemName, A.description, A.initialBid, A.reserve, A.`dateTime`, A.expires, A.seller, A.category,
        A.extra, B.bidder, B.price, B.`dateTime` AS bid_dateTime, B.extra AS bid_extra,
        ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC, B.bidder ASC) AS place
    FROM auction A JOIN bid B ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
"""
ALL_OF_WINNERS = """id, itemName, description, initialBid, reserve, `dateTime`, expires, seller, category, extra,
    bidder, price, bid_dateTime, bid_extra"""

SQL = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
    """,
    "q4": """
        SELECT category, COUNT(*) AS auctions, AVG(final) AS average FROM (
            SELECT MAX(B.price) AS final, A.category FROM auction A, bid B
            WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires GROUP BY A.id, A.category
        ) GROUP BY category
    """,
    "q5": f"""
        SELECT A.window_start AS starttime, A.auction, A.num FROM ({HOT}) A
        JOIN (SELECT window_start, window_end, MAX(num) AS most FROM ({HOT}) GROUP BY window_start, window_end) M
        ON A.window_start = M.window_start AND A.window_end = M.window_end AND A.num = M.most
    """,
    "q7": f"""
        SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra FROM TABLE(TUMBLE(TABLE bid, {TEN_SECONDS})) B
        JOIN (
            SELECT window_start, window_end, MAX(price) AS most FROM TABLE(TUMBLE(TABLE bid, {TEN_SECONDS}))
            GROUP BY window_start, window_end
        ) M ON B.window_start = M.window_start AND B.window_end = M.window_end AND B.price = M.most
    """,
    "q8": f"""
        SELECT P.id, P.name, P.window_start AS starttime FROM (
            SELECT id, name, window_start, window_end FROM TABLE(TUMBLE(TABLE person, {TEN_SECONDS}))
            GROUP BY id, name, window_start, window_end
        ) P JOIN (
            SELECT seller, window_start, window_end FROM TABLE(TUMBLE(TABLE auction, {TEN_SECONDS}))
            GROUP BY seller, window_start, window_end
        ) A ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end
    """,
    "q9": f"SELECT {ALL_OF_WINNERS} FROM ({WINNERS}) WHERE place <= 1",
    "q11": """
        SELECT bidder, COUNT(*) AS bid_count, window_start AS session_start, window_end AS session_end
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
    """,
    "q13": """
        SELECT B.auction, B.bidder, B.price, B.`dateTime`, S.`value`
        FROM (SELECT *, MOD(auction, 10000) AS k FROM bid) B
        JOIN side FOR SYSTEM_TIME AS OF B.`dateTime` AS S ON B.k = S.`key`
    """,
    "q14": """
        SELECT auction, bidder, 0.908 * price AS price,
            CASE WHEN HOUR(`dateTime`) >= 8 AND HOUR(`dateTime`) <= 18 THEN 'dayTime'
                 WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime'
                 ELSE 'otherTime' END AS bidTimeType,
            `dateTime`, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": f"SELECT {DAY} AS `day`, {COUNTS}, {DISTINCT} FROM bid GROUP BY {DAY}",
    "q16": f"""
        SELECT channel, {DAY} AS `day`, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`, {COUNTS}, {DISTINCT}
        FROM bid GROUP BY channel, {DAY}
    """,
    "q17": f"""
        SELECT auction, {DAY} AS `day`, {COUNTS}, MIN(price) AS min_price, MAX(price) AS max_price,
            AVG(price) AS avg_price, SUM(price) AS sum_price
        FROM bid GROUP BY auction, {DAY}
    """,
    "q18": """
        SELECT auction, bidder, price, channel, url, `dateTime`, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bid
        ) WHERE place <= 1
    """,
    "q19": """
        SELECT auction, bidder, price, channel, url, `dateTime`, extra, rank_number FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY auction ORDER BY price DESC, `dateTime` DESC, bidder DESC, extra DESC
            ) AS rank_number FROM bid
        ) WHERE rank_number <= 10
    """,
    "q20": """
        SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.`dateTime`, B.extra, A.itemName, A.description,
            A.initialBid, A.reserve, CAST(A.`dateTime` AS TIMESTAMP_LTZ(3)) AS auction_dateTime, A.expires, A.seller,
            A.category, A.extra AS auction_extra
        FROM bid B JOIN auction A ON B.auction = A.id
            AND B.`dateTime` BETWEEN A.`dateTime` - INTERVAL '10' SECOND AND A.`dateTime` + INTERVAL '20' SECOND
        WHERE A.category = 10
    """,
    "q22": """
        SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
            SPLIT_INDEX(url, '/', 5) AS dir3
        FROM bid
    """,
}


def setup(
    bootstrap: str, loaded: Loaded, side_csv: str, columns: Mapping[str, tuple[str, ...]] | None = None
) -> list[str]:
    """The topics as tables, without the events that close them, and the side table of q13, valid since long ago.

    ``columns`` are those that a query needs of each kind; without the time there is no watermark, as for headrace.
    """
    closing_ms = int(CLOSING.timestamp() * 1000)
    statements = ["DROP TABLE IF EXISTS side"]
    for kind, schema in loaded.schemas.items():
        statements += [f"DROP VIEW IF EXISTS {kind}", f"DROP TABLE IF EXISTS {kind}_topic"]
        if columns is not None and kind not in columns:
            continue
        wanted = schema.names if columns is None else columns[kind]
        clauses = [f"`{name}` {TYPES[schema.field(name).type]}" for name in wanted]
        is_event = f"`{wanted[0]}` >= 0"
        if "dateTime" in wanted:
            clauses.append("WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND")
            is_event = f"`dateTime` < TO_TIMESTAMP_LTZ({closing_ms}, 3)"
        statements += [
            f"""CREATE TABLE {kind}_topic ({", ".join(clauses)}) WITH (
                'connector' = 'kafka', 'topic' = '{loaded.topics[kind]}',
                'properties.bootstrap.servers' = '{bootstrap}', 'scan.startup.mode' = 'earliest-offset',
                'scan.bounded.mode' = 'latest-offset', 'format' = 'json')""",
            f"CREATE VIEW {kind} AS SELECT * FROM {kind}_topic WHERE {is_event}",
        ]
    statements.append(
        f"""CREATE TABLE side (`key` BIGINT, `value` STRING, since AS TO_TIMESTAMP_LTZ(0, 3),
            WATERMARK FOR since AS since, PRIMARY KEY (`key`) NOT ENFORCED)
            WITH ('connector' = 'filesystem', 'path' = 'file://{side_csv}', 'format' = 'csv')"""
    )
    return statements
