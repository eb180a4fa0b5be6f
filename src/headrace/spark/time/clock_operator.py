"""Clocks of devices, corrected by three timestamps, with the offset of each device smoothed.

A device says by its own clock when something occurred and when it sent that; the server says by its clock when it
received it. If sending takes no time, received − sent is how far the device's clock is behind, and occurred plus that
offset is the time by the server's clock. Sending does take time, and sometimes long; so the offset of a device is the
median of its last few samples. A sample beyond the bound of what is believed is not taken: such a row is corrected by
the earlier ones, or not at all, and says so.

Rows are taken in the order in which the server received them. They wait until the watermark of that time has passed
them, and so the result depends neither on micro-batches nor on the order in which they arrive. A device that is silent
for ``forget`` starts from nothing again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.state.bucket import NEVER, Ints
from headrace.spark.state.in_order import InOrder, Settled, SettledStep
from headrace.spark.state.operator import BEGINNING, as_lists, flatten, latest, micros

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

__all__ = ["SmoothClock"]

TIME = pa.timestamp("us", "UTC")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SmoothClock(InOrder):
    rows: pa.Schema
    occurred: str
    sent: str
    received: str
    samples: int
    """How many samples the median is of."""
    offset_us_max: int
    forget_us: int
    name: ClassVar[str] = "clock correction"
    free: ClassVar[tuple[str, ...]] = ("samples", "offset_us_max", "forget")

    @property
    def sample(self) -> pa.StructType:
        return pa.struct([("received", pa.int64()), ("offset", pa.int64())])

    @property
    def order_time(self) -> str:
        return self.received

    @property
    def own(self) -> pa.StructType:
        """The last samples, in order."""
        return pa.struct([("recent", pa.list_(self.sample))])

    @property
    def output(self) -> pa.Schema:
        added = [("corrected", TIME), ("clock_offset_us", pa.int64()), ("clock_trusted", pa.bool_())]
        return pa.schema([*self.rows, *added])

    @property
    def output_time(self) -> str:
        """Rows are given out when the watermark has come to them."""
        return self.received

    def settle(self, settled: Settled) -> SettledStep:
        recent, last_sample, given_out = self._corrected(settled, settled.codes, settled.rows)
        sampled = last_sample > BEGINNING
        return SettledStep(
            output=given_out,
            states=pa.StructArray.from_arrays([recent], fields=list(self.own)),
            keep=sampled,
            expire_us=np.where(sampled, np.where(sampled, last_sample, 0) + self.forget_us, NEVER),
        )

    def _corrected(self, settled: Settled, codes: Ints, rows: pa.Table) -> tuple[pa.ListArray, Ints, pa.Table]:
        """The samples to remember, the time of each device's last one, and the rows with their corrected times."""
        old_codes, old = flatten(settled.held.field("recent"))
        received = micros(rows.column(self.received))
        offsets = self._samples(rows, received)
        order = np.lexsort((offsets, received, codes))  # rows that share time and offset may change places
        rows, codes, received, offsets = rows.take(pa.array(order)), codes[order], received[order], offsets[order]

        is_new = np.r_[np.zeros(len(old_codes), np.bool_), np.ones(len(codes), np.bool_)]
        all_codes = np.r_[old_codes, codes]
        at = np.lexsort((is_new, all_codes))  # of each device the remembered ones first, else as they are
        import pandas as pd  # here, as it takes a second that the planning of a query does not have to spend

        frame = pd.DataFrame(
            {
                "code": all_codes[at],
                "received": np.r_[np.asarray(old.field("received"), np.int64), received][at],
                "offset": np.r_[np.asarray(old.field("offset"), np.float64), offsets][at],
            }
        )
        smooth = self._smooth(frame)[is_new[at]]
        recent, last_sample = self._remembered(frame, len(settled.keys))
        return recent, last_sample, self._results(rows, offsets, smooth)

    def _samples(self, rows: pa.Table, received: Ints) -> Floats:
        """received − sent, or nothing where that is unknown or not believed."""
        sent = rows.column(self.sent).cast(TIME, safe=False).cast(pa.int64()).to_numpy().astype(np.float64)
        offsets: Floats = received - sent
        return np.where(np.abs(offsets) <= self.offset_us_max, offsets, np.nan)

    def _stretches(self, samples: pd.DataFrame) -> Ints:
        """Numbers of runs of samples of one device without a long silence."""
        codes, received = samples["code"].to_numpy(), samples["received"].to_numpy()
        begins = np.ones(len(samples), np.bool_)
        begins[1:] = (codes[1:] != codes[:-1]) | (received[1:] - received[:-1] >= self.forget_us)
        return np.cumsum(begins)

    def _smooth(self, frame: pd.DataFrame) -> Floats:
        """For each row the median of its device's last samples, none when the last of them is too old."""
        sampled = frame["offset"].notna().to_numpy()
        samples = frame[sampled]
        medians = np.full(len(frame), np.nan)
        if len(samples):
            rolling = samples["offset"].groupby(self._stretches(samples)).rolling(self.samples, min_periods=1)
            medians[sampled] = rolling.median().to_numpy()
        last = (
            np.maximum.accumulate(np.where(sampled, np.arange(len(frame)), -1)) if len(frame) else sampled.astype(int)
        )
        codes, received = frame["code"].to_numpy(), frame["received"].to_numpy()
        valid = (last >= 0) & (codes == codes[last]) & (received - received[last] < self.forget_us)
        return np.where(valid, medians[last], np.nan)

    def _remembered(self, frame: pd.DataFrame, count: int) -> tuple[pa.ListArray, Ints]:
        """The last samples of each device, of its last stretch."""
        samples = frame[frame["offset"].notna()]
        samples = samples.assign(stretch=self._stretches(samples))
        newest = samples.groupby("code")["stretch"].transform("max") == samples["stretch"]
        kept = samples[newest].groupby("code").tail(self.samples)
        codes, received = kept["code"].to_numpy(np.int64), kept["received"].to_numpy(np.int64)
        columns = [pa.array(received), pa.array(kept["offset"].to_numpy(np.int64))]
        elements = pa.StructArray.from_arrays(columns, fields=list(self.sample))
        return as_lists(codes, elements, count), latest(codes, received, count)

    def _results(self, rows: pa.Table, offsets: Floats, smooth: Floats) -> pa.Table:
        known = ~np.isnan(smooth)
        rounded = np.rint(np.where(known, smooth, 0)).astype(np.int64)
        occurred = rows.column(self.occurred).cast(TIME, safe=False).cast(pa.int64())
        corrected = pc.add(occurred, pa.array(rounded)).cast(TIME)
        added = [corrected, pa.array(rounded, mask=~known), pa.array(known & ~np.isnan(offsets))]
        return pa.Table.from_arrays([*rows.columns, *added], schema=self.output)
