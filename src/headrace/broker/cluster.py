"""Requests that make sense with several brokers, answered by the only one. Nothing can be moved."""

from __future__ import annotations

from headrace.broker.access import Access, Operation, denial_code
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.metadata import FEATURES
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.state import StateStore
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.store import LogStore
from headrace.ports import Clock
from headrace.wire.kafka.messages.configs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.wire.kafka.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

__all__ = ["ClusterHandler"]

METADATA_TOPIC = "__cluster_metadata"


class ClusterHandler:
    """Answers what tools ask of a cluster: reassignments, log directories, feature levels, the quorum."""

    def __init__(self, *, state: StateStore, store: LogStore, clock: Clock, identity: Identity) -> None:
        self._state = state
        self._store = store
        self._clock = clock
        self._identity = identity

    def alter_partition_reassignments(self, request: Request[AlterPartitionReassignmentsRequest]) -> Reply:
        body = request.body
        code = denial_code(lambda: request.access.check_cluster(Operation.ALTER))
        return AlterPartitionReassignmentsResponse(
            error_code=code,
            allow_replication_factor_change=body.allow_replication_factor_change,
            error_message=None,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[self._reassign(request.access, topic.name, each) for each in topic.partitions],
                )
                for topic in body.topics
            ],
        )

    def _reassign(self, access: Access, topic: str, asked: ReassignablePartition) -> ReassignablePartitionResponse:
        answer = ReassignablePartitionResponse(partition_index=asked.partition_index, error_message=None)
        try:
            access.check_cluster(Operation.ALTER)
            access.partition(topic, asked.partition_index, Operation.DESCRIBE, or_on_cluster=Operation.ALTER)
            if asked.replicas is None:
                raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
            if asked.replicas != [self._identity.node_id]:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"one machine: the only replica is broker {self._identity.node_id}",
                )
        except HeadraceError as error:
            answer.error_code = code_of(error)
            answer.error_message = error.message
        return answer

    def list_partition_reassignments(self, request: Request[ListPartitionReassignmentsRequest]) -> Reply:
        code = denial_code(lambda: request.access.check_cluster(Operation.DESCRIBE))
        return ListPartitionReassignmentsResponse(error_code=code, error_message=None)

    def alter_replica_log_dirs(self, request: Request[AlterReplicaLogDirsRequest]) -> Reply:
        """There is one log directory. Moving to it changes nothing; moving to another is refused."""
        denied = denial_code(lambda: request.access.check_cluster(Operation.ALTER))
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        for directory in request.body.dirs:
            known = directory.path == self._store.directory
            for topic in directory.topics:
                result = results.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
                for index in topic.partitions:
                    code = denied or (ErrorCode.NONE if known else ErrorCode.LOG_DIR_NOT_FOUND)
                    result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    def update_features(self, request: Request[UpdateFeaturesRequest]) -> Reply:
        """Feature levels are fixed by the release. Setting the present level succeeds, any other fails."""
        if (denied := denial_code(lambda: request.access.check_cluster(Operation.ALTER))) is not ErrorCode.NONE:
            return UpdateFeaturesResponse(error_code=denied, error_message=None)
        wrong = [
            each.feature
            for each in request.body.feature_updates
            if FEATURES.get(each.feature) != each.max_version_level
        ]
        code = ErrorCode.INVALID_UPDATE_VERSION if wrong else ErrorCode.NONE
        message = f"the levels are fixed: {FEATURES}; cannot change {', '.join(wrong)}" if wrong else None
        return UpdateFeaturesResponse(
            error_code=code,
            error_message=message,
            results=[
                UpdatableFeatureResult(feature=each.feature, error_code=code, error_message=message)
                for each in request.body.feature_updates
            ],
        )

    def describe_quorum(self, request: Request[DescribeQuorumRequest]) -> Reply:
        if (denied := denial_code(lambda: request.access.check_cluster(Operation.DESCRIBE))) is not ErrorCode.NONE:
            return DescribeQuorumResponse(error_code=denied, error_message=None)
        asked = [
            (topic.topic_name, [each.partition_index for each in topic.partitions]) for topic in request.body.topics
        ]
        if asked != [(METADATA_TOPIC, [0])]:
            return DescribeQuorumResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message=f"only {METADATA_TOPIC}-0 has a quorum"
            )
        node_id = self._identity.node_id
        now_ms = self._clock.wall_ms()
        end = self._state.end_offset
        voter = ReplicaState(
            replica_id=node_id,
            log_end_offset=end,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        host, port = self._identity.address_for(request.peer)
        return DescribeQuorumResponse(
            error_message=None,
            topics=[
                DescribeQuorumResponseTopicData(
                    topic_name=METADATA_TOPIC,
                    partitions=[
                        DescribeQuorumResponsePartitionData(
                            error_message=None,
                            leader_id=node_id,
                            leader_epoch=1,
                            high_watermark=end,
                            current_voters=[voter],
                        )
                    ],
                )
            ],
            nodes=[Node(node_id=node_id, listeners=[Listener(name="KAFKA", host=host, port=port)])],
        )
