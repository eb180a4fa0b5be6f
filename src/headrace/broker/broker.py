"""The broker: its parts put together, and the table that says which of them answers which API."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

from headrace.broker.admin import Administering
from headrace.broker.cluster import Clustering
from headrace.broker.configs import Configuring
from headrace.broker.fetch import Fetching
from headrace.broker.groups import GroupCoordinator
from headrace.broker.metadata import Describing
from headrace.broker.overflow import Overflow
from headrace.broker.partition import Partition
from headrace.broker.positions import Positions
from headrace.broker.produce import Producing
from headrace.broker.request import Peer, Reply, Request
from headrace.broker.state import StateStore
from headrace.broker.topics import Topics
from headrace.broker.transactions import TransactionCoordinator
from headrace.broker.upkeep import Upkeep
from headrace.config import Settings, Source
from headrace.errors import ErrorCode, KafkaError
from headrace.log.config import FlushMode, LogConfig
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.store import LogStore
from headrace.ports import Clock

__all__ = ["Broker"]

LOG = logging.getLogger("headrace.broker")

STATE_NAME = "__headrace_state"
STATE_ID = UUID(int=1)

Handler = Callable[[Request[Any]], Reply]


class Broker:
    """Everything between a decoded request and its answer. One thread, the event loop's, owns it."""

    def __init__(self, *, store: LogStore, flusher: Flusher, clock: Clock, settings: Settings) -> None:
        self.store = store
        self.flusher = flusher
        self.clock = clock
        self.settings = settings
        self.node_id = settings.integer("broker.id")
        self.addresses: dict[str, tuple[str, int]] = {}
        self.state = StateStore(self._open_state(), flusher, clock)
        self._dynamic: set[str] = set()
        self.apply_dynamic_settings(first=True)
        self.cluster_id, leader_epoch = self._identity()
        self.topics = Topics(
            state=self.state, store=store, flusher=flusher, clock=clock, settings=settings, leader_epoch=leader_epoch
        )
        self.topics.load()
        self.groups = GroupCoordinator(state=self.state, clock=clock, settings=settings, topics=self.topics)
        self.transactions = TransactionCoordinator(
            state=self.state, clock=clock, settings=settings, topics=self.topics, groups=self.groups
        )
        self.groups.verify_producer = self.transactions.verify_producer
        self.overflow = Overflow(self)
        self.upkeep = Upkeep(self)
        self.topics.on_deleted = self.upkeep.remove_deleted
        self._handlers = self._table()
        store.sync_recovered()
        self._report_unclaimed()

    def start(self) -> None:
        """Begin what happens by itself: timeouts, retention, compaction, checkpoints."""
        self.groups.load()
        self.transactions.load()
        self.upkeep.start()

    async def stop(self) -> None:
        """An orderly end; afterwards the store may be closed."""
        await self.upkeep.stop()
        self.transactions.close()
        self.groups.close()

    def handle(self, request: Request[Any]) -> Reply:
        """Answer a request, now or later. A KafkaError that escapes here is a bug of ours, not the peer's."""
        return self._handlers[request.api_key](request)

    def answers(self) -> frozenset[int]:
        """The API keys that have a handler."""
        return frozenset(self._handlers)

    def _table(self) -> dict[int, Handler]:
        producing, fetching, positions = Producing(self), Fetching(self), Positions(self)
        describing, administering, configuring = Describing(self), Administering(self), Configuring(self)
        clustering = Clustering(self)
        self.fetching = fetching
        groups, transactions = self.groups, self.transactions
        return {
            0: producing.produce,
            1: fetching.fetch,
            2: positions.list_offsets,
            3: describing.metadata,
            8: groups.offset_commit,
            9: groups.offset_fetch,
            10: describing.find_coordinator,
            11: groups.join_group,
            12: groups.heartbeat,
            13: groups.leave_group,
            14: groups.sync_group,
            15: groups.describe_groups,
            16: groups.list_groups,
            18: describing.api_versions,
            19: administering.create_topics,
            20: administering.delete_topics,
            21: administering.delete_records,
            22: transactions.init_producer_id,
            23: positions.offset_for_leader_epoch,
            24: transactions.add_partitions_to_txn,
            25: transactions.add_offsets_to_txn,
            26: transactions.end_txn,
            28: groups.txn_offset_commit,
            32: configuring.describe_configs,
            33: configuring.alter_configs,
            34: clustering.alter_replica_log_dirs,
            35: administering.describe_log_dirs,
            37: administering.create_partitions,
            42: groups.delete_groups,
            43: administering.elect_leaders,
            44: configuring.incremental_alter_configs,
            45: clustering.alter_partition_reassignments,
            46: clustering.list_partition_reassignments,
            47: groups.offset_delete,
            55: clustering.describe_quorum,
            57: clustering.update_features,
            60: describing.describe_cluster,
            61: administering.describe_producers,
            65: transactions.describe_transactions,
            66: transactions.list_transactions,
            68: groups.consumer_group_heartbeat,
            69: groups.consumer_group_describe,
            74: configuring.list_config_resources,
            75: describing.describe_topic_partitions,
        }

    # ---- what the parts ask of the whole ----

    def partition(self, topic: str, index: int) -> Partition:
        found = self.topics.get(topic)
        partition = found.partition(index) if found is not None else None
        if partition is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of a topic '{topic}' here"
            )
        return partition

    def address_for(self, peer: Peer) -> tuple[str, int]:
        """The address a client is told to use: the advertised one of the listener it came through."""
        return self.addresses.get(peer.listener, ("127.0.0.1", 0))

    def storage_failed(self, error: BaseException) -> None:
        """A sync failed: what it should have made durable may be lost, so nothing more is promised."""
        self.flusher.fail(error)

    def report_storage_error(self, error: KafkaError) -> None:
        LOG.error("%s", error)

    def apply_dynamic_settings(self, *, first: bool = False) -> None:
        """Settings altered while running stand above file, environment and flags."""
        rows = self.state.table("broker_config")
        for name in list(self._dynamic) if not first else []:
            if name not in rows:
                self.settings.drop(name)
        self._dynamic = set(rows)
        for name, row in rows.items():
            self.settings.give(name, row["value"], "altered at run time", Source.DYNAMIC_BROKER)
        if not first:
            self.topics.settings_changed()

    # ---- beginning ----

    def _open_state(self) -> PartitionLog:
        config = LogConfig(
            segment_bytes_max=16 << 20, cleanup_delete=False, retention_ms=-1, retention_bytes=-1, flush=FlushMode.ACK
        )
        return self.store.open_log(STATE_NAME, STATE_ID, 0, config)

    def _identity(self) -> tuple[str, int]:
        """The cluster's id, made once, and this run's leader epoch: it rises at each start, so a client that read what
        a crash took back can tell (OffsetForLeaderEpoch)."""
        row = self.state.table("node").get("identity")
        if row is None:
            row = {"cluster_id": base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("="), "starts": 0}
        else:
            row = {**row, "starts": row["starts"] + 1}
        self.state.put("node", "identity", row)
        return str(row["cluster_id"]), int(row["starts"])

    def _report_unclaimed(self) -> None:
        """Directories that no topic claims are somebody's data: said, never removed."""
        claimed = {topic.topic_id for topic in self.topics.all()}
        unclaimed = {
            f"{name}~{topic_id.hex}"
            for name, topic_id, _ in self.store.partitions_on_disk()
            if topic_id != STATE_ID and topic_id.bytes not in claimed
        } - set(self.state.table("deleted"))
        for key in sorted(unclaimed):
            LOG.warning("%s/topics/%s belongs to no topic; it is left as it is", self.store.directory, key)


async def settled(reply: Reply) -> Any:
    """The response itself, waited for if need be: for tests and for callers inside the process."""
    return await reply if isinstance(reply, asyncio.Future) else reply
