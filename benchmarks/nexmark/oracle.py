"""The judge: the same questions as batch SQL in DuckDB, over the same events, and how two answers are compared.

Times are UTC without a zone here, so that no setting of DuckDB's plays a part.
"""

from __future__ import annotations

from functools import cache

import duckdb
import pyarrow as pa

from benchmarks.nexmark.generator import House, side_input
from benchmarks.nexmark.queries import TOP, Query

__all__ = ["SQL", "Difference", "Judge"]

RANKS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price between 10000 and 999999",
    "rank3": "price >= 1000000",
}
COUNTS = ", ".join(f"count(*) filter ({where}) as {label}_bids" for label, where in RANKS.items())
DISTINCT = ", ".join(
    f"count(distinct {role}) filter ({where}) as {label}_{role}s"
    for label, where in RANKS.items()
    for role in ("bidder", "auction")
)
DAY = "strftime(dateTime, '%Y-%m-%d') as day"
WINDOW = "time_bucket(interval 10 seconds, dateTime, timestamp '2000-01-01')"
WINNERS = """
    select a.*, b.bidder, b.price, b.dateTime as bid_dateTime, b.extra as bid_extra
    from auction a join bid b on a.id = b.auction and b.dateTime between a.dateTime and a.expires
    qualify row_number() over (partition by a.id order by b.price desc, b.dateTime, b.bidder) = 1
"""

SQL = {
    "q0": "select auction, bidder, price, dateTime, extra from bid",
    "q1": "select auction, bidder, (0.908 * price)::decimal(24, 3) as price, dateTime, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """,
    "q4": f"""
        select category, count(*) as auctions, sum(price)::bigint // count(*) as average
        from ({WINNERS}) group by category
    """,
    "q5": """
        with counts as (
            select w.starttime, auction, count(*) as num
            from (
                select auction, unnest(range(5)) as pane, dateTime,
                    time_bucket(interval 2 seconds, dateTime, timestamp '2000-01-01') as latest
                from bid
            ) b, lateral (select latest - pane * interval 2 seconds as starttime) w
            group by all
        )
        select * from counts qualify num = max(num) over (partition by starttime)
    """,
    "q7": f"""
        select auction, price, bidder, dateTime, extra from bid
        qualify price = max(price) over (partition by {WINDOW})
    """,
    "q8": f"""
        select distinct p.id, p.name, p.starttime
        from (select *, {WINDOW} as starttime from person) p
        join (select *, {WINDOW} as starttime from auction) a on p.id = a.seller and p.starttime = a.starttime
    """,
    "q9": WINNERS,
    "q11": """
        with paused as (
            select bidder, dateTime,
                dateTime - lag(dateTime) over (partition by bidder order by dateTime) < interval 10 seconds as goes_on
            from bid
        ), numbered as (
            select bidder, dateTime,
                count(*) filter (goes_on is not true) over (partition by bidder order by dateTime) as session
            from paused
        )
        select bidder, count(*) as bid_count, min(dateTime) as session_start,
            max(dateTime) + interval 10 seconds as session_end
        from numbered group by bidder, session
    """,
    "q13": """
        select auction, bidder, price, dateTime, value from bid join side on auction % 10000 = key
    """,
    "q14": """
        select auction, bidder, (0.908 * price)::decimal(24, 3) as price,
            case when hour(dateTime) between 8 and 18 then 'dayTime'
                 when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) as c_counts
        from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000
    """,
    "q15": f"select {DAY}, {COUNTS}, {DISTINCT} from bid group by day",
    "q16": f"""
        select channel, {DAY}, strftime(max(dateTime), '%H:%M') as minute, {COUNTS}, {DISTINCT}
        from bid group by channel, day
    """,
    "q17": f"""
        select auction, {DAY}, {COUNTS}, min(price) as min_price, max(price) as max_price,
            sum(price)::bigint // count(*) as avg_price, sum(price)::bigint as sum_price
        from bid group by auction, day
    """,
    "q18": """
        select * from bid
        qualify row_number() over (partition by bidder, auction order by dateTime desc, price desc, extra desc) = 1
    """,
    "q19": f"""
        select *, row_number() over (
            partition by auction order by price desc, dateTime desc, bidder desc, extra desc
        ) as rank_number
        from bid qualify rank_number <= {TOP}
    """,
    "q20": """
        select b.*, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime as auction_dateTime, a.expires,
            a.seller, a.category, a.extra as auction_extra
        from bid b join auction a on b.auction = a.id where a.category = 10
    """,
    "q22": """
        select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
            split_part(url, '/', 6) as dir3
        from bid
    """,
}


STEP = 200_000
"""Events that are put into DuckDB's tables at once."""


class Difference(AssertionError):
    """A stream's answer is not the judge's."""


class Judge:
    """DuckDB with the events of a house."""

    def __init__(self, house: House, count: int) -> None:
        self._sql = duckdb.connect()
        for first in range(0, count, STEP):
            for kind, made in house.events(first, min(first + STEP, count)):
                self._sql.register("made", naive(made.rows))
                insert = "insert into" if first else "create table"
                self._sql.execute(f"{insert} {kind} {'' if first else 'as'} from made")
                self._sql.unregister("made")
        self._sql.register("side", side_input())

    def close(self) -> None:
        self._sql.close()

    def answer(self, name: str) -> pa.Table:
        return self._sql.sql(SQL[name]).to_arrow_table()

    def check(self, query: Query, batches: list[pa.Table]) -> int:
        """Compare what a stream gave, micro-batch by micro-batch, with the answer; gives the number of its rows."""
        return self.compare(query.name, self.folded(query, batches))

    def compare(self, name: str, found: pa.Table, *, without: tuple[str, ...] = ()) -> int:
        """Equal as bags: each row as often here as there; but for the columns ``without``."""
        expected = self.answer(name).drop_columns(list(without))
        found = found.drop_columns(list(without))
        if sorted(found.column_names) != sorted(expected.column_names):
            raise Difference(f"{name}: columns {found.column_names}, expected {expected.column_names}")
        self._sql.register("found", naive(found).select(expected.column_names))
        self._sql.register("expected", expected)
        same_types = ", ".join(
            f'cast("{each.name}" as {kind}) as "{each.name}"' for each, kind in self._kinds(expected)
        )
        self._sql.execute(f"create or replace temp table typed as select {same_types} from found")
        too_much = self._sql.execute("select * from typed except all select * from expected limit 3").fetchall()
        missing = self._sql.execute("select * from expected except all select * from typed limit 3").fetchall()
        if too_much or missing:
            raise Difference(
                f"{name}: {found.num_rows} rows, expected {expected.num_rows}; "
                f"not expected: {too_much}; missing: {missing}"
            )
        return expected.num_rows

    def _kinds(self, expected: pa.Table) -> list[tuple[pa.Field, str]]:
        described = self._sql.execute("describe expected").fetchall()
        return list(zip(expected.schema, [row[1] for row in described], strict=True))

    def folded(self, query: Query, batches: list[pa.Table]) -> pa.Table:
        """What a view holds after all micro-batches."""
        numbered = [
            each.append_column("_batch", pa.array([at] * len(each), pa.int64())) for at, each in enumerate(batches)
        ]
        rows = pa.concat_tables(numbered)
        if query.mode == "append":
            return rows.drop_columns("_batch")
        self._sql.register("updates", naive(rows))
        keys = ", ".join(query.key)
        newest = f"row_number() over (partition by {keys} order by _batch desc) = 1"
        return self._sql.sql(f"select * exclude (_batch) from updates qualify {newest}").to_arrow_table()


def naive(rows: pa.Table) -> pa.Table:
    """Times without a zone: they are UTC throughout."""
    return rows.cast(pa.schema([pa.field(each.name, _naive(each.type)) for each in rows.schema]))


@cache
def _naive(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
