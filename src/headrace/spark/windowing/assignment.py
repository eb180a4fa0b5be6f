"""Windows as values, ``hr.tumbling("1 minute")``, and which of them a row belongs to, as columns of Spark SQL.

A window is [start, end): a row exactly on a boundary belongs to the window that begins there. Windows begin at whole
multiples of ``every`` since the origin, which is 1970-01-01 00:00 UTC, or Monday of the week after for whole weeks.

With a time zone, windows of whole days follow its calendar: they begin at midnight there, so that a day on which
clocks change has 23 or 25 hours. Midnight is the first moment of a date; where clocks skip it the day begins when they
have. A moment belongs to the window between whose two boundaries it lies, also when clocks set back show it twice.
"""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of, plain_columns

__all__ = [
    "DAY_US",
    "ROLE",
    "SessionWindow",
    "TimeWindow",
    "calendar",
    "hopping",
    "session_window",
    "time_window",
    "tumbling",
]

DAY_US: Final = 86_400_000_000
WEEK_US: Final = 7 * DAY_US
MONDAY_US: Final = 4 * DAY_US
"""1970-01-05."""
WINDOWS_PER_ROW_MAX: Final = 1440
ROLE: Final = "_role"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Where windows begin and how long they are. Of a time zone's calendar, all three are by its clocks."""

    size_us: int
    every_us: int
    origin_us: int
    timezone: str | None = None

    def apply(self, rows: DataFrame, event_time: str, *, later_us: tuple[int, ...] = ()) -> DataFrame:
        """The rows with their windows, once for each; with a null window when there is no time.

        With ``later_us`` each row comes again for the window that is so much later, and ``ROLE`` says which it is.
        """
        taken = sorted({"window_start", "window_end", ROLE}.intersection(rows.columns))
        if taken:
            raise UsageError(f"the rows have a column {taken[0]!r} already", "rename it, or leave it out")
        time = F.col(f"`{event_time}`")
        last = self._last_start(time)
        count = -(-self.size_us // self.every_us)
        if count == 1 and not later_us:
            return rows.select("*", self._span(last, 0, 0).alias("_span")).select(
                *plain_columns(rows.columns), "_span.*"
            )
        spans = F.concat(*(self._spans(time, last, count, role, later) for role, later in enumerate((0, *later_us))))
        once = F.array(self._span(F.lit(None).cast("long"), 0, 0))
        spanned = rows.select("*", F.explode(F.when(time.isNull(), once).otherwise(spans)).alias("_span"))
        return spanned.select(*plain_columns(rows.columns), "_span.*")

    def _spans(self, time: Column, last: Column, count: int, role: int, later_us: int) -> Column:
        if count == 1:
            return F.array(self._span(last, role, later_us))
        numbers = F.sequence(F.lit(0), F.lit(count - 1))
        if self.size_us % self.every_us:
            # The earliest of the windows may have ended before the row.
            numbers = F.filter(numbers, lambda each: self._instant(self._start(last, each) + self.size_us) > time)
        return F.transform(numbers, lambda each: self._span(self._start(last, each), role, later_us))

    def _start(self, last: Column, number: Column) -> Column:
        return last - number.cast("long") * F.lit(self.every_us)  # int * int overflows at 35 minutes

    def _span(self, start: Column, role: int, later_us: int) -> Column:
        start = start + F.lit(later_us)
        end = self._instant(start + F.lit(self.size_us))
        bounds = [self._instant(start).alias("window_start"), end.alias("window_end")]
        return F.struct(*bounds, F.lit(role).alias(ROLE))

    def _last_start(self, time: Column) -> Column:
        """The last start at or before a time, by the clocks of the zone."""
        if self.timezone is None:
            local = F.unix_micros(time)
            return local - F.pmod(local - F.lit(self.origin_us), F.lit(self.every_us))
        local = F.unix_micros(F.from_utc_timestamp(time, self.timezone))
        near = local - F.pmod(local - F.lit(self.origin_us), F.lit(self.every_us))
        before, after = near - F.lit(self.every_us), near + F.lit(self.every_us)
        # Clocks that are set back across a boundary show a time before it to moments that lie after it.
        return F.when(time < self._instant(near), before).when(time >= self._instant(after), after).otherwise(near)

    def _instant(self, clock_us: Column) -> Column:
        time = F.timestamp_micros(clock_us)
        return time if self.timezone is None else F.to_utc_timestamp(time, self.timezone)


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Rows that follow each other within a gap."""

    gap_us: int


def tumbling(size: str, *, origin: datetime | str | None = None) -> TimeWindow:
    """Windows that follow each other: ``hr.tumbling("1 minute")``. ``origin`` (UTC) is where one of them begins."""
    size_us = micros_of(size, "size")
    return _windows(size_us, size_us, None, origin)


def hopping(size: str, every: str, *, origin: datetime | str | None = None) -> TimeWindow:
    """Overlapping windows: ``hr.hopping("1 hour", "5 minutes")`` is one hour long, a new one every five minutes."""
    size_us, every_us = micros_of(size, "size"), micros_of(every, "every")
    if every_us > size_us:
        raise UsageError(f"every={every!r} is longer than size={size!r}: rows between windows would be in none")
    return _windows(size_us, every_us, None, origin)


def calendar(unit: str, zone: str, *, every: str | None = None, origin: datetime | str | None = None) -> TimeWindow:
    """Days or weeks as they are in a time zone: ``hr.calendar("day", "Europe/Berlin")``, or "2 weeks".

    A day goes from midnight to midnight, with 23 or 25 hours when clocks change there. ``every`` makes them overlap:
    ``hr.calendar("7 days", "Europe/Berlin", every="day")``.
    """
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise UsageError(f"the time zone {zone!r} is not known", "'Europe/Berlin', 'America/New_York', say") from error
    size_us = _days_us(unit, "unit")
    every_us = size_us if every is None else _days_us(every, "every")
    if every_us > size_us:
        raise UsageError(f"every={every!r} is longer than {unit!r}: rows between windows would be in none")
    return _windows(size_us, every_us, zone, origin)


def session_window(gap: str) -> SessionWindow:
    """Rows of a key that follow each other within a gap: ``hr.session_window("30 minutes")``."""
    return SessionWindow(micros_of(gap, "gap"))


def time_window(window: object) -> TimeWindow:
    """What a user gave as a window, where sessions are none."""
    if isinstance(window, TimeWindow):
        return window
    if isinstance(window, SessionWindow):
        raise UsageError("sessions have no fixed length", "hr.windows takes hr.session_window(…)")
    raise UsageError(
        f"window={window!r} is no window",
        'hr.tumbling("1 minute"), hr.hopping("1 hour", "5 minutes"), hr.calendar("day", "Europe/Berlin")',
    )


def _windows(size_us: int, every_us: int, zone: str | None, origin: datetime | str | None) -> TimeWindow:
    if size_us / every_us > WINDOWS_PER_ROW_MAX:
        raise UsageError(
            f"every row would be in {size_us // every_us} windows, and {WINDOWS_PER_ROW_MAX} are the most",
            "for an interval before each row there is hr.rolling; else let windows follow each other less often",
        )
    default_us = MONDAY_US if every_us % WEEK_US == 0 else 0
    return TimeWindow(size_us, every_us, default_us if origin is None else _origin_us(origin, zone), zone)


def _days_us(text: str, argument: str) -> int:
    found = micros_of(f"1 {text}" if text in ("day", "week") else text, argument)
    if found % DAY_US:
        raise UsageError(
            f"{argument}={text!r}: a calendar has whole days",
            "hr.tumbling(…): shorter windows are the same everywhere, up to their origin",
        )
    return found


def _origin_us(origin: datetime | str, timezone: str | None) -> int:
    try:
        found = datetime.fromisoformat(origin) if isinstance(origin, str) else origin
    except ValueError as error:
        raise UsageError(f"origin={origin!r} is no time", "'2026-01-01', '2026-01-01T06:00:00Z'") from error
    if timezone is not None:
        if found.tzinfo is not None:
            found = found.astimezone(zoneinfo.ZoneInfo(timezone)).replace(tzinfo=None)
        found = found.replace(tzinfo=UTC)  # clock readings are counted as if the zone were UTC
    elif found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * DAY_US + since.seconds * 1_000_000 + since.microseconds
