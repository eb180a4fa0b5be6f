"""What every store promises: one suite for all backends."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.sourcing import (
    ANY,
    EXISTS,
    NONE,
    AppendConflict,
    Condition,
    Event,
    EventStore,
    Progress,
    Query,
    QueryItem,
    SourcingError,
    StoreUnavailable,
    Upcasters,
    open_store,
    retrying,
)
from headrace.sourcing.appends import Appended, EventRow, Part, Request
from headrace.sourcing.postgres import PostgresStore
from tests.waiting import eventually

Open = Callable[..., EventStore]


def paid(amount: int, **more: object) -> Event:
    return Event("Paid", {"amount": amount}, **more)  # type: ignore[arg-type]


def amounts(store: EventStore, stream: str) -> list[int]:
    return [event.data["amount"] for event in store.read(stream)]


def check_gapless(store: EventStore) -> None:
    """Positions are 1, 2, 3 … of the store, versions of each stream; times never decrease."""
    versions: dict[str, int] = {}
    last = None
    for number, event in enumerate(store.read_all(), 1):
        assert event.position == number
        if event.stream is not None:
            assert event.version == versions.get(event.stream, 0) + 1
            versions[event.stream] = event.version
        assert last is None or event.recorded_at >= last
        last = event.recorded_at


# ---- append ---------------------------------------------------------------------------------------------------------


def test_events_come_back_as_they_were_appended_with_position_version_and_metadata(store: EventStore) -> None:
    event = Event(
        "Paid",
        {"amount": 5, "text": "žluť ☕ \u0000 '", "deep": {"list": [1, None, True, 1.5]}},
        tags=("customer:7",),
        correlation_id="c",
        causation_id="d",
        actor="ada",
        schema_version=3,
    )
    done = store.append("account-1", event)
    assert (done.position, done.first_position, done.version, done.repeated) == (1, 1, 1, False)
    (found,) = store.read("account-1")
    assert found.data == event.data
    assert (found.stream, found.version, found.position, found.type) == ("account-1", 1, 1, "Paid")
    assert (found.tags, found.correlation_id, found.causation_id, found.actor) == (("customer:7",), "c", "d", "ada")
    assert found.schema_version == 3
    assert len(found.event_id) == 36
    assert found.as_dict()["data"] == event.data


def test_a_batch_has_consecutive_positions_and_versions(store: EventStore) -> None:
    store.append("account-1", [paid(1), paid(2)])
    store.append("account-2", [paid(3)])
    done = store.append("account-1", [paid(4), paid(5)])
    assert (done.first_position, done.position, done.version) == (4, 5, 4)
    assert amounts(store, "account-1") == [1, 2, 4, 5]
    assert store.head() == 5
    check_gapless(store)


@pytest.mark.parametrize(
    ("expected", "fits_empty", "fits_two"),
    [
        (ANY, True, True),
        (NONE, True, False),
        (EXISTS, False, True),
        (0, True, False),
        (2, False, True),
        (1, False, False),
    ],
)
def test_an_append_goes_through_only_if_the_stream_has_the_expected_version(
    store: EventStore, expected: int, fits_empty: bool, fits_two: bool
) -> None:
    store.append("full-1", [paid(1), paid(2)])
    for stream, actual, fits in (("empty-1", 0, fits_empty), ("full-1", 2, fits_two)):
        if fits:
            assert store.append(stream, paid(3), expected=expected).version == actual + 1
        else:
            with pytest.raises(AppendConflict) as conflict:
                store.append(stream, [paid(3), paid(4)], expected=expected)
            assert (conflict.value.actual, conflict.value.stream) == (actual, stream)
            assert conflict.value.retriable
            assert store.version(stream) == actual
    check_gapless(store)


def test_an_append_to_several_streams_is_atomic(store: EventStore) -> None:
    store.append("account-1", paid(10))
    with pytest.raises(AppendConflict, match="account-2 has no event"):
        store.append_all([("account-1", [paid(-5)], 1), ("account-2", [paid(5)], EXISTS)])
    assert store.head() == 1
    done = store.append_all(
        [("account-1", [paid(-5), paid(-1)], 1), ("account-2", [paid(5)], NONE), (None, [paid(0)], ANY)]
    )
    assert done.versions == {"account-1": 3, "account-2": 1}
    assert [(event.stream, event.version) for event in store.read_all()] == [
        ("account-1", 1),
        ("account-1", 2),
        ("account-1", 3),
        ("account-2", 1),
        (None, None),
    ]


def test_an_append_with_event_ids_that_are_there_returns_what_the_first_one_returned(store: EventStore) -> None:
    events = [paid(1, event_id="a"), paid(2, event_id="b")]
    first = store.append("account-1", events, expected=0)
    store.append("account-1", paid(3))
    again = store.append("account-1", events, expected=0)
    assert again.repeated
    assert (again.first_position, again.position, again.versions) == (1, 2, first.versions)
    assert amounts(store, "account-1") == [1, 2, 3]
    with pytest.raises(AppendConflict, match="an id belongs to one event"):
        store.append("account-1", [paid(1, event_id="a"), paid(9, event_id="z")])
    with pytest.raises(AppendConflict, match="an id belongs to one event"):
        store.append("account-2", events)
    assert store.head() == 3


def test_a_command_has_its_effect_once(store: EventStore) -> None:
    first = store.append("account-1", [paid(1), paid(2)], command_id="pay-7")
    again = store.append("account-1", [paid(8)], expected=0, command_id="pay-7")
    assert again.repeated
    assert (again.position, again.version) == (first.position, 2)
    assert amounts(store, "account-1") == [1, 2]


def test_the_same_id_twice_in_one_append_is_refused_whole(store: EventStore) -> None:
    with pytest.raises(UsageError, match="has an event id twice"):
        store.append("account-1", [paid(1, event_id="a"), paid(2, event_id="a")])
    assert store.head() == 0
    assert store.append("account-1", paid(3)).position == 1


def test_an_event_is_known_by_the_id_that_the_store_gave_it(store: EventStore) -> None:
    store.append("account-1", [paid(1), paid(2)])
    store.append("account-2", paid(3))
    one, two, _ = (event.event_id for event in store.read_all())
    again = store.append("account-1", [paid(1, event_id=one), paid(2, event_id=two)], expected=0)
    assert (again.repeated, again.first_position, again.position, again.version) == (True, 1, 2, 2)
    with pytest.raises(AppendConflict, match="an id belongs to one event"):
        store.append("account-2", paid(9, event_id=one))
    with pytest.raises(AppendConflict, match="an id belongs to one event"):
        store.append("account-2", [paid(9, event_id=two), paid(9)])
    assert store.head() == 3


@pytest.mark.parametrize("place", [1, 2, 3, 9])
def test_an_id_that_looks_like_one_of_the_store_is_an_id_like_any_other(store: EventStore, place: int) -> None:
    """The first 48 bits of ids that the store makes are a position: of an event here, or of none."""
    given = f"00000000-{place:04x}-8000-8000-000000000000"
    store.append("account-1", paid(1))
    first = store.append("account-1", paid(2, event_id=given), expected=1)
    again = store.append("account-1", paid(2, event_id=given), expected=1)
    assert (first.repeated, again.repeated, again.position) == (False, True, 2)
    with pytest.raises(AppendConflict):
        store.append("account-1", [paid(3, event_id=given), paid(4)])
    assert store.head() == 2


def test_what_cannot_be_stored_is_refused_in_words(store: EventStore) -> None:
    with pytest.raises(UsageError, match="no name of a stream"):
        store.append("", paid(1))
    with pytest.raises(UsageError, match="no JSON"):
        store.append("a", Event("Paid", {"what": object()}))
    with pytest.raises(UsageError, match="no JSON"):
        store.append("a", Event("Paid", {"what": float("nan")}))
    with pytest.raises(UsageError, match="more than 1,000,000"):
        store.append("a", Event("Paid", {"what": "x" * 1_000_001}))
    with pytest.raises(UsageError, match="key store"):
        store.append("a", Event("Paid", {"name": "Ada"}, personal={"name": "ada"}))
    assert store.head() == 0


# ---- conditions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", [Query.of(types=["Paid"]), Query.of(tags=["t"]), Query.of(streams=["account-1"]), Query()]
)
def test_a_condition_looks_only_after_the_position_that_the_decision_has_read(store: EventStore, query: Query) -> None:
    store.append("account-1", [paid(1, tags=["t"]), paid(2, tags=["t"])])
    with pytest.raises(AppendConflict, match="there is one at position 2"):
        store.append("account-1", paid(3, tags=["t"]), condition=Condition(query, after=1))
    assert store.append("account-1", paid(3, tags=["t"]), condition=Condition(query, after=2)).position == 3


def test_a_condition_refuses_an_append_if_matching_events_exist(store: EventStore) -> None:
    """A user name is taken once: no stream is about it, only a tag."""
    taken = Query.of(types=["UserNamed"], tags=["name:ada"])
    event = Event("UserNamed", {}, tags=("name:ada", "user:1"))
    store.append(None, event, condition=Condition(taken))
    with pytest.raises(AppendConflict, match="position 1"):
        store.append(None, event, condition=Condition(taken))
    store.append(None, event, condition=Condition(taken, after=1))
    other = Query.of(types=["UserNamed"], tags=["name:ada", "user:2"])
    store.append(None, event, condition=Condition(other))
    either = Query((QueryItem(types=("Other",)), QueryItem(tags=("user:1",))))
    with pytest.raises(AppendConflict):
        store.append(None, event, condition=Condition(either))
    assert store.head() == 3


def test_an_append_without_events_gives_the_end_of_the_store(store: EventStore) -> None:
    assert (store.append_all([]).position, store.append("account-1", []).position) == (0, 0)
    store.append("account-1", [paid(1), paid(2)])
    store.append("account-2", paid(3))
    assert store.append_all([]) == Appended(3, 4, {})
    assert store.append("account-1", [], expected=2) == Appended(3, 4, {"account-1": 2})
    with pytest.raises(AppendConflict):
        store.append("account-1", [], expected=3)


def test_progress_is_stored_with_the_events_and_only_goes_forward(store: EventStore) -> None:
    assert store.progress("mailer") == 0
    store.append("mail-1", paid(1), progress=Progress("mailer", 4))
    assert store.progress("mailer") == 4
    for position in (3, 4):
        with pytest.raises(AppendConflict, match="mailer"):
            store.append("mail-1", paid(2), progress=Progress("mailer", position))
    with pytest.raises(AppendConflict):
        store.append("mail-1", paid(2), expected=7, progress=Progress("mailer", 9))
    assert (store.progress("mailer"), store.head()) == (4, 1)
    store.append_all([], progress=Progress("mailer", 5))
    assert (store.progress("mailer"), store.head()) == (5, 1)


# ---- read -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(store: EventStore) -> EventStore:
    for number in range(1, 7):
        store.append(
            f"{'order' if number % 2 else 'basket'}-{number % 3}",
            Event("Added" if number < 4 else "Removed", {"amount": number}, tags=[f"n{number % 2}", "all"]),
        )
    store.append("orders-1", paid(7))
    store.append(None, Event("Other", {"amount": 8}, tags=["n1"]))
    return store


@pytest.mark.parametrize(
    ("query", "positions"),
    [
        (Query(), [1, 2, 3, 4, 5, 6, 7, 8]),
        (Query.of(types=["Added"]), [1, 2, 3]),
        (Query.of(categories=["order"]), [1, 3, 5]),
        (Query.of(categories=["order", "basket"], types=["Removed"]), [4, 5, 6]),
        (Query.of(streams=["order-1", "basket-0"]), [1, 6]),
        (Query.of(tags=["n1"]), [1, 3, 5, 8]),
        (Query.of(tags=["n1", "all"], types=["Removed"]), [5]),
        (Query.of(tags=["n0"]) | Query.of(types=["Paid"]), [2, 4, 6, 7]),
        (Query.of(tags=["none"]), []),
    ],
)
def test_a_query_selects_by_type_tag_stream_and_category(shop: EventStore, query: Query, positions: list[int]) -> None:
    assert [event.position for event in shop.read_all(query)] == positions
    assert [event.position for event in shop.read_all(query, backwards=True)] == positions[::-1]
    assert [event.position for event in shop.read_all(query, after=2, until=6)] == [n for n in positions if 2 < n <= 6]
    assert [event.position for event in shop.read_all(query, limit=2)] == positions[:2]
    assert [event.position for event in shop.read_all() if query.matches(event)] == positions
    assert [event.position for event in shop.subscribe(query, until_current=True)] == positions


def test_a_stream_is_read_in_part_and_backwards(store: EventStore) -> None:
    store.append("long-1", [paid(number) for number in range(1, 2501)])
    assert amounts(store, "long-1") == list(range(1, 2501))
    assert [event.version for event in store.read("long-1", after=1498, until=1502)] == [1499, 1500, 1501, 1502]
    assert [event.version for event in store.read("long-1", backwards=True, limit=2)] == [2500, 2499]
    assert [event.version for event in store.read("long-1", backwards=True)] == list(range(2500, 0, -1))


def test_streams_are_listed_by_category(shop: EventStore) -> None:
    assert [each.stream for each in shop.streams()] == [
        "basket-0",
        "basket-1",
        "basket-2",
        "order-0",
        "order-1",
        "order-2",
        "orders-1",
    ]
    found = shop.streams("order", limit=2)
    assert [(each.stream, each.version, each.first_position) for each in found] == [
        ("order-0", 1, 3),
        ("order-1", 1, 1),
    ]
    assert [each.stream for each in shop.streams("order", after="order-1")] == ["order-2"]


def test_the_position_at_a_moment_is_the_last_one_recorded_until_then(store: EventStore) -> None:
    assert store.position_at(datetime.now(UTC)) == 0
    for number in range(5):
        store.append("account-1", paid(number))
        time.sleep(0.002)
    for event in store.read_all():
        assert store.position_at(event.recorded_at) == event.position
        assert store.position_at(event.recorded_at - timedelta(microseconds=1)) == event.position - 1


def test_a_page_says_how_far_it_has_searched_also_where_nothing_matches(shop: EventStore) -> None:
    page = shop.page(Query.of(types=["Added"]), limit=2)
    assert ([event.position for event in page.events], page.scanned_to) == ([1, 2], 2)
    page = shop.page(Query.of(types=["Added"]), after=3)
    assert (page.events, page.scanned_to) == ([], 8)


# ---- subscriptions --------------------------------------------------------------------------------------------------


def test_a_subscription_catches_up_and_goes_on_without_a_gap(
    store: EventStore, open_: Open, several_writers: bool
) -> None:
    """Written by this process and by another while it reads; each event comes once and in order."""
    other = open_() if several_writers else store
    reader_store = open_()
    store.append("account-1", [paid(number) for number in range(30)])
    seen: list[int] = []

    def follow() -> None:
        for event in reader_store.subscribe(Query.of(categories=["account"])):
            seen.append(event.data["amount"])
            if len(seen) == 60:
                return

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(30, 60):
        (store if number % 2 else other).append("account-1", paid(number))
        (store if number % 2 else other).append("other-1", paid(number))
    reader.join(60)
    assert seen == list(range(60))


def test_a_subscription_in_small_pages_skips_nothing_also_of_what_comes_meanwhile(shop: EventStore) -> None:
    seen: list[int] = []
    for page in shop.pages(Query.of(tags=["all"]) | Query.of(types=["Paid"]), until_current=True, limit=2):
        seen += [event.position for event in page.events]
        if len(seen) < 8:
            shop.append("late-1", paid(1))
    assert seen == [1, 2, 3, 4, 5, 6, 7, *range(9, shop.head() + 1)]


def test_a_subscription_ends_when_it_is_stopped(store: EventStore) -> None:
    stop = threading.Event()
    store.append("account-1", [paid(1), paid(2)])
    seen = []
    for event in store.subscribe(stop=stop):
        seen.append(event.data["amount"])
        stop.set()
    assert seen == [1]


# ---- concurrency ----------------------------------------------------------------------------------------------------


def test_of_many_who_expect_the_same_version_one_wins_each_time(
    store: EventStore, open_: Open, several_writers: bool
) -> None:
    """Eight threads over two opened stores each add one to a counter ten times, by the retry helper."""
    stores = [store, open_() if several_writers else store]

    def add_ten(number: int) -> None:
        mine = stores[number % 2]
        for _ in range(10):

            def once() -> None:
                last = list(mine.read("counter-1", backwards=True, limit=1))
                version, total = (last[0].version, last[0].data["amount"]) if last else (0, 0)
                mine.append("counter-1", paid(total + 1), expected=version)

            _until_it_works(once)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_ten, range(8)))
    assert amounts(store, "counter-1") == list(range(1, 81))
    check_gapless(store)


def _until_it_works(once: Callable[[], None]) -> None:
    while True:
        try:
            retrying(once, attempts=3, pause_s=0.0001)
            return
        except AppendConflict:
            continue


def test_a_reader_never_sees_a_position_before_all_below_it(
    store: EventStore, open_: Open, several_writers: bool
) -> None:
    """Writers append batches to their streams while readers follow; whatever a reader sees has no gap below it."""
    stop, wrong = threading.Event(), []

    def read(reader: EventStore) -> None:
        after = 0
        while not stop.is_set():
            for event in reader.read_all(after=after):
                if event.position != after + 1:
                    wrong.append((after, event.position))
                after = event.position

    readers = [threading.Thread(target=read, args=(each,)) for each in (store, open_())]
    for each in readers:
        each.start()
    writers = [store, open_(), open_()] if several_writers else [store] * 3

    def write(number: int) -> None:
        for batch in range(8):
            writers[number % 3].append(f"w-{number}", [paid(batch)] * (1 + batch % 3))

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(write, range(9)))
    stop.set()
    for each in readers:
        each.join()
    assert wrong == []
    assert store.head() == 9 * sum(1 + batch % 3 for batch in range(8))
    check_gapless(store)


def test_appends_of_many_threads_share_commits_and_a_conflict_is_only_its_own(store: EventStore) -> None:
    def write(number: int) -> str:
        try:
            store.append("shared-1" if number % 4 == 0 else f"own-{number}", paid(number), expected=0)
            return "done"
        except AppendConflict:
            return "conflict"

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(write, range(64)))
    assert outcomes.count("conflict") == 15
    assert [outcome for number, outcome in enumerate(outcomes) if number % 4] == ["done"] * 48
    assert store.head() == 49
    assert (store.appends, store.commits < 64) == (64, True)
    check_gapless(store)


# ---- upcasting ------------------------------------------------------------------------------------------------------


def test_old_events_are_read_in_their_newest_form_and_stay_as_they_are(store: EventStore, open_: Open) -> None:
    store.append("account-1", [paid(5), Event("Closed", {})])
    upcasters = Upcasters()
    upcasters.register("Paid", from_version=1)(lambda data: {**data, "currency": "EUR"})
    upcasters.register("Paid", from_version=2)(lambda data: ("Deposited", {"cents": data["amount"] * 100, **data}))
    store.close()
    newer = open_(upcasters=upcasters)
    newer.append("account-1", Event("Paid", {"amount": 7, "currency": "USD", "cents": 700}))
    found = list(newer.read("account-1"))
    assert [event.type for event in found] == ["Deposited", "Closed", "Paid"]
    assert found[0].data == {"amount": 5, "currency": "EUR", "cents": 500}
    assert [event.schema_version for event in found] == [1, 1, 3]
    assert [event.data for event in open_().read("account-1")][:1] == [{"amount": 5}]


def together(store: EventStore, appends: list[Callable[[], Appended]]) -> list[Appended | BaseException]:
    """What becomes of appends that one leader writes in one batch: they come while another append is being written."""
    write, begun, may_write = store._group._write, threading.Event(), threading.Event()

    def slow(batch: Sequence[Request]) -> None:
        begun.set()
        may_write.wait(10)
        write(batch)

    def outcome(append: Callable[[], Appended]) -> Appended | BaseException:
        try:
            return append()
        except BaseException as error:
            return error

    store._group._write = slow
    with ThreadPoolExecutor(len(appends) + 1) as pool:
        first = pool.submit(store.append, "first-1", Event("A"))
        begun.wait(10)
        others = [pool.submit(outcome, append) for append in appends]
        eventually(lambda: len(store._group._queue) == len(appends))
        may_write.set()
        first.result()
        store._group._write = write
        return [each.result() for each in others]


def test_an_append_that_the_database_does_not_take_fails_alone_and_those_beside_it_are_written(
    store: EventStore,
) -> None:
    row: EventRow = ("e-1", "A", 1, "{}", "[]", None, None, None)
    twice = Part("b-1", ANY, [row, row], [(), ()])  # as ``append`` would not let it through
    one, bad, two = together(
        store,
        [
            lambda: store.append("a-1", Event("A")),
            lambda: store._group.submit(Request([twice])),
            lambda: store.append("c-1", Event("A")),
        ],
    )
    assert isinstance(one, Appended)
    assert isinstance(two, Appended)
    assert isinstance(bad, SourcingError)
    assert sorted(info.stream for info in store.streams()) == ["a-1", "c-1", "first-1"]
    assert [event.position for event in store.read_all()] == [1, 2, 3]


def test_an_append_that_cannot_be_sent_fails_alone_and_those_beside_it_are_written(store: EventStore) -> None:
    no_item: Any = "name:ada"
    one, bad, two = together(
        store,
        [
            lambda: store.append("a-1", Event("A")),
            lambda: store.append("b-1", Event("A"), condition=Condition(Query((no_item,)))),
            lambda: store.append("c-1", Event("A")),
        ],
    )
    assert isinstance(bad, AttributeError)
    assert isinstance(one, Appended)
    assert isinstance(two, Appended)


@pytest.mark.servers
def test_a_server_whose_default_is_another_isolation_changes_nothing(new_schema: Callable[[], str]) -> None:
    """Under a stricter one, an append that waited for another process would fail."""
    with open_store(f"{new_schema()}%20-cdefault_transaction_isolation%3Dserializable") as store:
        assert isinstance(store, PostgresStore)
        assert store._run("show transaction_isolation") == [("read committed",)]


@pytest.mark.servers
def test_commits_are_synced_also_where_the_database_does_not_ask_for_it(new_schema: Callable[[], str]) -> None:
    with PostgresStore(new_schema().replace("?options=", "?options=-csynchronous_commit%3Doff%20")) as store:
        assert store._run("show synchronous_commit") == [("on",)]


@pytest.mark.servers
@pytest.mark.parametrize("many", [1, 3])
def test_an_append_whose_answer_is_lost_is_sent_again_and_has_its_effect_once(
    new_schema: Callable[[], str], monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """The connection breaks after the commit and before the answer; the second time the ids tell that it is done."""
    with PostgresStore(new_schema()) as store:
        answers, lost = store._answers, []

        def losing(calls: Sequence[Sequence[object]]) -> list[tuple[object, ...]]:
            found = answers(calls)
            if not lost:
                lost.append(found)
                raise StoreUnavailable("the connection broke")
            return found

        monkeypatch.setattr(store, "_answers", losing)
        done = store.append("account-1", [paid(number) for number in range(many)], expected=0)
        assert (len(lost), done.position, done.version) == (1, many, many)
        assert amounts(store, "account-1") == list(range(many))


@pytest.mark.servers
def test_progress_alone_whose_answer_is_lost_is_not_sent_again(
    new_schema: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no id. Sent again, it would meet itself, and the process would stop as if another one ran, too."""
    with PostgresStore(new_schema()) as store:
        answers = store._answers

        def losing(calls: Sequence[Sequence[object]]) -> list[tuple[object, ...]]:
            answers(calls)
            monkeypatch.undo()
            raise StoreUnavailable("the connection broke")

        monkeypatch.setattr(store, "_answers", losing)
        with pytest.raises(StoreUnavailable):
            store.append_all([], progress=Progress("mailer", 5))
        assert store.progress("mailer") == 5


def test_a_store_that_is_not_there_is_not_made_by_reading(url: str) -> None:
    with pytest.raises(UsageError, match="there is no event store"):
        open_store(url, create=False)
    with pytest.raises(UsageError, match="there is no event store"):  # nothing of it was made the first time
        open_store(url, create=False)
    with open_store(url) as made:
        made.append("a-1", Event("Made", {}))
    with open_store(url, create=False) as found:
        assert [event.type for event in found.read("a-1")] == ["Made"]


def test_a_database_of_somebody_else_gets_no_tables_by_reading(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("create table mine (number integer)")
        with pytest.raises(UsageError, match="there is no event store"):
            open_store(tmp_path / "other.db", create=False)
        assert other.execute("select name from sqlite_master").fetchall() == [("mine",)]
