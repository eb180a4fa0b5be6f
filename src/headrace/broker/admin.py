"""Administration of topics: create, grow, delete, delete records; describe producers and log directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.broker.access import Access, AccessDenied, Operation, ResourceType, denial_code
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.partition import Partition
from headrace.broker.replies import PendingReply, Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.broker.state import StateStore
from headrace.broker.topics import PARTITIONS_PER_TOPIC_MAX, NewTopic, Topic, Topics, check_name
from headrace.config import TOPIC_SETTINGS, Settings, show_value
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.maintenance import Maintenance
from headrace.log.store import LogStore
from headrace.vocabulary import Offset
from headrace.wire.kafka.messages.configs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.wire.kafka.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.wire.kafka.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace.wire.kafka.schema import NO_ID

__all__ = ["TopicAdmin"]

BROKER_DEFAULT = -1
ANSWER_UNITS = 5
"""What it costs to list the settings of a topic, in units of ``slices``."""


class TopicAdmin:
    """Answers CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords, DescribeProducers, DescribeLogDirs and
    ElectLeaders."""

    def __init__(
        self,
        *,
        topics: Topics,
        state: StateStore,
        store: LogStore,
        maintenance: Maintenance,
        settings: Settings,
        identity: Identity,
    ) -> None:
        self._topics = topics
        self._state = state
        self._store = store
        self._maintenance = maintenance
        self._settings = settings
        self._identity = identity

    # ---- topics ----

    def create_topics(self, request: Request[CreateTopicsRequest]) -> Steps[CreateTopicsResponse]:
        times = Counter(each.name for each in request.body.topics)
        found: dict[str, Topic | HeadraceError] = {}
        wanted: dict[str, NewTopic] = {}
        for asked in request.body.topics:
            if asked.name in found or asked.name in wanted:
                continue
            try:
                if times[asked.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                new = self._new_topic(request.access, asked)
                if request.body.validate_only:
                    found[asked.name] = self._topics.validated(new)
                wanted[asked.name] = new
            except HeadraceError as error:
                found[asked.name] = error
            yield 1
        if not request.body.validate_only:
            made = yield from self._topics.create(list(wanted.values()))
            found.update(zip(wanted, made, strict=True))
        answers = []
        for name in dict.fromkeys(each.name for each in request.body.topics):
            answers.append(self._created(request.access, name, found[name], wanted.get(name)))
            yield ANSWER_UNITS
        return CreateTopicsResponse(topics=answers)

    def _new_topic(self, access: Access, asked: CreatableTopic) -> NewTopic:
        known = access.topic(asked.name, Operation.CREATE, or_on_cluster=Operation.CREATE)
        partitions = self._partition_count(asked, known)
        return NewTopic(asked.name, partitions, {each.name: each.value for each in asked.configs})

    @staticmethod
    def _created(
        access: Access, name: str, found: Topic | HeadraceError, wanted: NewTopic | None
    ) -> CreatableTopicResult:
        if isinstance(found, HeadraceError) or wanted is None:
            assert isinstance(found, HeadraceError)
            return CreatableTopicResult(name=name, error_code=code_of(found), error_message=found.message, configs=[])
        if not access.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
            return CreatableTopicResult(
                name=name, topic_id=found.topic_id, topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
        config = found.config
        return CreatableTopicResult(
            name=name,
            topic_id=found.topic_id,
            error_message=None,
            num_partitions=wanted.partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfigs(
                    name=each, value=show_value(config.get(each)), config_source=1 if each in config.given else 5
                )
                for each in TOPIC_SETTINGS
            ],
        )

    def _partition_count(self, asked: CreatableTopic, known: Topic | None) -> int:
        """The number of partitions, given as a number or by an explicit assignment. Only one replica is accepted."""
        check_name(asked.name)
        if known is not None:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{asked.name}' already exists.")
        if asked.assignments:
            if asked.num_partitions != BROKER_DEFAULT or asked.replication_factor != BROKER_DEFAULT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Both numPartitions or replicationFactor and replicasAssignments were set. "
                    "Both cannot be used at the same time.",
                )
            self._check_assignments(asked.assignments)
            return len(asked.assignments)
        if asked.replication_factor not in (BROKER_DEFAULT, 1):
            why = (
                "Replication factor must be larger than 0, or -1 to use the default value."
                if asked.replication_factor <= 0
                else "Unable to replicate the partition "
                f"{asked.replication_factor} time(s): The target replication factor of {asked.replication_factor} "
                "cannot be reached because only 1 broker(s) are registered."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, why)
        if asked.num_partitions == BROKER_DEFAULT:
            return self._settings.integer("num.partitions")
        if not 0 < asked.num_partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value."
                if asked.num_partitions <= 0
                else f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {asked.num_partitions}",
            )
        return asked.num_partitions

    def _check_assignments(self, assignments: Sequence[CreatableReplicaAssignment]) -> None:
        indexes = sorted(each.partition_index for each in assignments)
        if indexes != list(range(len(indexes))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        self._check_replicas([each.broker_ids for each in assignments])

    def _check_replicas(self, replicas: Iterable[Sequence[int]]) -> None:
        for nodes in replicas:
            if list(nodes) != [self._identity.node_id]:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment must name broker {self._identity.node_id} and no other, "
                    f"not {list(nodes)}.",
                )

    def delete_topics(self, request: Request[DeleteTopicsRequest]) -> Reply:
        asked = request.body.topics or [DeleteTopicState(name=name) for name in request.body.topic_names]
        times = Counter((each.name, each.topic_id) for each in asked)
        answers = []
        state_offset = -1
        for each in asked:
            repeated = times.pop((each.name, each.topic_id), 0)
            if not repeated:
                continue
            try:
                if repeated > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                topic = self._named(request.access, each)
                if not self._settings.boolean("delete.topic.enable"):
                    raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
                state_offset = max(state_offset, self._topics.delete(topic))
                answers.append(DeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
            except HeadraceError as error:
                answers.append(
                    DeletableTopicResult(
                        name=each.name, topic_id=each.topic_id, error_code=code_of(error), error_message=error.message
                    )
                )
        return once_flushed(self._state, state_offset, DeleteTopicsResponse(responses=answers))

    @staticmethod
    def _named(access: Access, asked: DeleteTopicState) -> Topic:
        if asked.name is None:
            if asked.topic_id == NO_ID:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
            topic = access.topic_by_id(asked.topic_id, Operation.DELETE, or_on_cluster=Operation.DELETE)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            return topic
        if asked.topic_id != NO_ID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        return access.existing_topic(asked.name, Operation.DELETE, or_on_cluster=Operation.DELETE)

    def create_partitions(self, request: Request[CreatePartitionsRequest]) -> Steps[CreatePartitionsResponse]:
        times = Counter(each.name for each in request.body.topics)
        answers = []
        for asked in request.body.topics:
            repeated = times.pop(asked.name, 0)
            if not repeated:
                continue
            try:
                if repeated > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                topic = self._check_growth(request.access, asked)
                if not request.body.validate_only:
                    yield from self._topics.add_partitions(topic, asked.count)
                answers.append(CreatePartitionsTopicResult(name=asked.name))
            except HeadraceError as error:
                answers.append(
                    CreatePartitionsTopicResult(name=asked.name, error_code=code_of(error), error_message=error.message)
                )
            yield 1
        return CreatePartitionsResponse(results=answers)

    def _check_growth(self, access: Access, asked: CreatePartitionsTopic) -> Topic:
        topic = access.existing_topic(asked.name, Operation.ALTER)
        has = len(topic.partitions)
        if asked.count == has:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {has} partition(s).")
        if asked.count < has:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {asked.name} currently has {has} partition(s); {asked.count} would not be an increase.",
            )
        if asked.count > PARTITIONS_PER_TOPIC_MAX:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions")
        if asked.assignments is not None:
            if len(asked.assignments) != asked.count - has:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {asked.count - has} additional partition(s), but only "
                    f"{len(asked.assignments)} assignment(s) were specified.",
                )
            self._check_replicas([each.broker_ids for each in asked.assignments])
        return topic

    def delete_records(self, request: Request[DeleteRecordsRequest]) -> Reply:
        """Answered after a checkpoint, which makes the new start offsets durable. If none has moved, at once."""
        moved: list[Partition] = []
        response = DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        self._delete_records(request.access, topic.name, each, moved) for each in topic.partitions
                    ],
                )
                for topic in request.body.topics
            ]
        )
        if not moved:
            return response
        reply = PendingReply(response)
        self._maintenance.checkpointed().add_done_callback(lambda done: None if done.cancelled() else reply.one_done())
        return reply

    def _delete_records(
        self, access: Access, name: str, asked: DeleteRecordsPartition, moved: list[Partition]
    ) -> DeleteRecordsPartitionResult:
        try:
            topic = access.existing_topic(name, Operation.DELETE)
            partition = access.partition(name, asked.partition_index, Operation.DELETE)
            if topic.config.get("cleanup.policy") == ["compact"]:
                raise KafkaError(ErrorCode.POLICY_VIOLATION)
            end = partition.high_watermark
            offset = end if asked.offset == -1 else asked.offset
            if not 0 <= offset <= end:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            partition.log.delete_records(Offset(offset))
            if partition.log.start_to_mark() is not None:
                moved.append(partition)
        except HeadraceError as error:
            return DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1, error_code=code_of(error)
            )
        return DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=partition.log.start_offset
        )

    # ---- descriptions ----

    def describe_producers(self, request: Request[DescribeProducersRequest]) -> Reply:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[self._producers(request.access, topic.name, each) for each in topic.partition_indexes],
                )
                for topic in request.body.topics
            ]
        )

    def _producers(self, access: Access, name: str, index: int) -> PartitionResponse:
        try:
            access.topic(name, Operation.READ)
            check_name(name)
            producers = access.partition(name, index, Operation.READ).log.producers.describe()
        except HeadraceError as error:
            return PartitionResponse(partition_index=index, error_code=code_of(error), error_message=error.message)
        return PartitionResponse(
            partition_index=index,
            active_producers=[
                ProducerState(
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.last_timestamp,
                    coordinator_epoch=each.coordinator_epoch,
                    current_txn_start_offset=each.transaction_start_offset,
                )
                for each in producers
            ],
        )

    def describe_log_dirs(self, request: Request[DescribeLogDirsRequest]) -> Reply:
        asked, access = request.body.topics, request.access
        try:
            access.check_cluster(Operation.DESCRIBE)
        except AccessDenied as denied:
            return DescribeLogDirsResponse(error_code=denied.code)
        chosen: list[tuple[Topic, list[Partition]]] = []
        if asked is None:
            chosen = [(each, each.served) for each in access.visible_topics(or_on_cluster=Operation.DESCRIBE)]
        else:
            for each in asked:
                topic = access.topic(each.topic, Operation.DESCRIBE, or_on_cluster=Operation.DESCRIBE)
                if topic is not None:
                    found = [topic.partition(index) for index in each.partitions]
                    chosen.append((topic, [each for each in found if each is not None and each.fault is None]))
        store = self._store
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(
                    log_dir=store.directory,
                    topics=[
                        DescribeLogDirsTopic(
                            name=topic.name,
                            partitions=[
                                DescribeLogDirsPartition(partition_index=each.index, partition_size=each.log.size_bytes)
                                for each in partitions
                            ],
                        )
                        for topic, partitions in chosen
                    ],
                    total_bytes=store.disk.total_bytes(store.directory),
                    usable_bytes=store.disk.free_bytes(store.directory),
                )
            ]
        )

    def elect_leaders(self, request: Request[ElectLeadersRequest]) -> Reply:
        """One node leads every partition, so no election is needed."""
        return ElectLeadersResponse(
            error_code=denial_code(lambda: request.access.check_cluster(Operation.ALTER)),
            replica_election_results=[
                ReplicaElectionResult(
                    topic=each.topic,
                    partition_result=[self._elect(request.access, each.topic, index) for index in each.partitions],
                )
                for each in request.body.topic_partitions or []
            ],
        )

    @staticmethod
    def _elect(access: Access, name: str, index: int) -> PartitionResult:
        try:
            access.check_cluster(Operation.ALTER)
            access.partition(name, index, Operation.DESCRIBE, or_on_cluster=Operation.ALTER)
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        except HeadraceError as error:
            return PartitionResult(partition_id=index, error_code=code_of(error), error_message=error.message)
