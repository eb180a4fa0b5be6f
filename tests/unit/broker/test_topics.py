"""Topics come, change and go, and are as they were after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.broker.broker import settled
from headrace.config import Source
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headrace.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.kafka.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.unit.broker.harness import Harness, fetched, running
from tests.waiting import PATIENCE_S, eventually_on_loop

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4


async def alter(harness: Harness, kind: int, name: str, **configs: str) -> int:
    changes = [
        IncrementalAlterConfigsRequestAlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in configs.items()
    ]
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=changes
    )
    answer = await harness.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    return int(answer.responses[0].error_code)


async def config(harness: Harness, name: str, key: str) -> tuple[str, int]:
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=[key])
    answer = await harness.ask(DescribeConfigsRequest(resources=[resource]))
    entry = answer.results[0].configs[0]
    return entry.value, entry.config_source


async def delete(harness: Harness, name: str) -> int:
    answer = await harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000))
    return int(answer.responses[0].error_code)


def test_topics_partitions_and_settings_are_as_they_were_after_a_restart(tmp_path: Path) -> None:
    async def before() -> None:
        async with running(tmp_path) as harness:
            await harness.create("kept", 3, retention_ms="12345")
            await harness.create("dropped")
            await harness.produce("kept", [b"x"], 2)
            grow = CreatePartitionsTopic(name="kept", count=5, assignments=None)
            assert (await harness.ask(CreatePartitionsRequest(topics=[grow]))).results[0].error_code == 0
            assert await alter(harness, TOPIC_RESOURCE, "kept", segment_ms="777777") == 0
            assert await alter(harness, BROKER_RESOURCE, "", log_retention_bytes="4096") == 0
            assert await delete(harness, "dropped") == 0

    async def after() -> None:
        async with running(tmp_path) as harness:
            assert [each.name for each in harness.broker.topics.all()] == ["kept"]
            topic = harness.broker.topics.get("kept")
            assert topic is not None
            assert len(topic.partitions) == 5
            assert await config(harness, "kept", "retention.ms") == ("12345", 1)
            assert await config(harness, "kept", "segment.ms") == ("777777", 1)
            assert await config(harness, "kept", "retention.bytes") == ("4096", Source.DYNAMIC_DEFAULT)
            assert topic.partitions[0].log.config.retention_bytes == 4096
            assert await harness.values("kept", 0, 2) == [b"x"]

    asyncio.run(before())
    asyncio.run(after())


def test_what_must_be_compacted_before_it_may_be_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            with pytest.raises(AssertionError, match=r"min.compaction.lag.ms \(9\) > max.compaction.lag.ms \(8\)"):
                await harness.create("t", min_compaction_lag_ms="9", max_compaction_lag_ms="8")
            await harness.create("t", min_compaction_lag_ms="8", max_compaction_lag_ms="8")
            refused = await alter(harness, TOPIC_RESOURCE, "t", min_compaction_lag_ms="9")
            assert refused == ErrorCode.INVALID_CONFIG
            assert await config(harness, "t", "min.compaction.lag.ms") == ("8", Source.TOPIC)
            assert await alter(harness, BROKER_RESOURCE, "", log_cleaner_max_compaction_lag_ms="5") == 0
            refused = await alter(harness, TOPIC_RESOURCE, "t", min_compaction_lag_ms="9", max_compaction_lag_ms="10")
            assert refused == ErrorCode.NONE

    asyncio.run(scenario())


def test_storage_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            with pytest.raises(AssertionError, match="Tiered Storage functionality is disabled"):
                await harness.create("t", remote_storage_enable="true")
            await harness.create("t", remote_storage_enable="false")
            refused = await alter(harness, TOPIC_RESOURCE, "t", remote_storage_enable="true")
            assert refused == ErrorCode.INVALID_CONFIG

    asyncio.run(scenario())


def test_a_topic_made_again_under_its_name_does_not_see_the_old_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", [b"old"])
            assert await delete(harness, "t") == 0
            await harness.create("t")
            assert await harness.values("t") == []
            await harness.produce("t", [b"new"])
        async with running(tmp_path) as harness:
            assert await harness.values("t") == [b"new"]

    asyncio.run(scenario())


def test_the_files_of_a_deleted_topic_go(tmp_path: Path) -> None:
    def leftovers() -> list[Path]:
        return list(tmp_path.glob("*/t~*"))

    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", 3)
            await harness.produce("t", [b"x"])
            await delete(harness, "t")
            await eventually_on_loop(
                lambda: (leftovers(), harness.broker.state.table("deleted")), lambda left: left == ([], {})
            )

    asyncio.run(scenario())


def test_a_waiting_fetch_learns_that_its_topic_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            waiting = harness.start(harness.fetch_body("t", 0, max_wait_ms=600_000), 12)
            await delete(harness, "t")
            answer = await asyncio.wait_for(settled(waiting), PATIENCE_S)
            code = answer.responses[0].partitions[0].error_code
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())


def test_deleted_records_stay_deleted_after_a_restart(tmp_path: Path) -> None:
    async def before() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", [b"0", b"1", b"2"])
            ask = DeleteRecordsPartition(partition_index=0, offset=2)
            body = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[ask])], timeout_ms=1000)
            assert (await harness.ask(body)).topics[0].partitions[0].low_watermark == 2

    async def after() -> None:
        async with running(tmp_path) as harness:
            assert harness.partition("t", 0).log.start_offset == 2
            assert (await harness.fetch("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    asyncio.run(before())
    asyncio.run(after())


def test_deleting_records_writes_a_checkpoint_only_when_a_start_offset_moves(tmp_path: Path) -> None:
    def body(*offsets: int) -> DeleteRecordsRequest:
        asks = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in offsets]
        return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=asks)], timeout_ms=1000)

    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", [b"0", b"1", b"2"])
            maintenance = harness.broker.maintenance
            await harness.ask(body(2))
            before = maintenance.checkpoints
            for offset in (0, 1, 2):
                await harness.ask(body(offset))
            await harness.ask(body())
            assert maintenance.checkpoints == before
            replies = [harness.start(body(3)) for _ in range(10)]
            for reply in replies:
                await asyncio.wait_for(settled(reply), PATIENCE_S)
            assert maintenance.checkpoints == before + 1, "those that came together share one"

    asyncio.run(scenario())


def test_a_broker_setting_that_was_altered_and_is_deleted_falls_back_to_what_was_given_at_the_start(
    tmp_path: Path,
) -> None:
    async def described(harness: Harness) -> tuple[str, int, list[tuple[str | None, int]]]:
        resource = DescribeConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=["log.retention.ms"]
        )
        answer = await harness.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
        entry = answer.results[0].configs[0]
        return entry.value, entry.config_source, [(each.value, each.source) for each in entry.synonyms]

    async def change(harness: Harness, operation: int, value: str | None) -> None:
        setting = IncrementalAlterConfigsRequestAlterableConfig(
            name="log.retention.ms", config_operation=operation, value=value
        )
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name="1", configs=[setting]
        )
        answer = await harness.ask(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0

    async def scenario() -> None:
        given = ("-1", Source.STATIC)
        async with running(tmp_path, {"log.retention.ms": "-1"}) as harness:
            assert await described(harness) == (*given, [given])
            await change(harness, 0, "3600000")
            altered = ("3600000", Source.DYNAMIC_BROKER)
            assert await described(harness) == (*altered, [altered, given])
            await change(harness, 1, None)
            assert await described(harness) == (*given, [given])
            await harness.create("t")
            assert await config(harness, "t", "retention.ms") == given

    asyncio.run(scenario())


def test_metadata_makes_a_topic_only_where_both_sides_allow_it(tmp_path: Path) -> None:
    async def code(harness: Harness, allowed: bool) -> int:
        body = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=allowed)
        return int((await harness.ask(body)).topics[0].error_code)

    async def scenario() -> None:
        async with running(tmp_path / "off", {"auto.create.topics.enable": "false"}) as harness:
            assert await code(harness, True) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async with running(tmp_path / "on", {"num.partitions": 4}) as harness:
            assert await code(harness, False) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await code(harness, True) == 0
            topic = harness.broker.topics.get("auto")
            assert topic is not None
            assert len(topic.partitions) == 4

    asyncio.run(scenario())


def test_a_directory_that_no_topic_claims_is_reported_and_left(tmp_path: Path, caplog: object) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
        stray = tmp_path / "topics" / f"stray~{'ab' * 16}" / "0"
        stray.mkdir(parents=True)
        (stray / "00000000000000000000.log").write_bytes(b"somebody's data")
        async with running(tmp_path):
            assert "belong to no topic" in caplog.text  # type: ignore[attr-defined]
        assert (stray / "00000000000000000000.log").read_bytes() == b"somebody's data"

    asyncio.run(scenario())


def test_what_was_written_before_a_topic_became_an_ack_topic_stays_visible(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", headrace_flush="os")
            await harness.produce("t", [b"quick"])
            assert await harness.values("t") == [b"quick"]
            assert await alter(harness, TOPIC_RESOURCE, "t", headrace_flush="ack") == 0
            answer = await harness.fetch("t", 0, max_wait_ms=2_000)
            assert [record.value for record in fetched(answer)] == [b"quick"]
            assert answer.high_watermark == 1

    asyncio.run(scenario())


def test_a_damaged_partition_is_not_served_and_the_others_are(tmp_path: Path) -> None:
    def damage() -> Path:
        (log,) = tmp_path.glob("topics/t~*/1/*.log")
        log.write_bytes(log.read_bytes()[:20])
        return log

    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", 2)
            await harness.produce("t", [b"fine"], 0)
            await harness.produce("t", [b"x" * 500], 1)
        damaged = damage()
        async with running(tmp_path) as harness:
            assert await harness.values("t", 0, 0) == [b"fine"]
            assert (await harness.produce("t", [b"more"], 0)).error_code == 0
            assert (await harness.fetch("t", 0, 1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await harness.produce("t", [b"lost?"], 1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            metadata = await harness.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
            codes = [each.error_code for each in metadata.topics[0].partitions]
            assert codes == [0, ErrorCode.LEADER_NOT_AVAILABLE]
            await harness.broker.maintenance.apply_retention()
        assert damaged.stat().st_size == 20, "nothing was cut, nothing was repaired by guesswork"
        async with running(tmp_path) as harness:
            assert (await harness.fetch("t", 0, 1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert await delete(harness, "t") == 0
            await harness.create("t", 2)
            assert (await harness.produce("t", [b"anew"], 1)).base_offset == 0

    asyncio.run(scenario())
