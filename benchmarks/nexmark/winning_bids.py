"""The winning bid of each auction, once: an operator on headrace's keyed state.

A bid counts if it was made while its auction was open: from the auction's time to its expiry, both included. The
highest price wins, then the earlier bid, then the lower bidder. Events come in any order within the lateness, so:

    a bid without its auction    waits. Once the watermark is past the bid, an auction that opened before it would come
                                 too late: the bid is forgotten
    an auction                   takes what waits for it, and of all its bids keeps the best so far
    the watermark past expiry    nothing can change any more: auction and bid are given out together, if there is a bid
    bids after that              are dropped at once, as long as the auction is remembered to be closed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.kernel import apply_operator, arrow_schema
from headrace.spark.state.operator import BEGINNING, Operator, Step, Touched, as_lists, flatten, latest, micros, whole

__all__ = ["WinningBids", "winning_bids"]

CLOSED_FOR_US = 20_000_000
"""How long after its expiry an auction is remembered to be closed."""
TIME = pa.timestamp("us", "UTC")


def winning_bids(auction: DataFrame, bid: DataFrame) -> DataFrame:
    """Auctions with their winning bid: the columns of both, the bid's with ``bid_`` before ``dateTime`` and ``extra``.

    Both frames may have fewer columns, but for ids, times and prices.
    """
    about = [name for name in auction.columns if name not in ("id", "dateTime", "expires")]
    names = [name for name in bid.columns if name not in ("auction", "dateTime")]
    offer = F.struct(*[F.col(name).alias("bid_extra" if name == "extra" else name) for name in names])
    opened = auction.select("id", "dateTime", "expires", F.struct(*about).alias("about"))
    made = bid.select(F.col("auction").alias("id"), "dateTime", offer.alias("offer"))
    rows = opened.unionByName(made, allowMissingColumns=True)
    schema = arrow_schema(rows.schema)
    operator = WinningBids(schema.field("about").type, schema.field("offer").type)
    return apply_operator(rows, operator, keys=["id"], event_time="dateTime", name="winning bids")


@dataclass(frozen=True, slots=True)
class Auctions:
    """What is known of each touched auction."""

    opened: Ints
    expires: Ints
    closed: Flags
    about: pa.StructArray

    @property
    def known(self) -> Flags:
        return self.opened != BEGINNING


@dataclass(frozen=True, slots=True)
class Bids:
    codes: Ints
    at: Ints
    offers: pa.StructArray

    def take(self, chosen: Ints) -> Bids:
        return Bids(self.codes[chosen], self.at[chosen], self.offers.take(pa.array(chosen)))


@dataclass(frozen=True, slots=True)
class WinningBids(Operator):
    about: pa.StructType
    """The result's columns of an auction besides its times."""
    offer: pa.StructType
    """The result's columns of a bid; ``price`` and ``bidder`` decide."""

    name: ClassVar[str] = "winning bids"

    @property
    def state(self) -> pa.StructType:
        waiting = pa.struct([("at", pa.int64()), ("offer", self.offer)])
        times = [("opened", pa.int64()), ("expires", pa.int64()), ("closed", pa.bool_())]
        return pa.struct([*times, ("about", self.about), ("bids", pa.list_(waiting))])

    @property
    def output(self) -> pa.Schema:
        times = [("dateTime", TIME), ("expires", TIME)]
        return pa.schema([("id", pa.int64()), *times, *self.about, ("bid_dateTime", TIME), *self.offer])

    @property
    def output_time(self) -> str:
        """Winners come in the order of expiry: an auction that is not late yet expires after the watermark."""
        return "expires"

    def step(self, touched: Touched) -> Step:
        auctions, bids = self._auctions(touched), self._bids(touched)
        best = self._best(auctions, bids)
        due = auctions.known & ~auctions.closed & (touched.now_us > auctions.expires)
        won = best.take(np.flatnonzero(due[best.codes]))
        closed = auctions.closed | due
        kept = self._kept(touched, auctions, closed, bids, best)
        known_open = auctions.known & ~closed
        return Step(
            output=self._output(touched, auctions, won),
            states=self._states(auctions, closed, kept, len(touched.keys)),
            keep=auctions.known | (np.bincount(kept.codes, minlength=len(closed)) > 0),
            wake_us=np.where(known_open, auctions.expires + 1, NEVER),
            expire_us=self._forget(auctions, closed, kept),
        )

    def _auctions(self, touched: Touched) -> Auctions:
        """Those that are held, and those that the batch brings."""
        count = len(touched.keys)
        rows = touched.rows
        brings = np.asarray(whole(rows.column("expires")).is_valid())
        new = rows.filter(pa.array(brings))
        codes = touched.codes[brings]
        opened = np.array(touched.held.field("opened").fill_null(BEGINNING), np.int64)
        expires = np.array(touched.held.field("expires").fill_null(BEGINNING), np.int64)
        opened[codes], expires[codes] = micros(new.column("dateTime")), micros(new.column("expires"))
        place = np.arange(count)
        place[codes] = count + np.arange(len(codes))
        about = pa.concat_arrays([touched.held.field("about"), whole(new.column("about"))]).take(pa.array(place))
        closed = np.asarray(touched.held.field("closed").fill_null(False), np.bool_)
        return Auctions(opened, expires, closed, about)

    def _bids(self, touched: Touched) -> Bids:
        made = np.asarray(whole(touched.rows.column("expires")).is_null())
        new = touched.rows.filter(pa.array(made))
        codes, held = flatten(touched.held.field("bids"))
        return Bids(
            np.r_[codes, touched.codes[made]],
            np.r_[np.asarray(held.field("at"), np.int64), micros(new.column("dateTime"))],
            pa.concat_arrays([held.field("offer"), whole(new.column("offer"))]),
        )

    def _best(self, auctions: Auctions, bids: Bids) -> Bids:
        """Of each open auction's bids the one that wins so far."""
        codes, at = bids.codes, bids.at
        counts = ~auctions.closed[codes] & (auctions.opened[codes] <= at) & (at <= auctions.expires[codes])
        places = np.flatnonzero(auctions.known[codes] & counts)
        price, bidder = (np.asarray(bids.offers.field(name), np.int64)[places] for name in ("price", "bidder"))
        order = places[np.lexsort((bidder, at[places], -price, codes[places]))]
        _, first = np.unique(codes[order], return_index=True)
        return bids.take(order[first])

    def _kept(self, touched: Touched, auctions: Auctions, closed: Flags, bids: Bids, best: Bids) -> Bids:
        """The best of open auctions, and bids whose auction may still come."""
        waits = bids.take(np.flatnonzero(~auctions.known[bids.codes] & (bids.at >= touched.now_us)))
        open_best = best.take(np.flatnonzero(~closed[best.codes]))
        offers = pa.concat_arrays([waits.offers, open_best.offers])
        both = Bids(np.r_[waits.codes, open_best.codes], np.r_[waits.at, open_best.at], offers)
        return both.take(np.argsort(both.codes, kind="stable"))

    def _states(self, auctions: Auctions, closed: Flags, kept: Bids, count: int) -> pa.StructArray:
        element = self.state.field("bids").type.value_type
        bids = pa.StructArray.from_arrays([pa.array(kept.at), kept.offers], fields=list(element))
        unknown = ~auctions.known
        needless = pa.array(np.where(unknown | closed, -1, np.arange(count)))
        about = auctions.about.take(pa.array(needless.to_numpy(), mask=unknown | closed))
        times = [pa.array(each, mask=unknown) for each in (auctions.opened, auctions.expires)]
        columns = [*times, pa.array(closed), about, as_lists(kept.codes, bids, count).cast(pa.list_(element))]
        return pa.StructArray.from_arrays(columns, fields=list(self.state))

    def _forget(self, auctions: Auctions, closed: Flags, kept: Bids) -> Ints:
        waits_until = latest(kept.codes, kept.at, len(closed)) + 1
        open_until = np.where(auctions.known, NEVER, waits_until)
        return np.where(closed, auctions.expires + CLOSED_FOR_US, open_until)

    def _output(self, touched: Touched, auctions: Auctions, won: Bids) -> pa.Table:
        codes = pa.array(won.codes)
        times = [pa.array(each[won.codes]).cast(TIME) for each in (auctions.opened, auctions.expires)]
        told = auctions.about.take(codes).flatten()
        bid = [pa.array(won.at).cast(TIME), *won.offers.flatten()]
        return pa.Table.from_arrays([touched.keys.field("id").take(codes), *times, *told, *bid], schema=self.output)
