"""The broker: its parts put together, and the table that says which of them answers which API."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import Any

from headrace.broker.access import Authorizer, Gate
from headrace.broker.admin import TopicAdmin
from headrace.broker.client_quotas import ClientQuotaHandler
from headrace.broker.cluster import ClusterHandler
from headrace.broker.config_changes import ConfigChanger
from headrace.broker.config_descriptions import ConfigDescriber
from headrace.broker.dynamic_settings import DynamicSettings
from headrace.broker.fetch import FetchHandler
from headrace.broker.groups import GroupCoordinator
from headrace.broker.groups.admin import GroupAdmin
from headrace.broker.groups.commits import OffsetHandler
from headrace.broker.groups.offset_fetch import OffsetFetchHandler
from headrace.broker.groups.offsets import Offsets
from headrace.broker.groups.registry import Groups
from headrace.broker.identity import Identity
from headrace.broker.metadata import MetadataHandler
from headrace.broker.overflow import Overflow
from headrace.broker.partition_descriptions import PartitionDescriber
from headrace.broker.positions import OffsetLookup
from headrace.broker.produce import ProduceHandler
from headrace.broker.queues.admin import QueueAdmin
from headrace.broker.queues.feeds import Feeds, exchange_feeds, topic_feeds
from headrace.broker.queues.moves import Moves
from headrace.broker.queues.queue_broker import QueueBroker
from headrace.broker.replies import PendingReply, Reply
from headrace.broker.request import Request
from headrace.broker.security import SecurityHandler
from headrace.broker.slices import Slices
from headrace.broker.snapshots import Snapshots
from headrace.broker.state import StateStore
from headrace.broker.topics import Topics
from headrace.broker.transactions import TransactionCoordinator
from headrace.broker.transactions.registry import Transactions
from headrace.broker.unclaimed import find_unclaimed
from headrace.config import Settings
from headrace.log.config import FlushMode, LogConfig
from headrace.log.errors import LogError
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.maintenance import Maintenance, MaintenanceSettings
from headrace.log.space import STATE
from headrace.log.store import LogStore, epoch_of_time
from headrace.ports import Clock
from headrace.vocabulary import Epoch
from headrace.wire.kafka.api_key import ApiKey

__all__ = ["Broker"]

LOG = logging.getLogger("headrace.broker")

JOURNAL = "journal"
"""The group of the space ``state`` that holds what the broker remembers besides records."""

CHANGE_NOTHING = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_QUEUES,
        ApiKey.READ_QUEUE,
        ApiKey.DESCRIBE_EXCHANGES,
    }
)
"""Requests whose only effect is their answer: their work is given up when their peer is gone."""

Handler = Callable[[Request[Any]], Reply]


class Broker:
    """Everything between a decoded request and its answer. One thread, the event loop's, owns it."""

    def __init__(
        self,
        *,
        store: LogStore,
        flusher: Flusher,
        clock: Clock,
        settings: Settings,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.store = store
        self.flusher = flusher
        self.clock = clock
        self.settings = settings
        self.slices = Slices()
        self.addresses: dict[str, tuple[str, int]] = {}
        self.maintenance = Maintenance(
            store=store,
            flusher=flusher,
            clock=clock,
            settings=self._maintenance_settings,
            on_damaged=self._set_damaged,
        )
        self.state = StateStore(self._open_state(), flusher, clock, reclaim=self.maintenance.space_wanted)
        self.state.has_lost_changes |= store.is_restored
        self._dynamic_settings = DynamicSettings(state=self.state, settings=settings)
        self._dynamic_settings.apply()
        cluster_id, leader_epoch = self._begin_run()
        self.cluster_id = cluster_id
        self._identity = Identity(
            node_id=settings.integer("broker.id"), cluster_id=cluster_id, addresses=self.addresses
        )
        self._snapshots = Snapshots(store=store, maintenance=self.maintenance, clock=clock, cluster_id=cluster_id)
        self.topics = Topics(
            state=self.state,
            store=store,
            flusher=flusher,
            clock=clock,
            settings=settings,
            leader_epoch=leader_epoch,
            remove_files=self.maintenance.delete_group,
        )
        self.topics.load()
        self.queues = self._new_queues()
        self.queues.load()
        self._feeds = self._configured_feeds()
        self.groups = Groups()
        self.transactions = Transactions(state=self.state, clock=clock)
        self._gate = Gate(topics=self.topics, groups=self.groups, transactions=self.transactions, authorizer=authorizer)
        self._open_access = self._gate.open
        self._group_offsets = offsets = Offsets(self.state)
        self.group_coordinator = GroupCoordinator(
            state=self.state, clock=clock, settings=settings, topics=self.topics, groups=self.groups, offsets=offsets
        )
        self.offsets = self._offset_handler(offsets)
        self.transaction_coordinator = TransactionCoordinator(
            state=self.state,
            clock=clock,
            settings=settings,
            topics=self.topics,
            offsets=self.offsets,
            transactions=self.transactions,
        )
        self.overflow = Overflow(
            topics=self.topics, groups=self.groups, offsets=self.offsets, maintenance=self.maintenance, clock=clock
        )
        self.fetches = FetchHandler(clock=clock, settings=settings)
        self._handlers: dict[int, Handler] = dict(self._table().items())
        store.sync_recovered()
        self._report_unclaimed()

    def _new_queues(self) -> QueueBroker:
        return QueueBroker(
            store=self.store,
            state=self.state,
            flusher=self.flusher,
            clock=self.clock,
            remove_files=self.maintenance.delete_group,
            settings=self.settings,
        )

    def _configured_feeds(self) -> Feeds:
        return Feeds(
            from_topics=topic_feeds(self.settings.items("headrace.queue.feeds")),
            to_topics=exchange_feeds(self.settings.items("headrace.topic.feeds")),
            queues=self.queues,
            topics=self.topics,
            state=self.state,
        )

    def _offset_handler(self, offsets: Offsets) -> OffsetHandler:
        return OffsetHandler(
            state=self.state,
            clock=self.clock,
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            offsets=offsets,
            ensure_group=self.group_coordinator.ensure,
        )

    def start(self) -> None:
        """Load groups and transactions, and start timeouts, retention, compaction and checkpoints."""
        self.group_coordinator.load()
        self.transaction_coordinator.load()
        self.maintenance.start()
        self.queues.start()
        self._feeds.start()
        self._snapshots.start()
        if self.store.is_restored:
            self.state.when_flushed(self.state.end_offset - 1, self.store.forget_restored)

    async def stop(self) -> None:
        """Stop in good order. Afterwards the store may be closed."""
        await self._feeds.stop()
        await self._snapshots.stop()
        await self.maintenance.stop()
        self.transaction_coordinator.close()
        self.group_coordinator.close()
        self.slices.close()

    def handle(self, request: Request[Any]) -> Reply:
        """Answer a request, now or later. A KafkaError that escapes here is a bug of ours, not the peer's.

        A handler that may take long is a generator, which is run in slices (``slices``).
        """
        request.access = self._open_access or self._gate.access(request.peer.principal)
        reply = self._handlers[request.api_key](request)
        if type(reply) is not GeneratorType:
            return reply
        return self.slices.run(reply, request.peer if request.api_key in CHANGE_NOTHING else None)

    def answers(self) -> frozenset[int]:
        """The API keys that have a handler."""
        return frozenset(self._handlers)

    def _table(self) -> dict[ApiKey, Handler]:
        return {
            **self._data_handlers(),
            **self._group_handlers(),
            **self._transaction_handlers(),
            **self._admin_handlers(),
            **self._security_handlers(),
            **self._queue_handlers(),
            ApiKey.CREATE_SNAPSHOT: self._snapshots.create_snapshot,
        }

    def _data_handlers(self) -> dict[ApiKey, Handler]:
        produce = ProduceHandler(
            transactions=self.transaction_coordinator.additions,
            overflow=self.overflow,
            clock=self.clock,
        )
        offsets = OffsetLookup()
        metadata = MetadataHandler(topics=self.topics, settings=self.settings, identity=self._identity)
        return {
            ApiKey.PRODUCE: produce.produce,
            ApiKey.FETCH: self.fetches.fetch,
            ApiKey.LIST_OFFSETS: offsets.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
            ApiKey.API_VERSIONS: metadata.api_versions,
            ApiKey.METADATA: metadata.metadata,
            ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
            ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
        }

    def _group_handlers(self) -> dict[ApiKey, Handler]:
        groups, offsets = self.group_coordinator, self.offsets
        admin = GroupAdmin(state=self.state, settings=self.settings, remove_group=groups.remove)
        fetch = OffsetFetchHandler(state=self.state, offsets=self._group_offsets, settings=self.settings)
        return {
            ApiKey.OFFSET_COMMIT: offsets.offset_commit,
            ApiKey.OFFSET_FETCH: fetch.offset_fetch,
            ApiKey.OFFSET_DELETE: offsets.offset_delete,
            ApiKey.JOIN_GROUP: groups.join_group,
            ApiKey.SYNC_GROUP: groups.sync_group,
            ApiKey.HEARTBEAT: groups.heartbeat,
            ApiKey.LEAVE_GROUP: groups.leave_group,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: groups.consumer_group_heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: admin.consumer_group_describe,
            ApiKey.DESCRIBE_GROUPS: admin.describe_groups,
            ApiKey.LIST_GROUPS: admin.list_groups,
            ApiKey.DELETE_GROUPS: admin.delete_groups,
        }

    def _transaction_handlers(self) -> dict[ApiKey, Handler]:
        transactions = self.transaction_coordinator
        return {
            ApiKey.INIT_PRODUCER_ID: transactions.producers.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: transactions.additions.add_partitions_to_txn,
            ApiKey.ADD_OFFSETS_TO_TXN: transactions.additions.add_offsets_to_txn,
            ApiKey.TXN_OFFSET_COMMIT: transactions.additions.txn_offset_commit,
            ApiKey.END_TXN: transactions.endings.end_txn,
            ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
            ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
        }

    def _admin_handlers(self) -> dict[ApiKey, Handler]:
        topics = TopicAdmin(
            topics=self.topics,
            state=self.state,
            store=self.store,
            maintenance=self.maintenance,
            settings=self.settings,
            identity=self._identity,
        )
        changes = ConfigChanger(
            topics=self.topics,
            state=self.state,
            settings=self.settings,
            dynamic_settings=self._dynamic_settings,
            identity=self._identity,
        )
        descriptions = ConfigDescriber(
            state=self.state,
            store=self.store,
            settings=self.settings,
            dynamic_settings=self._dynamic_settings,
            identity=self._identity,
        )
        partitions = PartitionDescriber(store=self.store, settings=self.settings)
        cluster = ClusterHandler(state=self.state, store=self.store, clock=self.clock, identity=self._identity)
        return {
            ApiKey.CREATE_TOPICS: topics.create_topics,
            ApiKey.DELETE_TOPICS: topics.delete_topics,
            ApiKey.CREATE_PARTITIONS: topics.create_partitions,
            ApiKey.DELETE_RECORDS: topics.delete_records,
            ApiKey.DESCRIBE_PRODUCERS: partitions.describe_producers,
            ApiKey.DESCRIBE_LOG_DIRS: partitions.describe_log_dirs,
            ApiKey.ELECT_LEADERS: cluster.elect_leaders,
            ApiKey.DESCRIBE_CONFIGS: descriptions.describe_configs,
            ApiKey.ALTER_CONFIGS: changes.alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: changes.incremental_alter_configs,
            ApiKey.LIST_CONFIG_RESOURCES: descriptions.list_config_resources,
            ApiKey.ALTER_REPLICA_LOG_DIRS: cluster.alter_replica_log_dirs,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster.list_partition_reassignments,
            ApiKey.DESCRIBE_QUORUM: cluster.describe_quorum,
            ApiKey.UPDATE_FEATURES: cluster.update_features,
        }

    def _security_handlers(self) -> dict[ApiKey, Handler]:
        security = SecurityHandler(settings=self.settings)
        quotas = ClientQuotaHandler(settings=self.settings)
        return {
            ApiKey.DESCRIBE_ACLS: security.describe_acls,
            ApiKey.CREATE_ACLS: security.create_acls,
            ApiKey.DELETE_ACLS: security.delete_acls,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: security.describe_user_scram_credentials,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: security.alter_user_scram_credentials,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe_client_quotas,
            ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter_client_quotas,
        }

    def _queue_handlers(self) -> dict[ApiKey, Handler]:
        queues, moves = QueueAdmin(self.queues), Moves(self.queues)
        return {
            ApiKey.DESCRIBE_QUEUES: queues.describe_queues,
            ApiKey.READ_QUEUE: queues.read_queue,
            ApiKey.MOVE_MESSAGES: moves.move_messages,
            ApiKey.RESTORE_MESSAGES: moves.restore_messages,
            ApiKey.PURGE_QUEUE: queues.purge_queue,
            ApiKey.CREATE_QUEUE: queues.create_queue,
            ApiKey.DELETE_QUEUE: queues.delete_queue,
            ApiKey.DESCRIBE_EXCHANGES: queues.describe_exchanges,
            ApiKey.CREATE_EXCHANGE: queues.create_exchange,
            ApiKey.DELETE_EXCHANGE: queues.delete_exchange,
            ApiKey.ALTER_BINDINGS: queues.alter_bindings,
        }

    def _set_damaged(self, log: PartitionLog, fault: LogError) -> None:
        """Maintenance found a log that cannot be served any more."""
        self.topics.set_damaged(log, fault)

    def _maintenance_settings(self) -> MaintenanceSettings:
        settings = self.settings
        return MaintenanceSettings(
            retention_interval_s=settings.integer("log.retention.check.interval.ms") / 1000,
            compaction_interval_s=max(0.05, settings.integer("log.cleaner.backoff.ms") / 1000),
            compaction_enabled=settings.boolean("log.cleaner.enable"),
            compaction_memory_bytes=settings.integer("compaction.memory.bytes"),
        )

    def _open_state(self) -> PartitionLog:
        config = LogConfig(
            segment_bytes_max=16 << 20, cleanup_delete=False, retention_ms=-1, retention_bytes=-1, flush=FlushMode.ACK
        )
        return self.store.space(STATE).open_log(JOURNAL, 0, config)

    def _begin_run(self) -> tuple[str, Epoch]:
        """The cluster id, made at the first start, and the leader epoch of this run. The epoch rises at each start, so
        that a client can find out that a crash took back what it has read (OffsetForLeaderEpoch). If starts may be
        missing in the journal, it goes on from the time, or from what a restore says: see ``log.store``."""
        row = self.state.table("node").get("identity")
        if row is None:
            self.state.has_lost_changes |= any(self.state.tables.values())  # this row is written before all others
            row = {"cluster_id": base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("="), "starts": -1}
        starts = row["starts"] + 1
        if self.state.has_lost_changes:
            starts = max(starts, epoch_of_time(self.clock.wall_ms()), self.store.restored_epoch())
        row = {**row, "starts": starts}
        self.state.put("node", "identity", row)
        return str(row["cluster_id"]), Epoch(row["starts"])

    def _report_unclaimed(self) -> None:
        """Report directories that belong to no topic. They may be somebody's data and are not removed."""
        for each in find_unclaimed(self.store.disk, self.store.directory, self.state.tables):
            self.store.report.add(each.finding(self.store.directory))
            self.topics.unclaimed[each.group.rpartition("~")[0]] = each.path


async def settled(reply: Reply) -> Any:
    """The response of a reply, waiting for it if needed. For tests and for callers inside the process."""
    while isinstance(reply, PendingReply):
        if not reply.ready:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            reply.taker = partial(_set_ready, ready)
            await ready
        if reply.error is not None:
            raise reply.error
        reply = reply.response
    return reply


def _set_ready(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
