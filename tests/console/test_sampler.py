"""What the console samples, keeps and warns of."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from headrace.client import Admin, Client, Groups, Producer, StateRecord, TopicPartition
from headrace.console.alarms import alarms, forecast
from headrace.console.history import History
from headrace.console.limits import COARSE_S, FINE_POINTS, SERIES_MAX
from headrace.console.pool import ClientPool
from headrace.console.sampler import Sampler
from headrace.console.snapshot import ClusterSnapshot, DiskFigures, GroupFigures, TopicFigures
from headrace.console.watch import Watch, Watched
from headrace.testing import broker
from tests.console.conftest import RunningConsole
from tests.waiting import eventually

NOW_S = 1_800_000_000.0


def test_a_chart_has_the_seconds_that_were_asked_for_and_nothing_where_nothing_was_sampled() -> None:
    history = History()
    for second in range(100):
        history.add(NOW_S + second, {"in": float(second)} if second % 2 else {})
    chart = history.chart({"written": "in", "gone": "no such series"}, NOW_S + 99, 10)
    assert chart["times"] == [round((NOW_S + second) * 1000) for second in range(89, 100)]
    assert chart["series"][0] == {
        "name": "written",
        "values": [float(second) if second % 2 else None for second in range(89, 100)],
    }
    assert set(chart["series"][1]["values"]) == {None}


def test_a_day_is_kept_by_the_half_minute_as_means_and_no_more_than_a_day() -> None:
    history = History()
    for second in range(0, 90_000, 10):
        history.add(NOW_S + second, {"in": 3.0 if second % 20 else 1.0, "burst": 0.0 if second % 30 else 30.0})
    chart = history.chart({"in": "in", "burst": "burst"}, NOW_S + 90_000, 86_400)
    values = chart["series"][0]["values"]
    assert len(values) <= 400
    assert all(math.isclose(value, 2.0, abs_tol=0.4) for value in values)
    assert set(chart["series"][1]["values"]) == {10.0}
    assert chart["times"][0] >= (NOW_S + 90_000 - 86_400 - COARSE_S * 10) * 1000


def test_series_are_forgotten_with_their_topics_and_have_a_limit() -> None:
    history = History()
    history.add(NOW_S, {f"in/{number}": 1.0 for number in range(SERIES_MAX + 50)})
    assert history.mean(f"in/{SERIES_MAX + 49}", NOW_S, 10) + history.mean("in/0", NOW_S, 10) <= 2.0
    known = sum(history.mean(f"in/{number}", NOW_S, 10) for number in range(0, SERIES_MAX + 50, 50))
    assert known <= SERIES_MAX / 50 + 1
    history.keep_only({"in/7"})
    assert history.mean("in/8", NOW_S, FINE_POINTS) == 0.0


def test_rates_lag_and_sizes_come_from_two_looks_at_the_broker() -> None:
    with broker() as server, Client(server.bootstrap) as client:
        Admin(client).create_topic("watched", partitions=2)
        history = History()
        sampler = Sampler(ClientPool(server.bootstrap), history)
        sampler.sample(client, NOW_S)
        with Producer(client) as producer:
            for number in range(100):
                producer.send("watched", b"x" * 100, partition=number % 2)
        Groups(client).commit("slow", {TopicPartition("watched", 0): 10})
        sampler.sample(client, NOW_S + 10)
        Groups(client).commit("slow", {TopicPartition("watched", 0): 40})
        sampler.sample(client, NOW_S + 20)
        sampler.sample(client, NOW_S + 30)
    seen = sampler.snapshot
    assert seen.topics["watched"].messages == 100
    assert seen.topics["watched"].size == sum(seen.sizes.values()) > 10_000
    assert history.recent("in/watched", NOW_S + 30, 30) == [(NOW_S + 10, 10.0), (NOW_S + 20, 0.0), (NOW_S + 30, 0.0)]
    assert seen.groups["slow"].lag == 10
    assert history.recent("lag/slow", NOW_S + 30, 30) == [(NOW_S + 10, 40.0), (NOW_S + 20, 10.0), (NOW_S + 30, 10.0)]
    assert history.recent("out/slow", NOW_S + 30, 30) == [(NOW_S + 10, 0.0), (NOW_S + 20, 3.0), (NOW_S + 30, 0.0)]
    assert seen.disk is not None
    assert 0 < seen.disk.usable < seen.disk.total


def test_bytes_that_are_written_all_the_time_are_a_steady_rate_however_looks_fall() -> None:
    """Sizes are asked for every ten seconds, by looks that are never quite a second apart."""
    with broker() as server, Client(server.bootstrap) as client:
        Admin(client).create_topic("steady", partitions=1)
        history = History()
        sampler = Sampler(ClientPool(server.bootstrap), history)
        for look in range(100):
            with Producer(client) as producer:
                producer.send("steady", bytes(1_000), partition=0)
            sampler.sample(client, NOW_S + look * 1.07)
    rates = [rate for at_s, rate in history.recent("bytes", NOW_S + 107, 107) if at_s > NOW_S + 12]
    assert max(rates) < 1.2 * min(rates)


def test_bytes_that_were_removed_do_not_hide_those_that_were_written() -> None:
    with broker() as server, Client(server.bootstrap) as client:
        for topic in ("grows", "goes"):
            Admin(client).create_topic(topic, partitions=1)
        history = History()
        sampler = Sampler(ClientPool(server.bootstrap), history)
        with Producer(client) as producer:
            producer.send("goes", bytes(100_000), partition=0)
        sampler.sample(client, NOW_S)
        Admin(client).delete_topic("goes")
        with Producer(client) as producer:
            producer.send("grows", bytes(20_000), partition=0)
        sampler.sample(client, NOW_S + 10)
    (_, used), (_, left) = history.recent("used", NOW_S + 10, 30)
    assert left < used
    assert history.recent("bytes", NOW_S + 10, 5)[-1][1] >= 2_000


def test_the_rate_of_all_topics_leaves_out_internal_ones() -> None:
    with broker() as server, Client(server.bootstrap) as client:
        for topic in ("orders", "__own"):
            Admin(client).create_topic(topic, partitions=1)
        history = History()
        sampler = Sampler(ClientPool(server.bootstrap), history)
        sampler.sample(client, NOW_S)
        with Producer(client) as producer:
            for topic, count in (("orders", 20), ("__own", 500)):
                for _ in range(count):
                    producer.send(topic, b"x", partition=0)
        sampler.sample(client, NOW_S + 10)
    assert history.recent("in", NOW_S + 10, 30) == [(NOW_S + 10, 2.0)]
    assert history.recent("in/__own", NOW_S + 10, 30) == [(NOW_S + 10, 50.0)]


def test_what_retention_removed_is_no_lag_and_a_topic_made_again_is_no_negative_rate() -> None:
    with broker() as server, Client(server.bootstrap) as client:
        Admin(client).create_topic("cut", partitions=1)
        history, place = History(), TopicPartition("cut", 0)
        sampler = Sampler(ClientPool(server.bootstrap), history)

        def send(count: int) -> None:
            with Producer(client) as producer:
                for _ in range(count):
                    producer.send("cut", b"x", partition=0)

        send(100)
        Groups(client).commit("slow", {place: 10})
        sampler.sample(client, NOW_S)
        assert sampler.snapshot.groups["slow"].lag == 90
        Admin(client).delete_records({place: 70})
        sampler.sample(client, NOW_S + 10)
        assert sampler.snapshot.groups["slow"].lag == 30
        Admin(client).delete_topic("cut")
        Admin(client).create_topic("cut", partitions=1)
        send(5)
        sampler.sample(client, NOW_S + 20)
        assert history.recent("in/cut", NOW_S + 20, 5) == [(NOW_S + 20, 0.0)]


def test_a_partition_whose_leader_is_back_has_not_written_all_its_messages_at_once() -> None:
    sampler = Sampler(ClientPool("127.0.0.1:1"), History())
    sampler._ends = {TopicPartition("back", 0): 1_000_000, TopicPartition("new", 0): 50}
    sampler._made = {TopicPartition("new", 0)}
    values = sampler._values({}, 10.0, NOW_S)
    assert (values["in/back"], values["in/new"], values["in"]) == (0.0, 5.0, 5.0)


def test_the_messages_of_a_new_topic_are_counted_at_once_and_not_with_the_next_look_at_sizes() -> None:
    with broker() as server, Client(server.bootstrap) as client:
        sampler = Sampler(ClientPool(server.bootstrap), History())
        sampler.sample(client, NOW_S)
        Admin(client).create_topic("new", partitions=2)
        with Producer(client) as producer:
            for number in range(7):
                producer.send("new", b"x", partition=number % 2)
        sampler.sample(client, NOW_S + 3)
    assert sampler.snapshot.topics["new"].messages == 7


def test_the_rate_of_a_topic_is_that_of_the_last_seconds_also_when_looks_are_rare() -> None:
    """A large cluster is looked at less often; five looks would be the mean of minutes."""
    with broker() as server, Client(server.bootstrap) as client:
        Admin(client).create_topic("watched", partitions=1)
        sampler = Sampler(ClientPool(server.bootstrap), History())
        sampler.sample(client, NOW_S)
        rates = []
        for sent, at_s in ((0, 10), (0, 20), (100, 30), (10, 31), (10, 32), (10, 33), (10, 34), (10, 35), (10, 36)):
            with Producer(client) as producer:
                for _ in range(sent):
                    producer.send("watched", b"x", partition=0)
            sampler.sample(client, NOW_S + at_s)
            rates.append(sampler.snapshot.topics["watched"].rate)
    assert rates[:3] == [0.0, 0.0, 10.0]
    assert rates[-1] == 10.0


def test_a_broker_that_goes_away_is_said_and_found_again(console: RunningConsole) -> None:
    with broker() as server:
        pool = ClientPool(server.bootstrap)
        sampler = Sampler(pool, History())
        sampler.start()
        try:
            eventually(lambda: sampler.snapshot.taken_s > 0 and not sampler.snapshot.problem)
            server.stop()
            eventually(lambda: sampler.snapshot.problem)
            (alarm,) = alarms(sampler.snapshot, History(), time.time(), Watched())
            assert alarm["title"] == "The broker does not answer"
            server.start()
            eventually(lambda: not sampler.snapshot.problem)
        finally:
            sampler.stop()
            pool.close()


def topic(name: str, **figures: int) -> TopicFigures:
    given = {"partitions": 1, "replicas": 1, "leaderless": 0, "behind": 0, **figures}
    return TopicFigures(name=name, internal=False, **given)


def test_alarms_name_what_is_wrong_and_what_to_do_and_errors_come_first() -> None:
    snapshot = ClusterSnapshot(
        taken_s=NOW_S,
        topics={each.name: each for each in (topic("a", behind=1), *(topic(f"b{n}", leaderless=1) for n in range(5)))},
        disk=DiskFigures(total=1000, usable=80),
    )
    found = alarms(snapshot, History(), NOW_S, Watched())
    assert [(each["level"], each["title"]) for each in found] == [
        ("error", "Partitions without a leader"),
        ("warning", "Replicas are not in sync"),
        ("warning", "The disk is filling up"),
    ]
    assert "b0, b1, b2 and 2 more topics" in found[0]["text"]
    assert "headrace log verify" in found[0]["text"]
    assert "retention" in found[2]["text"]


def test_a_disk_that_fills_up_is_forecast_and_one_that_does_not_is_steady() -> None:
    shrinking, steady = History(), History()
    for second in range(0, 600, 5):
        shrinking.add(NOW_S + second, {"free": 100_000.0 - 10 * second})
        steady.add(NOW_S + second, {"free": 100_000.0})
    snapshot = ClusterSnapshot(taken_s=NOW_S, disk=DiskFigures(total=200_000, usable=94_000))
    expected = forecast(snapshot, shrinking, NOW_S + 600)
    assert expected.state == "shrinks"
    assert expected.full_in_s is not None
    assert math.isclose(expected.full_in_s, 9_400, rel_tol=0.01)
    assert forecast(snapshot, steady, NOW_S + 600).state == "steady"
    assert forecast(snapshot, History(), NOW_S).state == "unknown"
    assert [each["title"] for each in alarms(snapshot, shrinking, NOW_S + 600, Watched())] == ["The disk is filling up"]
    assert alarms(snapshot, steady, NOW_S + 600, Watched()) == []


def test_two_minutes_of_writing_are_no_forecast_of_a_day() -> None:
    """A build or a download that fills the disk for some minutes must not raise an alarm; an hour of it must."""
    history = History()
    snapshot = ClusterSnapshot(taken_s=NOW_S, disk=DiskFigures(total=200_000, usable=94_000))
    for second in range(0, 181, 5):
        history.add(NOW_S + second, {"free": 100_000.0 - 2 * second})
    assert forecast(snapshot, history, NOW_S + 180).state == "unknown"
    assert alarms(snapshot, history, NOW_S + 180, Watched()) == []
    for second in range(185, 3_601, 5):
        history.add(NOW_S + second, {"free": 100_000.0 - 2 * second})
    assert forecast(snapshot, history, NOW_S + 3_600).state == "shrinks"
    assert [each["title"] for each in alarms(snapshot, history, NOW_S + 3_600, Watched())] == ["The disk is filling up"]


def test_a_group_that_only_falls_behind_is_an_alarm_and_one_that_catches_up_is_not() -> None:
    history = History()
    for second in range(0, 300, 5):
        history.add(NOW_S + second, {"lag/slow": 1_000.0 + 10 * second, "lag/fast": 9_000.0 - 10 * second})
    groups = {
        "slow": GroupFigures(name="slow", state="Stable", kind="classic", lag=4_000),
        "fast": GroupFigures(name="fast", state="Stable", kind="classic", lag=6_000),
    }
    found = alarms(ClusterSnapshot(taken_s=NOW_S, groups=groups), history, NOW_S + 300, Watched())
    assert [each["title"] for each in found] == ["Group slow falls behind"]
    empty = {"slow": GroupFigures(name="slow", state="Empty", kind="classic", lag=4_000)}
    (alarm,) = alarms(ClusterSnapshot(taken_s=NOW_S, groups=empty), history, NOW_S + 300, Watched())
    assert "no members" in alarm["text"]


def test_a_pipeline_that_falls_behind_is_no_group_without_members() -> None:
    history = History()
    for second in range(0, 300, 5):
        history.add(NOW_S + second, {"lag/headrace-spark-of-days": 1_000.0 + 10 * second})
    name = "headrace-spark-of-days"
    groups = {name: GroupFigures(name=name, state="Empty", kind="classic", lag=4_000)}
    snapshot, now_ms = ClusterSnapshot(taken_s=NOW_S, groups=groups), time.time_ns() // 1_000_000
    for ended, words in ((False, "which phase of a batch"), (True, "does not run")):
        record = StateRecord(kind="pipeline", name="of days", ended=ended, at_ms=now_ms)
        (alarm,) = alarms(snapshot, history, NOW_S + 300, Watched(states={record.key: record}))
        assert (alarm["title"], alarm["link"]) == ("Pipeline of days falls behind", "/pipelines/of%20days")
        assert words in alarm["text"]


def test_nobody_is_lost_for_a_silence_in_which_the_broker_did_not_answer() -> None:
    def heard(at_ms: int, seen_ms: int, **gap: int) -> bool:
        record = StateRecord(kind="pipeline", name="orders", at_ms=at_ms)
        return Watched(states={record.key: record}, seen_ms=seen_ms, **gap).is_lost(record)

    hour = 3_600_000
    now_ms = time.time_ns() // 1_000_000
    assert not heard(now_ms - hour, now_ms - hour + 1_000), "the broker has not answered for an hour"
    gap = {"left_ms": now_ms - hour, "back_ms": now_ms - 2_000}
    assert not heard(now_ms - hour, now_ms, **gap), "it is back, and the pipeline had no time to report"
    assert heard(now_ms - hour, now_ms, **gap | {"back_ms": now_ms - 60_000}), "it had the time"
    assert heard(now_ms - 2 * hour, now_ms, **gap), "it was lost before that"
    assert heard(now_ms - hour, now_ms)


def test_the_time_in_which_the_broker_did_not_answer_is_noted_when_it_is_over() -> None:
    watch = Watch("127.0.0.1:1")

    def gap(seen: Watched) -> tuple[int, int, int, str]:
        watch.newest = seen
        return seen.seen_ms, seen.left_ms, seen.back_ms, seen.problem

    assert gap(watch.heard({}, 1_000)) == (1_000, 0, 0, "")
    assert gap(watch.heard({}, 2_000)) == (2_000, 0, 0, "")
    watch.newest = replace(watch.newest, problem="connection refused")
    assert gap(watch.heard({}, 9_000)) == (9_000, 2_000, 9_000, "")
    assert gap(watch.heard({}, 10_000)) == (10_000, 2_000, 9_000, "")


def test_the_link_of_an_alarm_leads_to_a_group_of_any_name() -> None:
    history, name = History(), "a&b?c#d/e%20"
    for second in range(0, 300, 5):
        history.add(NOW_S + second, {f"lag/{name}": 1_000.0 + 10 * second})
    groups = {name: GroupFigures(name=name, state="Stable", kind="classic", lag=4_000)}
    (alarm,) = alarms(ClusterSnapshot(taken_s=NOW_S, groups=groups), history, NOW_S + 300, Watched())
    assert alarm["link"] == "/groups/a%26b%3Fc%23d%2Fe%2520"


def test_the_overview_shows_what_flows(console: RunningConsole, orders: str) -> None:
    def look() -> set[str]:
        with Client(console.bootstrap) as client, Producer(client) as producer:
            for _ in range(50):
                producer.send("flowing", b"x")
        seen = console.get("overview")
        return {each["name"] for each in seen["busiest"] if each["rate"] > 0 and seen["in"] > 0}

    eventually(look, lambda busy: "flowing" in busy)
    seen = console.get("overview", range=300)
    assert seen["messages"] >= 300
    assert seen["charts"]["flow"]["series"][0]["name"] == "in"
    assert seen["disk"]["total"] > 0
