"""The judge is judged: a sound history passes, and every fault that is planted in it is reported by its name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import CHECKS, Problem, check
from tests.chaos.consumers import odd
from tests.chaos.operations import Operation, attributes, make_value, parse_value, read_lines
from tests.unit.chaos.sound import TOPIC, Sound


@pytest.fixture
def history() -> list[Operation]:
    return copy.deepcopy(Sound().operations)


def kinds(problems: list[Problem]) -> set[str]:
    return {problem.kind for problem in problems}


def reads(history: list[Operation], isolation: str, *, final: bool | None = None) -> list[Operation]:
    return [
        each
        for each in history
        if each["op"] == "read" and each["isolation"] == isolation and final in (None, each["final"])
        if each["reader"] != "again"
    ]


def of_txn(history: list[Operation], txn: str) -> list[Operation]:
    return [each for each in history if each["op"] == "produce" and each["txn"] == txn]


def source_of(produced: Operation) -> str:
    value = parse_value(produced["value"])
    assert value is not None
    return value.source


def take_out(history: list[Operation], value: str, isolation: str | None = None) -> None:
    for each in history:
        if each["op"] == "read" and isolation in (None, each["isolation"]):
            each["records"] = [record for record in each["records"] if record[1] != value]


def put_in(history: list[Operation], produced: Operation, isolation: str, *, final: bool) -> None:
    for each in reads(history, isolation, final=final):
        if (each["topic"], each["partition"]) == (produced["topic"], produced["partition"]):
            each["records"] = sorted([*each["records"], [produced["offset"], produced["value"]]])


def test_a_sound_history_passes(history: list[Operation]) -> None:
    assert check(history) == []


def test_a_history_survives_being_written_as_json_lines(history: list[Operation]) -> None:
    lines = [json.dumps(each) for each in history]
    assert list(read_lines([*lines, "\n"])) == history


# ---- planted faults ----


def drop_an_acknowledged_value(history: list[Operation]) -> None:
    take_out(history, next(each["value"] for each in history if each["op"] == "produce"))


def drop_an_acknowledged_value_for_readers_of_committed_data_only(history: list[Operation]) -> None:
    take_out(history, next(each["value"] for each in history if each["op"] == "produce"), "committed")


def move_an_acknowledged_value_to_another_offset(history: list[Operation]) -> None:
    produced = [each for each in history if each["op"] == "produce"][6]
    produced["offset"] += 1


def duplicate_a_value(history: list[Operation]) -> None:
    for each in reads(history, "uncommitted", final=True)[:1]:
        each["records"].append([each["records"][-1][0] + 1, each["records"][0][1]])


def swap_two_values_of_one_producer(history: list[Operation]) -> None:
    first, second = [each for each in history if each["op"] == "produce" and each["partition"] == 0][:2]
    for each in history:
        if each["op"] == "read":
            swapped = {first["value"]: second["value"], second["value"]: first["value"]}
            each["records"] = [[offset, swapped.get(value, value)] for offset, value in each["records"]]
    first["offset"], second["offset"] = second["offset"], first["offset"]


def hand_out_records_in_the_wrong_order(history: list[Operation]) -> None:
    reads(history, "uncommitted", final=False)[0]["records"].reverse()


def alter_one_character(history: list[Operation]) -> None:
    for each in history:
        if each["op"] == "read":
            each["records"] = [[offset, value.replace("p0/3", "p0/9")] for offset, value in each["records"]]


def cut_a_value(history: list[Operation]) -> None:
    record = reads(history, "committed", final=False)[0]["records"][0]
    record[1] = record[1][:-1]


def invent_a_value(history: list[Operation]) -> None:
    for each in reads(history, "uncommitted")[:1]:
        each["records"].append([99, make_value("v", "p9", 0)])


def show_a_value_in_the_wrong_partition(history: list[Operation]) -> None:
    first, second = reads(history, "uncommitted", final=False)[:2]
    second["records"].append([99, first["records"][0][1]])


def show_a_refused_value(history: list[Operation]) -> None:
    next(each for each in history if each["op"] == "produce")["type"] = "fail"


def change_what_an_offset_means(history: list[Operation]) -> None:
    record = reads(history, "uncommitted", final=False)[0]["records"]
    record[0][1], record[1][1] = record[1][1], record[0][1]


def leak_an_aborted_value(history: list[Operation]) -> None:
    put_in(history, of_txn(history, "t1")[0], "committed", final=False)


def leak_a_value_of_a_transaction_that_nobody_ended(history: list[Operation]) -> None:
    history[:] = [each for each in history if each.get("txn") != "t2" or each["op"] != "end"]


def read_a_value_before_its_transaction_was_to_commit(history: list[Operation]) -> None:
    reads(history, "committed", final=False)[0]["time"] = 0.0


def lose_half_a_transaction(history: list[Operation]) -> None:
    take_out(history, of_txn(history, "t2")[1]["value"], "committed")


def lose_a_whole_committed_transaction(history: list[Operation]) -> None:
    for produced in of_txn(history, "t0"):
        take_out(history, produced["value"], "committed")


def show_an_older_offset_than_was_acknowledged(history: list[Operation]) -> None:
    [each for each in history if each["op"] == "observe"][-1]["offset"] = 4


def show_an_older_offset_than_was_shown(history: list[Operation]) -> None:
    for each in history:
        if each["op"] == "commit":
            each["type"] = "info"
    [each for each in history if each["op"] == "observe"][-1]["offset"] = 3


def show_an_older_offset_than_any_that_the_network_held(history: list[Operation]) -> None:
    """The commits of 4 and 6 were under way; what shows is 2."""
    last = hold_the_last_commits(history)
    history.append(last | {"op": "observe", "offset": 2, "began": last["time"] + 5, "time": last["time"] + 6})


def show_an_older_offset_again_after_a_later_commit(history: list[Operation]) -> None:
    last = hold_the_last_commits(history)
    history.append(last | {"offset": 8, "began": last["time"] + 6, "time": last["time"] + 7})
    history.append(last | {"op": "observe", "offset": 4, "began": last["time"] + 8, "time": last["time"] + 9})


def hold_the_last_commits(history: list[Operation]) -> Operation:
    """The last one. The network went on 4 s after it."""
    *_, before, last = (each for each in history if each["op"] == "commit")
    history.append({"op": "held", "began": before["began"] + 0.5, "time": last["time"] + 4})
    return last


def give_a_partition_to_a_second_owner(history: list[Operation]) -> None:
    own = next(each for each in history if each["op"] == "own" and each["member"] == "b")
    own["time"] = next(each["time"] for each in history if each["op"] == "own") + 0.5


def give_a_partition_of_a_living_member_to_a_second_owner(history: list[Operation]) -> None:
    """Its last heartbeat was sent a moment less before than the broker has to keep it, and answered later."""
    give_a_partition_to_a_second_owner(history)
    history += heartbeats("a", given_to_b(history) - 30, given_to_b(history) - KEPT_S + 0.1)


def given_to_b(history: list[Operation]) -> float:
    return float(next(each["time"] for each in history if each["op"] == "own" and each["member"] == "b"))


KEPT_S = 10.0


def heartbeats(member: str, *began: float) -> list[Operation]:
    return [{"op": "beat", "member": member, "kept_s": KEPT_S, "began": each, "time": each + 3} for each in began]


def transform_an_input_twice(history: list[Operation]) -> None:
    produced = of_txn(history, "e0")[0]
    again = make_value("v", "etl", 99, "e0", source_of(produced))
    repeated = produced | {"value": again, "number": 99, "offset": 99}
    history.append(repeated)
    for isolation in ("committed", "uncommitted"):
        put_in(history, repeated, isolation, final=True)


def skip_an_input(history: list[Operation]) -> None:
    skipped = of_txn(history, "e0")[1]
    history.remove(skipped)
    take_out(history, skipped["value"])


def alter_a_key(history: list[Operation]) -> None:
    read = reads(history, "uncommitted", final=False)[0]
    read["odd"] = [[read["records"][0][0], "(b'another key', [])"]]


def forget_a_record_that_a_reader_had(history: list[Operation]) -> None:
    """Of a value without an answer, so that only its reader knows that it was there."""
    produced = next(each for each in history if each["op"] == "produce")
    produced["type"] = "info"
    for each in history:
        if each["op"] == "read" and each["final"]:
            each["records"] = [record for record in each["records"] if record[1] != produced["value"]]


def leave_a_record_out_of_one_read(history: list[Operation]) -> None:
    del reads(history, "uncommitted", final=False)[0]["records"][2]


def ends(history: list[Operation], topic: str, isolation: str) -> list[Operation]:
    return [
        each for each in history if each["op"] == "ends" and (each["topic"], each["isolation"]) == (topic, isolation)
    ]


def let_the_high_watermark_go_back(history: list[Operation]) -> None:
    ends(history, TOPIC, "uncommitted")[-1]["high"] -= 1


def let_the_last_stable_offset_go_back(history: list[Operation]) -> None:
    for each in history:
        if each["op"] == "read" and each["topic"] == "out":
            each["records"] = []
    ends(history, "out", "committed")[-1]["high"] -= 1


def let_the_end_stay_behind_what_was_acknowledged(history: list[Operation]) -> None:
    first = ends(history, TOPIC, "uncommitted")[0]
    first["high"] -= 1


def let_the_start_go_back(history: list[Operation]) -> None:
    ends(history, "short", "uncommitted")[-1]["low"] = 0


def show_deleted_records_again(history: list[Operation]) -> None:
    first, last = [each for each in history if each["op"] == "read" and each["reader"] == "again"]
    last["records"] = first["records"]


def folds(history: list[Operation]) -> list[Operation]:
    return [each for each in history if each["op"] == "fold"]


def show_an_older_value_of_a_key(history: list[Operation]) -> None:
    folds(history)[-1]["table"]["a"] = [0, make_value("a", "k0", 0)]


def drop_a_key(history: list[Operation]) -> None:
    del folds(history)[-1]["table"]["a"]


def bring_a_deleted_key_back(history: list[Operation]) -> None:
    folds(history)[-1]["table"]["b"] = [1, make_value("b", "k0", 1)]


def move_a_value_of_a_key(history: list[Operation]) -> None:
    folds(history)[-1]["table"]["a"][0] = 7


def invent_a_key(history: list[Operation]) -> None:
    folds(history)[-1]["table"]["z"] = [9, make_value("z", "k0", 9)]


def let_a_key_go_back_to_a_value_that_nobody_had_acknowledged(history: list[Operation]) -> None:
    for each in history:
        if each["op"] == "put" and each["key"] == "a":
            each["type"] = "info"
    folds(history)[-1]["table"]["a"] = [0, make_value("a", "k0", 0)]


def lives(history: list[Operation]) -> list[Operation]:
    return [each for each in history if each["op"] == "life-read"]


def show_a_record_of_the_deleted_topic(history: list[Operation]) -> None:
    lives(history)[1]["records"].append([2, make_value("0", "r0", 0)])


def begin_a_new_topic_with_a_batch_from_the_middle_of_the_deleted_one(history: list[Operation]) -> None:
    records = lives(history)[1]["records"]
    records[:] = [[0, make_value("0", "r0", 1)], *([offset + 1, value] for offset, value in records)]


def alter_a_record_of_a_new_topic(history: list[Operation]) -> None:
    lives(history)[0]["records"][0][1] += "x"


def lose_a_record_of_the_new_topic(history: list[Operation]) -> None:
    lives(history)[1]["records"].pop()


FAULTS: list[tuple[Callable[[list[Operation]], None], str]] = [
    (drop_an_acknowledged_value, "lost"),
    (drop_an_acknowledged_value_for_readers_of_committed_data_only, "lost"),
    (move_an_acknowledged_value_to_another_offset, "lost"),
    (duplicate_a_value, "duplicate"),
    (swap_two_values_of_one_producer, "out of order"),
    (hand_out_records_in_the_wrong_order, "out of order"),
    (alter_one_character, "altered value"),
    (cut_a_value, "altered value"),
    (invent_a_value, "phantom"),
    (show_a_value_in_the_wrong_partition, "phantom"),
    (show_a_refused_value, "phantom"),
    (change_what_an_offset_means, "offset changed"),
    (leak_an_aborted_value, "uncommitted read"),
    (leak_a_value_of_a_transaction_that_nobody_ended, "uncommitted read"),
    (read_a_value_before_its_transaction_was_to_commit, "uncommitted read"),
    (lose_half_a_transaction, "half a transaction"),
    (lose_a_whole_committed_transaction, "half a transaction"),
    (show_an_older_offset_than_was_acknowledged, "committed offset went back"),
    (show_an_older_offset_than_was_shown, "committed offset went back"),
    (show_an_older_offset_than_any_that_the_network_held, "committed offset went back"),
    (show_an_older_offset_again_after_a_later_commit, "committed offset went back"),
    (give_a_partition_to_a_second_owner, "two owners"),
    (give_a_partition_of_a_living_member_to_a_second_owner, "two owners"),
    (transform_an_input_twice, "transformed not exactly once"),
    (skip_an_input, "transformed not exactly once"),
    (alter_a_key, "altered key or header"),
    (forget_a_record_that_a_reader_had, "read and gone"),
    (leave_a_record_out_of_one_read, "skipped"),
    (let_the_high_watermark_go_back, "end went back"),
    (let_the_last_stable_offset_go_back, "end went back"),
    (let_the_end_stay_behind_what_was_acknowledged, "end went back"),
    (let_the_start_go_back, "start went back"),
    (show_deleted_records_again, "deleted records came back"),
    (show_an_older_value_of_a_key, "older value of a key"),
    (drop_a_key, "older value of a key"),
    (bring_a_deleted_key_back, "older value of a key"),
    (move_a_value_of_a_key, "older value of a key"),
    (invent_a_key, "older value of a key"),
    (let_a_key_go_back_to_a_value_that_nobody_had_acknowledged, "key went back"),
    (show_a_record_of_the_deleted_topic, "deleted topic came back"),
    (begin_a_new_topic_with_a_batch_from_the_middle_of_the_deleted_one, "deleted topic came back"),
    (alter_a_record_of_a_new_topic, "deleted topic came back"),
    (lose_a_record_of_the_new_topic, "lost of a new topic"),
]


@pytest.mark.parametrize(("plant", "kind"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_reported(
    history: list[Operation], plant: Callable[[list[Operation]], None], kind: str
) -> None:
    plant(history)
    assert kind in kinds(check(history))


def test_a_member_that_heard_nothing_for_as_long_as_it_must_be_kept_is_no_owner(history: list[Operation]) -> None:
    give_a_partition_to_a_second_owner(history)
    history += heartbeats("a", given_to_b(history) - 30, given_to_b(history) - KEPT_S)
    history += heartbeats("a", given_to_b(history) + 1, given_to_b(history) + 2)
    assert check(history) == []


def test_heartbeats_of_another_member_excuse_nobody(history: list[Operation]) -> None:
    give_a_partition_to_a_second_owner(history)
    history += heartbeats("c", given_to_b(history) - 30)
    assert kinds(check(history)) == {"two owners"}


def test_every_check_has_a_fault_that_it_finds() -> None:
    assert {kind for _, kind in FAULTS} | {"broken harness"} == set(CHECKS)


def test_a_value_that_the_harness_uses_twice_is_its_own_mistake(history: list[Operation]) -> None:
    history.append(copy.deepcopy(next(each for each in history if each["op"] == "produce")))
    assert kinds(check(history)) == {"broken harness"}


def test_many_faults_of_one_kind_are_cut_short(history: list[Operation]) -> None:
    for each in reads(history, "uncommitted"):
        each["records"] += [[1000 + number, make_value("v", "p9", number)] for number in range(50)]
    found = [problem for problem in check(history) if problem.kind == "phantom"]
    assert len(found) == 21
    assert found[-1].detail == "… and more"


# ---- what must not be reported ----


def test_a_run_that_broke_off_is_not_blamed_for_what_nobody_drained(history: list[Operation]) -> None:
    leak_an_aborted_value(history)
    broken_off = [each for each in history if not each.get("final")]
    assert kinds(check(broken_off, complete=False)) == {"uncommitted read"}


def test_a_value_without_an_answer_may_be_there_or_not(history: list[Operation]) -> None:
    unsure = make_value("v", "p0", 7)
    history.append(
        {"op": "produce", "type": "info", "producer": "p0", "number": 7, "topic": "else", "partition": 0}
        | {"value": unsure, "txn": None, "time": 900.0}
    )
    assert check(history) == []
    history.append(
        {"op": "read", "reader": "r", "isolation": "uncommitted", "topic": "else", "partition": 0, "time": 901.0}
        | {"records": [[0, unsure]], "final": True}
    )
    assert check(history) == []


def test_a_transaction_without_an_answer_may_be_gone_as_a_whole(history: list[Operation]) -> None:
    gone = of_txn(history, "t2")
    places = {f"{each['topic']}:{each['partition']}:{each['offset']}" for each in gone}
    for produced in gone:
        take_out(history, produced["value"], "committed")
    for produced in of_txn(history, "e0"):
        if source_of(produced) in places:
            history.remove(produced)
            take_out(history, produced["value"])
    assert check(history) == []


def test_an_observation_that_overlaps_a_commit_may_show_either(history: list[Operation]) -> None:
    last = [each for each in history if each["op"] == "commit"][-1]
    observed = [each for each in history if each["op"] == "observe"][-1]
    observed["offset"] = 4
    observed["began"] = last["time"] - 0.5
    assert check(history) == []


def test_a_commit_that_the_network_held_may_show_again_and_others_go_on_from_there(history: list[Operation]) -> None:
    last = hold_the_last_commits(history)
    for number, (op, offset) in enumerate((("observe", 4), ("commit", 5), ("observe", 5))):
        began = last["time"] + 7 + 2 * number
        history.append(last | {"op": op, "offset": offset, "began": began, "time": began + 1})
    assert check(history) == []


def test_a_commit_without_an_answer_may_never_show(history: list[Operation]) -> None:
    [each for each in history if each["op"] == "commit"][-1]["type"] = "info"
    [each for each in history if each["op"] == "observe"][-1]["offset"] = 4
    assert check(history) == []


def test_the_same_member_may_be_told_of_its_partition_again(history: list[Operation]) -> None:
    own = next(each for each in history if each["op"] == "own")
    history.append(own | {"time": own["time"] + 0.25})
    assert check(history) == []


# ---- keys and headers ----


class Message:
    """What librdkafka hands out."""

    def __init__(self, value: str) -> None:
        key, headers = attributes(value)
        self.parts: dict[str, Any] = {
            "value": value.encode(),
            "key": key.encode(),
            "headers": [(name, text.encode()) for name, text in headers],
        }

    def value(self) -> bytes:
        return self.parts["value"]

    def key(self) -> bytes:
        return self.parts["key"]

    def headers(self) -> list[tuple[str, bytes]]:
        return self.parts["headers"]


def test_the_key_and_headers_that_a_value_was_written_with_are_nothing_odd() -> None:
    assert odd(Message(make_value("v", "p0", 1))) is None


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("key", None),
        ("key", b"another"),
        ("headers", None),
        ("headers", []),
        ("headers", [("checksum", b"00000000"), ("length", b"1")]),
    ],
)
def test_another_key_or_header_is_odd(part: str, wrong: Any) -> None:
    message = Message(make_value("v", "p0", 1))
    message.parts[part] = wrong
    assert odd(message) is not None


def test_headers_in_another_order_are_odd() -> None:
    message = Message(make_value("v", "p0", 1))
    message.parts["headers"].reverse()
    assert odd(message) is not None


def test_deleted_records_may_be_read_by_whoever_began_before(history: list[Operation]) -> None:
    first, last = [each for each in history if each["op"] == "read" and each["reader"] == "again"]
    last["records"] = first["records"]
    last["began"] = first["began"]
    assert check(history) == []
