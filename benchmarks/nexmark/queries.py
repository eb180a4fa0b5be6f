"""The questions of Nexmark as pipelines: functions from streams to a result, in the words of Spark SQL and headrace.

Every stream comes with a watermark on ``dateTime`` that is four seconds behind (``streams``). Each function works on
bounded frames too, with the same answer. ``mode`` says what a stream of results means:

    append   every row is final, and comes once
    update   a row replaces the one with the same ``key``: a view, kept by ``foreachBatch`` in a table or a keyed topic
    changes  the same, from a view of headrace's, whose changes are appended

Where Nexmark leaves the order of equal rows open, the docstring says what is done here, and the judge does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from benchmarks.nexmark.winning_bids import winning_bids

__all__ = ["QUERIES", "Mode", "Query", "State"]

Mode = Literal["append", "update", "changes"]
State = Literal["disk", "memory"]

AUCTION = "id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra"
BID = "auction, bidder, price, channel, url, dateTime, extra"
TOP = 10
TIES_MAX = 10
RANKS = ((None, 10_000), (10_000, 1_000_000), (1_000_000, None))
"""Cheap, middling and dear bids: from, to, in cents."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question: its pipeline, the columns it needs of each stream, and what its rows mean."""

    name: str
    build: Callable[..., DataFrame]
    reads: dict[str, tuple[str, ...]]
    mode: Mode
    key: tuple[str, ...]
    state: State


QUERIES: dict[str, Query] = {}
Builder = Callable[..., DataFrame]


def query(mode: Mode = "append", key: str = "", *, state: State = "disk", **reads: str) -> Callable[[Builder], Builder]:
    """Put a pipeline on the list; its arguments are the streams by their names, and ``side`` the table of q13.

    ``state`` is what ``hr.pipeline`` would be given: Spark's own joins and aggregations are in memory, but for q18 and
    q19, whose large rows gain nothing there.
    """

    def enter(build: Builder) -> Builder:
        columns = {kind: names(text) for kind, text in reads.items()}
        QUERIES[build.__name__] = Query(build.__name__, build, columns, mode, names(key), state)
        return build

    return enter


def names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


# ---- row by row ----------------------------------------------------------------------------------------------------


@query(bid="auction, bidder, price, dateTime, extra")
def q0(bid: DataFrame) -> DataFrame:
    """Every bid as it is: what reading costs."""
    return bid


@query(bid="auction, bidder, price, dateTime, extra")
def q1(bid: DataFrame) -> DataFrame:
    """Bids with their price in euros."""
    return bid.withColumn("price", euros())


@query(bid="auction, price")
def q2(bid: DataFrame) -> DataFrame:
    """Bids on every 123rd auction."""
    return bid.where("auction % 123 = 0")


@query(bid="auction, bidder, price, dateTime, extra")
def q14(bid: DataFrame) -> DataFrame:
    """Bids of some size in euros, with the time of day, and how often there is a ``c`` in what else they say."""
    hour = F.hour("dateTime")
    time_of_day = (
        F.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime").otherwise("otherTime")
    )
    return bid.where((euros() > 1_000_000) & (euros() < 50_000_000)).select(
        "auction",
        "bidder",
        euros().alias("price"),
        time_of_day.alias("bidTimeType"),
        "dateTime",
        "extra",
        (F.length("extra") - F.length(F.replace("extra", F.lit("c"), F.lit("")))).alias("c_counts"),
    )


@query(bid="auction, bidder, price, channel, url")
def q22(bid: DataFrame) -> DataFrame:
    """Bids with the three folders of their address."""
    parts = F.split("url", "/")
    folders = [F.get(parts, F.lit(3 + at)).alias(f"dir{1 + at}") for at in range(3)]
    return bid.select("auction", "bidder", "price", "channel", *folders)


def euros() -> Column:
    return F.expr("0.908 * price")


# ---- beside a table, and beside each other -------------------------------------------------------------------------


@query(bid="auction, bidder, price, dateTime")
def q13(bid: DataFrame, side: DataFrame) -> DataFrame:
    """Bids with a value from a bounded table, which every task holds."""
    found = bid.join(F.broadcast(side), F.col("auction") % 10_000 == F.col("key"))
    return found.select("auction", "bidder", "price", "dateTime", "value")


@query(auction="id, seller, category, dateTime", person="id, name, city, state, dateTime", state="memory")
def q3(auction: DataFrame, person: DataFrame) -> DataFrame:
    """Who sells things of category 10 in three states.

    Nexmark sets no bound in time between a person and an auction, so both are held for good: Spark's own join of two
    streams.
    """
    sold = auction.where("category = 10").select(F.col("id").alias("auction"), "seller")
    there = person.where(F.col("state").isin("OR", "ID", "CA")).select("id", "name", "city", "state")
    return sold.join(there, F.col("seller") == F.col("id")).select(
        "name", "city", "state", F.col("auction").alias("id")
    )


@query(auction="id, seller, dateTime", person="id, name, dateTime", state="memory")
def q8(auction: DataFrame, person: DataFrame) -> DataFrame:
    """Who registered and opened an auction within the same ten seconds: told when these are over, each seller once.

    Both streams are one here, and a window's rows of an id are those of a person and of its auctions: one aggregation,
    where a join would be followed by the removal of its duplicates.
    """
    new = person.select("dateTime", "id", "name")
    sold = auction.select("dateTime", F.col("seller").alias("id"), F.lit(None).cast("string").alias("name"))
    both = new.unionByName(sold).groupBy(F.window("dateTime", "10 seconds"), "id")
    found = both.agg(F.collect_set("name").alias("names"), F.count_if(F.col("name").isNull()).alias("auctions"))
    seller = found.where("auctions > 0").select("id", F.explode("names").alias("name"), F.col("window.start"))
    return seller.withColumnRenamed("start", "starttime")


@query(bid=BID, auction=AUCTION, state="memory")
def q20(bid: DataFrame, auction: DataFrame) -> DataFrame:
    """Bids on auctions of category 10, with all there is to know of the auction.

    Nexmark sets no bound in time, which would hold every bid for good. Here a bid belongs to an auction that opened at
    most twenty seconds before or ten seconds after it. Auctions are bid on for a shorter time: the answer is the same.
    """
    dear = auction.where("category = 10").select(
        "id",
        "itemName",
        "description",
        "initialBid",
        "reserve",
        F.col("dateTime").alias("auction_dateTime"),
        "expires",
        "seller",
        "category",
        F.col("extra").alias("auction_extra"),
    )
    near = F.expr(
        "dateTime >= auction_dateTime - interval 10 seconds and dateTime <= auction_dateTime + interval 20 seconds"
    )
    return bid.join(dear, (F.col("auction") == F.col("id")) & near).drop("id")


@query(auction=AUCTION, bid="auction, bidder, price, dateTime, extra")
def q9(auction: DataFrame, bid: DataFrame) -> DataFrame:
    """The winning bid of each auction: the highest while it was open; of equal ones the earlier, then the lower bidder.

    Spark SQL cannot say this on a stream: the winner changes until the auction is over. ``winning_bids`` waits for the
    watermark to pass the expiry and gives each winner once, on headrace's keyed state.
    """
    return winning_bids(auction, bid)


@query("changes", "category", auction="id, category, dateTime, expires", bid="auction, bidder, price, dateTime")
def q4(auction: DataFrame, bid: DataFrame) -> DataFrame:
    """What auctions of a category end at, on average, with how many there were: kept up to date as auctions end.

    The winners come once each and are rows of a view, each with the weight of one.
    """
    won = winning_bids(auction, bid).select("category", "price", F.lit(1).alias("_weight"))
    averages = hr.view(won, "category", {"total": F.sum("price"), "auctions": F.count("*")})
    known = averages.select("after.*")
    return known.select("category", "auctions", F.expr("total div auctions").alias("average"))


# ---- windows -------------------------------------------------------------------------------------------------------


@query(bid="auction, dateTime", state="memory")
def q5(bid: DataFrame) -> DataFrame:
    """Which auctions had the most bids in the last ten seconds, told every two; all of them where several had as many.

    Bids are counted once for every two seconds, and the counts of five such panes are added: five times fewer rows than
    if each bid went into five windows. Final when the watermark has passed a window.
    """
    panes = bid.groupBy(F.window("dateTime", "2 seconds"), "auction").agg(F.count("*").alias("bids"))
    last = F.window(F.window_time("window"), "10 seconds", "2 seconds")
    counts = panes.groupBy(last, "auction").agg(F.sum("bids").alias("num"))
    each = F.struct("auction", "num")
    most = counts.groupBy("window").agg(F.max("num").alias("most"), F.collect_list(each).alias("all"))
    hot = most.select("window", F.explode(F.filter("all", lambda one: one["num"] == F.col("most"))).alias("hot"))
    return hot.select(F.col("window.start").alias("starttime"), "hot.auction", "hot.num")


@query(bid="auction, price, bidder, dateTime, extra", state="memory")
def q7(bid: DataFrame) -> DataFrame:
    """The highest bids of every ten seconds: all with the highest price, up to ten of them.

    Nexmark's own text also finds a bid exactly on the end of a window in the window before; here it is in one only.
    """
    row = F.struct("auction", "price", "bidder", "dateTime", "extra")
    highest = F.max_by(row, "price", TIES_MAX).alias("highest")
    found = bid.groupBy(F.window("dateTime", "10 seconds")).agg(F.max("price").alias("most"), highest)
    return found.select("most", F.explode("highest").alias("bid")).where("bid.price = most").select("bid.*")


@query(bid="bidder, dateTime")
def q11(bid: DataFrame) -> DataFrame:
    """How often each bidder bid before pausing for ten seconds. Final when the watermark has passed the pause."""
    visits = hr.windows(bid, "bidder", event_time="dateTime", window=hr.session_window("10 seconds"))
    return visits.select("bidder", F.col("events").alias("bid_count"), "session_start", "session_end")


# ---- a day at a time, the latest, the top --------------------------------------------------------------------------


@query(bid="auction, bidder, price, dateTime", state="memory")
def q15(bid: DataFrame) -> DataFrame:
    """Of each day: bids, bidders and auctions, all and by three ranks of price; exact, told when the day is over.

    Spark cannot count distinct values on a stream. But a day's bids per bidder, and then its bidders, are two
    aggregations, the second over what the first has finished.
    """
    return distinct_counts(bid, [], [])


@query(bid="auction, bidder, price, channel, dateTime", state="memory")
def q16(bid: DataFrame) -> DataFrame:
    """The same as q15 for each channel, and the last minute in which it had a bid."""
    return distinct_counts(bid, ["channel"], [F.date_format(F.max("last"), "HH:mm").alias("minute")])


def distinct_counts(bid: DataFrame, keys: list[str], further: list[Column]) -> DataFrame:
    """Each bid goes in twice, as one of its bidder and as one of its auction; both are then counted apart."""
    who = F.explode(F.array(*[F.struct(F.lit(name).alias("role"), F.col(name).alias("id")) for name in ROLES]))
    rows = bid.select(*keys, "dateTime", "price", who.alias("who")).select("*", "who.role", "who.id")
    bids = [F.count_if(rank(each)).alias(f"in_{number}") for number, each in enumerate(RANKS, 1)]
    last = F.max("dateTime").alias("last")
    per_id = rows.groupBy(F.window("dateTime", "1 day"), *keys, "role", "id").agg(
        F.count("*").alias("in_0"), last, *bids
    )
    counts = []
    for number in range(len(RANKS) + 1):
        label = f"rank{number}" if number else "total"
        of_bidders = F.when(F.col("role") == "bidder", F.col(f"in_{number}"))
        counts.append(F.sum(of_bidders).alias(f"{label}_bids"))
        for role in ROLES:
            seen = (F.col("role") == role) & (F.col(f"in_{number}") > 0)
            counts.append(F.count_if(seen).alias(f"{label}_{role}s"))
    found = per_id.groupBy("window", *keys).agg(*counts, *further)
    return found.withColumn("day", F.date_format("window.start", "yyyy-MM-dd")).drop("window")


ROLES = ("bidder", "auction")


def rank(bounds: tuple[int | None, int | None]) -> Column:
    low, high = bounds
    above = F.lit(True) if low is None else F.col("price") >= low
    return above if high is None else above & (F.col("price") < high)


@query("update", "auction, day", bid="auction, price, dateTime", state="memory")
def q17(bid: DataFrame) -> DataFrame:
    """Of each auction and day: bids, all and by rank, and the lowest, highest, average and sum of their prices."""
    by_rank = [F.count_if(rank(each)).alias(f"rank{number}_bids") for number, each in enumerate(RANKS, 1)]
    price = [F.min("price").alias("min_price"), F.max("price").alias("max_price"), F.sum("price").alias("sum_price")]
    day = F.date_format("dateTime", "yyyy-MM-dd").alias("day")
    found = bid.groupBy("auction", day).agg(F.count("*").alias("total_bids"), *by_rank, *price)
    return found.withColumn("avg_price", F.expr("sum_price div total_bids"))


@query("update", "bidder, auction", bid=BID)
def q18(bid: DataFrame) -> DataFrame:
    """The last bid of each bidder on each auction; of those at the same time the highest, then by ``extra``."""
    order = F.struct("dateTime", "price", F.col("extra").alias("tie"))
    columns = [name for name in bid.columns if name not in ("bidder", "auction")]
    last = F.max_by(F.struct(*columns), order).alias("last")
    return bid.groupBy("bidder", "auction").agg(last).select("auction", "bidder", "last.*")


@query("update", "auction, rank_number", bid=BID)
def q19(bid: DataFrame) -> DataFrame:
    """The ten highest bids of each auction; of equal prices the later, then the higher bidder, then by ``extra``."""
    order = F.struct("price", "dateTime", "bidder", F.col("extra").alias("tie"))
    columns = [name for name in bid.columns if name != "auction"]
    top = bid.groupBy("auction").agg(F.max_by(F.struct(*columns), order, TOP).alias("top"))
    placed = top.select("auction", F.posexplode("top").alias("at", "bid"))
    return placed.select("auction", "bid.*", (F.col("at") + 1).alias("rank_number"))
