"""What each broker says it speaks, and what it does with versions it does not."""

from __future__ import annotations

import struct

import pytest

from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.apis import APIS
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers

BETWEEN_BROKERS = ApiKey.ADD_PARTITIONS_TO_TXN
"""Its versions above 3 are for brokers among themselves: Kafka does not advertise them on every listener."""


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_advertised_versions_are_those_of_apache_kafka(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        answer = s.ask("ApiVersions", version, client_software_name="test", client_software_version="1.0")
        ranges = {each["api_key"]: [each["min_version"], each["max_version"]] for each in answer["api_keys"]}
        compared = [key for key in sorted(APIS) if key != BETWEEN_BROKERS and not APIS[key].is_own]
        s.notes.append([answer["error_code"], {key: ranges.get(key) for key in compared}])

    same_as_kafka(play)


def test_the_finalized_features_steer_clients_to_the_same_protocols(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        answer = s.ask("ApiVersions", 4, client_software_name="test", client_software_version="1.0")
        wanted = {"group.version", "transaction.version"}
        s.notes.append(
            sorted([f["name"], f["max_version_level"]] for f in answer["finalized_features"] if f["name"] in wanted)
        )

    same_as_kafka(play)


def test_an_unknown_version_of_api_versions_is_answered_in_version_zero(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = b"test"
        s.main.send_frame(struct.pack(">hhih", 18, 99, 7, len(name)) + name + b"\x00" + b"\x02x\x02y\x00")
        frame = s.main.receive_frame()
        assert frame is not None
        correlation_id, error_code, count = struct.unpack_from(">ihi", frame)
        api_keys = [struct.unpack_from(">hhh", frame, 10 + 6 * n) for n in range(count)]
        assert len(frame) == 10 + 6 * count
        s.notes.append([correlation_id, error_code, [list(each) for each in api_keys if each[0] == 18]])
        s.note("the connection goes on", "FindCoordinator", key_type=0, coordinator_keys=["g"])

    same_as_kafka(play)


def test_api_versions_with_an_invalid_client_name_is_an_invalid_request(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        answer = s.ask("ApiVersions", 3, client_software_name="not a name!", client_software_version="1.0")
        s.notes.append(answer["error_code"])

    same_as_kafka(play)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(3, 99), (0, 2), (0, 99), (1, 3), (1, 99), (19, 1), (8, 1), (9, 0), (12345, 0), (-1, 0), (4, 0), (3, -1)],
)
def test_an_unknown_api_or_version_closes_the_connection(same_as_kafka: Compare, api_key: int, version: int) -> None:
    def play(s: Scenario) -> None:
        s.main.send_frame(struct.pack(">hhih", api_key, version, 1, 4) + b"test" + bytes(64))
        s.notes.append("closed" if s.main.receive_frame() is None else "answered")

    same_as_kafka(play)


@pytest.mark.parametrize("frame", [b"", b"\x00", bytes(7), b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x7fx"])
def test_a_frame_too_short_for_its_header_closes_the_connection(same_as_kafka: Compare, frame: bytes) -> None:
    def play(s: Scenario) -> None:
        s.main.send_frame(frame)
        s.notes.append("closed" if s.main.receive_frame() is None else "answered")

    same_as_kafka(play)


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 104_857_601])
def test_a_frame_length_that_is_negative_or_above_the_limit_closes_the_connection(
    same_as_kafka: Compare, length: int
) -> None:
    def play(s: Scenario) -> None:
        s.main.socket.sendall(struct.pack(">i", length) + bytes(16))
        s.notes.append("closed" if s.main.receive_frame() is None else "answered")

    same_as_kafka(play)
