"""Administration of topics: create, grow, delete, delete records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from headrace.broker.access import Access, Operation, ResourceType
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.limits import PARTITIONS_PER_TOPIC_MAX
from headrace.broker.partition import Partition
from headrace.broker.replies import PendingReply, Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.broker.state import StateStore
from headrace.broker.topics import NewTopic, Topic, Topics, check_name
from headrace.config import TOPIC_SETTINGS, Settings, show_value
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.maintenance import Maintenance
from headrace.log.store import LogStore
from headrace.vocabulary import Offset
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
)
from headrace.wire.kafka.schema import NO_ID

__all__ = ["TopicAdmin"]

BROKER_DEFAULT = -1
ANSWER_UNITS = 10
"""What it costs to list the settings of a topic, in units of ``slices``."""
UNITS_PER_TOPIC = 10
PARTITIONS_PER_UNIT = 5
STARTS_PER_STEP = 200
STARTS_PER_UNIT = 20


class TopicAdmin:
    """Answers CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

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
                found[asked.name] = error.with_traceback(None)  # the frames of a traceback refer back to the error
            yield 1
        if not request.body.validate_only:
            made = yield from self._topics.create(list(wanted.values()))
            found.update(zip(wanted, made, strict=True))
        answers = Elements(CreateTopicsResponse, request.version, self._settings)
        for name in dict.fromkeys(each.name for each in request.body.topics):
            # Each topic is dropped here: to free all of them at once at the end would hold the loop.
            created = self._created(request.access, name, found.pop(name), wanted.pop(name, None))
            answers.add(created, partial(_unanswered, name))
            yield ANSWER_UNITS
        return CreateTopicsResponse(topics=answers.encoded)

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
                CreatableTopicConfigs(name=each, value=show_value(config.get(each)), config_source=config.source(each))
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

    def delete_topics(self, request: Request[DeleteTopicsRequest]) -> Steps[Reply]:
        asked = request.body.topics or [DeleteTopicState(name=name) for name in request.body.topic_names]
        times = Counter((each.name, each.topic_id) for each in asked)
        names = {each.name for each in asked}
        ids = {each.topic_id for each in asked if each.name is None}
        answers = Elements(DeleteTopicsResponse, request.version, self._settings)
        state_offset = -1
        for each in asked:
            yield 1
            repeated = times.pop((each.name, each.topic_id), 0)
            if not repeated:
                continue
            try:
                if repeated > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                topic = self._named(request.access, each)
                if each.name is None and topic.name in names:
                    continue  # refused under its name
                if each.name is not None and topic.topic_id in ids:
                    answers.add_small(_named_and_identified(topic))
                    continue
                if not self._settings.boolean("delete.topic.enable"):
                    raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
                state_offset = max(state_offset, self._topics.delete(topic))
                answers.add_small(DeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
                yield UNITS_PER_TOPIC + len(topic.partitions) // PARTITIONS_PER_UNIT
            except HeadraceError as error:
                answers.add_small(
                    DeletableTopicResult(
                        name=each.name, topic_id=each.topic_id, error_code=code_of(error), error_message=error.message
                    )
                )
        return once_flushed(self._state, state_offset, DeleteTopicsResponse(responses=answers.encoded))

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

    def delete_records(self, request: Request[DeleteRecordsRequest]) -> Steps[Reply]:
        """Answered after a checkpoint, which makes the new start offsets durable; until then the records are served. If
        none has moved, answered at once.

        A partition that is named again is answered once, and its last offset counts, as in Kafka.
        """
        asked: dict[str, dict[int, DeleteRecordsPartition]] = {}
        for topic in request.body.topics:
            asked.setdefault(topic.name, {}).update({each.partition_index: each for each in topic.partitions})
        moved: list[tuple[Partition, DeleteRecordsPartitionResult]] = []
        response = DeleteRecordsResponse()
        for name, partitions in asked.items():
            answers = []
            for each in partitions.values():
                answers.append(self._delete_records(request.access, name, each, moved))
                yield 1
            response.topics.append(DeleteRecordsTopicResult(name=name, partitions=answers))
        if not moved:
            return response
        tried: PendingReply[None] = PendingReply()
        self._maintenance.after_checkpoint().add_done_callback(
            lambda done: None if done.cancelled() else tried.deliver(None)
        )
        yield tried
        for some in in_steps(moved, STARTS_PER_STEP):
            for partition, answer in some:
                if partition.log.durable_start_offset < answer.low_watermark:  # the disk refused even the start marker
                    answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                    answer.low_watermark = -1
            yield STARTS_PER_STEP // STARTS_PER_UNIT
        return response

    def _delete_records(
        self,
        access: Access,
        name: str,
        asked: DeleteRecordsPartition,
        moved: list[tuple[Partition, DeleteRecordsPartitionResult]],
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
            low_watermark = partition.log.plan_start(Offset(offset))
        except HeadraceError as error:
            return DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=-1, error_code=code_of(error)
            )
        answer = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=low_watermark)
        if partition.log.start_to_mark() is not None:
            moved.append((partition, answer))
        return answer


def _named_and_identified(topic: Topic) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="The provided topic name maps to an ID that was already supplied.",
    )


def _unanswered(name: str, error: AnswerTooLarge) -> CreatableTopicResult:
    """The topic was made, and there is no room for its settings."""
    return CreatableTopicResult(name=name, topic_config_error_code=error.code)
