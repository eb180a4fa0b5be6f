"""Requests that make sense with several brokers, answered by the only one. Nothing can be moved."""

from __future__ import annotations

from headrace.broker.access import Access, Operation, denial_code
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.metadata import FEATURES
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
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
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

__all__ = ["ClusterHandler"]

METADATA_TOPIC = "__cluster_metadata"


class ClusterHandler:
    """Answers what tools ask of a cluster: reassignments, elections, log directories, feature levels, the quorum."""

    def __init__(self, *, state: StateStore, store: LogStore, clock: Clock, identity: Identity) -> None:
        self._state = state
        self._store = store
        self._clock = clock
        self._identity = identity

    def alter_partition_reassignments(
        self, request: Request[AlterPartitionReassignmentsRequest]
    ) -> Steps[AlterPartitionReassignmentsResponse]:
        body = request.body
        response = AlterPartitionReassignmentsResponse(
            error_code=denial_code(lambda: request.access.check_cluster(Operation.ALTER)),
            allow_replication_factor_change=body.allow_replication_factor_change,
            error_message=None,
        )
        for topic in body.topics:
            answers = []
            for each in topic.partitions:
                answers.append(self._reassign(request.access, topic.name, each))
                yield 1
            response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=answers))
        return response

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

    def alter_replica_log_dirs(
        self, request: Request[AlterReplicaLogDirsRequest]
    ) -> Steps[AlterReplicaLogDirsResponse]:
        """There is one log directory. Moving to it changes nothing; moving to another is refused.

        A partition that is named again is answered once, and its last directory counts, as in Kafka.
        """
        denied = denial_code(lambda: request.access.check_cluster(Operation.ALTER))
        codes: dict[str, dict[int, ErrorCode]] = {}
        for directory in request.body.dirs:
            code = denied or (
                ErrorCode.NONE if directory.path == self._store.directory else ErrorCode.LOG_DIR_NOT_FOUND
            )
            for topic in directory.topics:
                codes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, code))
        response = AlterReplicaLogDirsResponse()
        for name, partitions in codes.items():
            results = []
            for index, code in partitions.items():
                results.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
                yield 1
            response.results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=results))
        return response

    def update_features(self, request: Request[UpdateFeaturesRequest]) -> Steps[UpdateFeaturesResponse]:
        """Feature levels are fixed by the release. Setting the present level succeeds, any other fails."""
        if (denied := denial_code(lambda: request.access.check_cluster(Operation.ALTER))) is not ErrorCode.NONE:
            return UpdateFeaturesResponse(error_code=denied, error_message=None)
        updates = {each.feature: each.max_version_level for each in request.body.feature_updates}
        refused = any(FEATURES.get(feature) != level for feature, level in updates.items())
        code = ErrorCode.INVALID_UPDATE_VERSION if refused else ErrorCode.NONE
        message = f"the levels are fixed: {FEATURES}" if refused else None
        response = UpdateFeaturesResponse(error_code=code, error_message=message)
        for feature in updates:
            response.results.append(UpdatableFeatureResult(feature=feature, error_code=code, error_message=message))
            yield 1
        return response

    def elect_leaders(self, request: Request[ElectLeadersRequest]) -> Steps[ElectLeadersResponse]:
        """One node leads every partition, so no election is needed."""
        response = ElectLeadersResponse(
            error_code=denial_code(lambda: request.access.check_cluster(Operation.ALTER)),
        )
        for topic in request.body.topic_partitions or []:
            results = []
            for index in topic.partitions:
                results.append(self._elect(request.access, topic.topic, index))
                yield 1
            response.replica_election_results.append(ReplicaElectionResult(topic=topic.topic, partition_result=results))
        return response

    @staticmethod
    def _elect(access: Access, name: str, index: int) -> PartitionResult:
        try:
            access.check_cluster(Operation.ALTER)
            access.partition(name, index, Operation.DESCRIBE, or_on_cluster=Operation.ALTER)
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
        except HeadraceError as error:
            return PartitionResult(partition_id=index, error_code=code_of(error), error_message=error.message)

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
