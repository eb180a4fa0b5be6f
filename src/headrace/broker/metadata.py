"""Metadata: versions, brokers, topics and coordinators. One node is all of them."""

from __future__ import annotations

from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation, ResourceType
from headrace.broker.elements import Elements
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.partition import Partition
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.broker.topics import NewTopic, Topic, Topics, check_name
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.messages.coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from headrace.wire.kafka.schema import NO_ID

__all__ = ["FEATURES", "MetadataHandler"]

FEATURES = {"group.version": 1, "transaction.version": 2}
"""Finalised features. Java clients choose protocols by them (KIP-848 groups, KIP-890 transactions)."""

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
NO_ERROR = "NONE"
"""Kafka's text of no error in FindCoordinator before version 4."""

OPERATIONS_UNKNOWN = -(2**31)
BROKER_ENDPOINTS = 1
NO_LEADER = -1
PARTITIONS_PER_STEP = 50


class MetadataHandler:
    """Answers ApiVersions, Metadata, FindCoordinator, DescribeCluster and DescribeTopicPartitions."""

    def __init__(self, *, topics: Topics, settings: Settings, identity: Identity) -> None:
        self._topics = topics
        self._settings = settings
        self._identity = identity

    def api_versions(self, request: Request[ApiVersionsRequest]) -> Reply:
        body = request.body
        if request.version >= 3:
            if not (_software(body.client_software_name) and _software(body.client_software_version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            request.peer.software = f"{body.client_software_name}-{body.client_software_version}"
        return self.offered(ErrorCode.NONE, with_own=body.client_software_name == "headrace")

    @staticmethod
    def offered(code: ErrorCode, *, with_own: bool = False) -> ApiVersionsResponse:
        """``with_own``: the APIs that are not Kafka's too. Other clients need not know what to make of them."""
        return ApiVersionsResponse(
            error_code=code,
            api_keys=[
                ApiVersion(api_key=each.key, min_version=each.version_min_advertised, max_version=each.version_max)
                for each in APIS.values()
                if with_own or not each.is_own
            ],
            supported_features=[
                SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in FEATURES.items()
            ],
            finalized_features_epoch=1,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in FEATURES.items()
            ],
        )

    def metadata(self, request: Request[MetadataRequest]) -> Steps[Reply]:
        body = request.body
        identity = self._identity
        if (code := _unanswerable(body, request.version)) != ErrorCode.NONE:
            return MetadataResponse(
                topics=[_no_topic("", each.topic_id, code) for each in body.topics or []], error_code=code
            )
        topics = Elements(MetadataResponse, request.version, self._settings)
        if body.topics is None or (request.version == 0 and not body.topics):
            for each in request.access.visible_topics():
                yield from self._add_topic(request, each, topics)
        else:
            yield from self._asked_topics(request, topics)
        host, port = self._identity.address_for(request.peer)
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=identity.node_id, host=host, port=port)],
            cluster_id=identity.cluster_id,
            controller_id=identity.node_id,
            topics=topics.encoded,
        )
        if body.include_cluster_authorized_operations:
            response.cluster_authorized_operations = request.access.operations(ResourceType.CLUSTER)
        return response

    def _asked_topics(self, request: Request[MetadataRequest], topics: Elements) -> Steps[None]:
        """Add each topic once, however often and under which of its names it is asked for, as Kafka does."""
        made = 0
        answered: set[str | bytes] = set()
        for asked in request.body.topics or []:
            yield 1
            if (asked.topic_id if asked.name is None else asked.name) in answered:
                continue
            may_make = made < self._settings.integer("auto.create.topics.per.request")
            try:
                topic = self._known(request, asked)
                if topic is None:
                    topic = yield from self._auto_create(request, asked.name or "", may_make)
                    made += 1
            except HeadraceError as error:
                topics.refuse(_no_topic(asked.name, asked.topic_id if asked.name is None else NO_ID, code_of(error)))
                answered.add(asked.topic_id if asked.name is None else asked.name)
                continue
            if topic.name not in answered:
                yield from self._add_topic(request, topic, topics)
            answered.update((topic.name, topic.topic_id))

    @staticmethod
    def _known(request: Request[MetadataRequest], asked: MetadataRequestTopic) -> Topic | None:
        if asked.name is not None:
            return request.access.topic(asked.name, Operation.DESCRIBE)
        topic = request.access.topic_by_id(asked.topic_id, Operation.DESCRIBE)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic

    def _auto_create(self, request: Request[MetadataRequest], name: str, may_make: bool) -> Steps[Topic]:
        check_name(name)
        enabled = self._settings.boolean("auto.create.topics.enable")
        if not (may_make and enabled and request.body.allow_auto_topic_creation):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        request.access.topic(name, Operation.CREATE, or_on_cluster=Operation.CREATE)
        (made,) = yield from self._topics.create([NewTopic(name, self._settings.integer("num.partitions"), {})])
        if isinstance(made, Topic):
            return made
        if code_of(made) is ErrorCode.TOPIC_ALREADY_EXISTS:  # another request is making it: the client asks again
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise made

    def _add_topic(self, request: Request[MetadataRequest], topic: Topic, topics: Elements) -> Steps[None]:
        if topics.full is not None:
            topics.refuse(_no_topic(topic.name, topic.topic_id, topics.full.code))
            return
        partitions: list[Any] = []
        for some in in_steps(list(topic.partitions), PARTITIONS_PER_STEP):
            partitions += [topics.encode(self._partition(each)) for each in some]
            yield len(some)
        answer = MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.internal, partitions=partitions
        )
        if request.body.include_topic_authorized_operations:
            answer.topic_authorized_operations = request.access.operations(ResourceType.TOPIC, topic.name)
        topics.add(answer, lambda error: _no_topic(topic.name, topic.topic_id, error.code))

    def _partition(self, partition: Partition) -> MetadataResponsePartition:
        node = [self._identity.node_id]
        served = partition.fault is None
        return MetadataResponsePartition(
            error_code=_leaderless(partition),
            partition_index=partition.index,
            leader_id=self._identity.node_id if served else NO_LEADER,
            leader_epoch=partition.leader_epoch,
            replica_nodes=node,
            isr_nodes=node if served else [],
            offline_replicas=[] if served else node,
        )

    def find_coordinator(self, request: Request[FindCoordinatorRequest]) -> Steps[FindCoordinatorResponse]:
        body = request.body
        host, port = self._identity.address_for(request.peer)
        node = self._identity.node_id
        if request.version < 4:
            code = _coordinator_error(request.access, body.key_type, body.key)
            if code:
                text = _coordinator_text(code)
                return FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, port=-1)
            return FindCoordinatorResponse(error_message=NO_ERROR, node_id=node, host=host, port=port)
        answers = []
        for key in body.coordinator_keys:
            code = _coordinator_error(request.access, body.key_type, key)
            if code:
                text = _coordinator_text(code)
                answers.append(Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text))
            else:
                answers.append(Coordinator(key=key, node_id=node, host=host, port=port, error_message=""))
            yield 1
        return FindCoordinatorResponse(coordinators=answers)

    def describe_cluster(self, request: Request[DescribeClusterRequest]) -> Reply:
        identity = self._identity
        body = request.body
        if body.endpoint_type != BROKER_ENDPOINTS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if body.endpoint_type == 2
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this listener serves brokers; ask for endpoint type 1",
                endpoint_type=BROKER_ENDPOINTS,
            )
        host, port = self._identity.address_for(request.peer)
        return DescribeClusterResponse(
            cluster_id=identity.cluster_id,
            controller_id=identity.node_id,
            brokers=[DescribeClusterBroker(broker_id=identity.node_id, host=host, port=port)],
            cluster_authorized_operations=request.access.operations(ResourceType.CLUSTER)
            if body.include_cluster_authorized_operations
            else OPERATIONS_UNKNOWN,
        )

    def describe_topic_partitions(
        self, request: Request[DescribeTopicPartitionsRequest]
    ) -> Steps[DescribeTopicPartitionsResponse]:
        """Topics in the order of their names, in pages of at most ``response_partition_limit`` partitions."""
        body = request.body
        if body.cursor is not None and body.cursor.partition_index < 0:
            refused = [
                DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=each.name)
                for each in body.topics
            ]
            return DescribeTopicPartitionsResponse(topics=refused)
        access = request.access
        names = sorted({each.name for each in body.topics}) or [each.name for each in access.visible_topics()]
        limit = max(1, min(body.response_partition_limit, 2000))
        first = 0
        if body.cursor is not None:
            names = [name for name in names if name >= body.cursor.topic_name]
            first = max(0, body.cursor.partition_index) if names[:1] == [body.cursor.topic_name] else 0
        response = DescribeTopicPartitionsResponse()
        for name in names:
            yield 1
            try:
                topic = access.topic(name, Operation.DESCRIBE)
            except AccessDenied as denied:
                response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=denied.code, name=name))
                continue
            if topic is None:
                response.topics.append(_undescribed(access, name))
                continue
            if limit == 0:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=first)
                break
            page = topic.partitions[first : first + limit]
            response.topics.append(self._described(access, topic, page))
            yield len(page) // 4
            limit -= len(page)
            if first + len(page) < len(topic.partitions):
                response.next_cursor = DescribeTopicPartitionsResponseCursor(
                    topic_name=name, partition_index=first + len(page)
                )
                break
            first = 0
        return response

    def _described(self, access: Access, topic: Topic, page: list[Partition]) -> DescribeTopicPartitionsResponseTopic:
        node = [self._identity.node_id]
        return DescribeTopicPartitionsResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            topic_authorized_operations=access.operations(ResourceType.TOPIC, topic.name),
            partitions=[
                DescribeTopicPartitionsResponsePartition(
                    error_code=_leaderless(each),
                    partition_index=each.index,
                    leader_id=self._identity.node_id if each.fault is None else NO_LEADER,
                    leader_epoch=each.leader_epoch,
                    replica_nodes=node,
                    isr_nodes=node if each.fault is None else [],
                    eligible_leader_replicas=[],
                    last_known_elr=[],
                    offline_replicas=[] if each.fault is None else node,
                )
                for each in page
            ],
        )


def _leaderless(partition: Partition) -> ErrorCode:
    """A damaged partition has no leader."""
    return ErrorCode.NONE if partition.fault is None else ErrorCode.LEADER_NOT_AVAILABLE


def _software(text: str) -> bool:
    """KIP-511: letters, digits, '-' and '.', not at the ends."""
    return text.replace("-", "").replace(".", "").isalnum() and text[0].isalnum() and text[-1].isalnum()


def _unanswerable(body: MetadataRequest, version: int) -> ErrorCode:
    """Kafka fails the whole request for an id before version 12, and for a topic with neither name nor id."""
    for each in body.topics or []:
        if version < 12 and (each.name is None or each.topic_id != NO_ID):
            return ErrorCode.INVALID_REQUEST
        if each.name is None and each.topic_id == NO_ID:
            return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NONE


def _coordinator_error(access: Access, kind: int, key: str) -> ErrorCode:
    try:
        if kind == GROUP_KEY:
            access.group(key, Operation.DESCRIBE)
        elif kind == TRANSACTION_KEY:
            access.transaction(key, Operation.DESCRIBE)
        else:
            return ErrorCode.INVALID_REQUEST
    except AccessDenied as denied:
        return denied.code
    return ErrorCode.NONE


def _coordinator_text(code: ErrorCode) -> str:
    if code is ErrorCode.INVALID_REQUEST:
        return "there are coordinators for groups (type 0) and transactions (type 1)"
    return "the caller may not describe this"


def _no_topic(name: str | None, topic_id: bytes, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)


def _undescribed(access: Access, name: str) -> DescribeTopicPartitionsResponseTopic:
    try:
        check_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except HeadraceError as error:
        code = code_of(error)
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_authorized_operations=access.operations(ResourceType.TOPIC, name)
    )
