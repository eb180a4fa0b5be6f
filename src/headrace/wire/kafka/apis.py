"""Which APIs and versions headrace offers: what ApiVersions answers from and the support matrix is printed from.

The ranges are those a Kafka 4.3 broker offers to clients. Where a declaration knows more (a version that Kafka has not
declared stable, or that only brokers speak among themselves), the table holds it back and says why.

``python -m headrace.wire.kafka.apis`` prints ``docs/support-matrix.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.messages import (
    configs,
    consumer_groups,
    coordinator,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    queues,
    security,
    snapshots,
    topics,
    transactions,
)
from headrace.wire.kafka.schema import spec_of

__all__ = ["APIS", "API_VERSIONS", "FETCH", "PRODUCE", "Api", "Waits", "support_matrix"]

PRODUCE = ApiKey.PRODUCE
FETCH = ApiKey.FETCH
API_VERSIONS = ApiKey.API_VERSIONS


class Waits(Enum):
    """What a reply may wait for after its handler returned: all that a server must know of an API to order replies."""

    FLUSH = "the flush only: the request has taken effect, and requests after it are executed meanwhile"
    BROKER = "the broker's own work, which ends by itself: a connection that closes waits for the reply"
    CLIENTS = "what other clients do, which may never happen: a connection that closes does not wait for the reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API as offered. ``version_min_advertised`` differs from ``version_min`` for Produce alone."""

    key: ApiKey
    name: str
    request: type
    response: type
    version_min: int
    version_max: int
    version_min_advertised: int
    flexible: int
    waits: Waits
    note: str

    @property
    def is_own(self) -> bool:
        """Whether it is headrace's and not Kafka's."""
        return self.key >= queues.OWN_KEYS

    def accepts(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible else 1

    def response_header_version(self, version: int) -> int:
        """ApiVersions answers with header 0 always: the peer does not know yet what we speak."""
        return 1 if version >= self.flexible and self.key != API_VERSIONS else 0


def _api(
    request: type,
    response: type,
    note: str,
    *,
    waits: Waits = Waits.BROKER,
    version_max: int | None = None,
    advertised: int | None = None,
) -> Api:
    spec = spec_of(request)
    assert spec_of(response).api_key == spec.api_key, (
        f"{request.__name__} and {response.__name__} do not belong together"
    )
    assert request.__name__.endswith("Request")
    return Api(
        key=ApiKey(spec.api_key),
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        version_min=spec.first_version,
        version_max=spec.last_version if version_max is None else version_max,
        version_min_advertised=spec.first_version if advertised is None else advertised,
        flexible=spec.flexible,
        waits=waits,
        note=note,
    )


_OFFERED = [
    _api(
        produce.ProduceRequest,
        produce.ProduceResponse,
        "Advertised from 0 as Kafka does, because librdkafka stops compressing otherwise; versions 0–2 (message "
        "formats before record batches) close the connection.",
        waits=Waits.FLUSH,
        advertised=0,
    ),
    _api(
        fetch.FetchRequest,
        fetch.FetchResponse,
        "Whole. There are no followers, so preferred read replicas, diverging epochs and snapshots never occur.",
        waits=Waits.CLIENTS,
    ),
    _api(
        offsets.ListOffsetsRequest,
        offsets.ListOffsetsResponse,
        "Whole. There is no remote storage: the earliest local offset is the earliest offset.",
    ),
    _api(metadata.MetadataRequest, metadata.MetadataResponse, "Whole; one broker leads every partition."),
    _api(group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse, "Whole."),
    _api(group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse, "Whole."),
    _api(
        coordinator.FindCoordinatorRequest,
        coordinator.FindCoordinatorResponse,
        "Groups and transactions; share groups are not offered.",
    ),
    _api(groups.JoinGroupRequest, groups.JoinGroupResponse, "Whole.", waits=Waits.CLIENTS),
    _api(groups.HeartbeatRequest, groups.HeartbeatResponse, "Whole."),
    _api(groups.LeaveGroupRequest, groups.LeaveGroupResponse, "Whole."),
    _api(groups.SyncGroupRequest, groups.SyncGroupResponse, "Whole.", waits=Waits.CLIENTS),
    _api(groups.DescribeGroupsRequest, groups.DescribeGroupsResponse, "Whole."),
    _api(groups.ListGroupsRequest, groups.ListGroupsResponse, "Whole."),
    _api(
        metadata.ApiVersionsRequest,
        metadata.ApiVersionsResponse,
        "To version 4: version 5 lets a client check that it reached the right cluster and is newer than Kafka 4.3.",
        version_max=4,
    ),
    _api(topics.CreateTopicsRequest, topics.CreateTopicsResponse, "Whole; the replication factor is 1."),
    _api(topics.DeleteTopicsRequest, topics.DeleteTopicsResponse, "Whole."),
    _api(topics.DeleteRecordsRequest, topics.DeleteRecordsResponse, "Whole."),
    _api(
        transactions.InitProducerIdRequest,
        transactions.InitProducerIdResponse,
        "To version 5: version 6 (two-phase commit, KIP-939) is not declared stable by Kafka.",
        version_max=5,
    ),
    _api(
        offsets.OffsetForLeaderEpochRequest,
        offsets.OffsetForLeaderEpochResponse,
        "Whole; the leader never changes, so there is one epoch.",
    ),
    _api(
        transactions.AddPartitionsToTxnRequest,
        transactions.AddPartitionsToTxnResponse,
        "Whole; clients speak it to version 3, the later ones are the brokers' form for many transactions at once.",
    ),
    _api(transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse, "Whole."),
    _api(transactions.EndTxnRequest, transactions.EndTxnResponse, "Whole."),
    _api(
        transactions.TxnOffsetCommitRequest,
        transactions.TxnOffsetCommitResponse,
        "To version 5: version 6 is newer than Kafka 4.3.",
        version_max=5,
    ),
    _api(
        security.DescribeAclsRequest,
        security.DescribeAclsResponse,
        "SECURITY_DISABLED, as from a Kafka without an authorizer: there is no access control yet.",
    ),
    _api(security.CreateAclsRequest, security.CreateAclsResponse, "SECURITY_DISABLED, as DescribeAcls."),
    _api(security.DeleteAclsRequest, security.DeleteAclsResponse, "SECURITY_DISABLED, as DescribeAcls."),
    _api(configs.DescribeConfigsRequest, configs.DescribeConfigsResponse, "Topics, brokers and groups."),
    _api(configs.AlterConfigsRequest, configs.AlterConfigsResponse, "Topics, brokers and groups."),
    _api(
        configs.AlterReplicaLogDirsRequest,
        configs.AlterReplicaLogDirsResponse,
        "There is one log directory: moving to any other is refused.",
    ),
    _api(configs.DescribeLogDirsRequest, configs.DescribeLogDirsResponse, "Whole."),
    _api(topics.CreatePartitionsRequest, topics.CreatePartitionsResponse, "Whole."),
    _api(
        groups.DeleteGroupsRequest,
        groups.DeleteGroupsResponse,
        "To version 2: version 3 is newer than Kafka 4.3.",
        version_max=2,
    ),
    _api(topics.ElectLeadersRequest, topics.ElectLeadersResponse, "One broker leads already: no election is needed."),
    _api(
        configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse, "Topics, brokers and groups."
    ),
    _api(
        topics.AlterPartitionReassignmentsRequest,
        topics.AlterPartitionReassignmentsResponse,
        "One machine: the only valid assignment is the present one.",
    ),
    _api(
        topics.ListPartitionReassignmentsRequest,
        topics.ListPartitionReassignmentsResponse,
        "Whole; there are never any.",
    ),
    _api(group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse, "Whole."),
    _api(
        security.DescribeClientQuotasRequest,
        security.DescribeClientQuotasResponse,
        "Whole; there are never any.",
    ),
    _api(
        security.AlterClientQuotasRequest,
        security.AlterClientQuotasResponse,
        "No quota is enforced: setting one is refused with UNSUPPORTED_VERSION, removing one succeeds.",
    ),
    _api(
        security.DescribeUserScramCredentialsRequest,
        security.DescribeUserScramCredentialsResponse,
        "Whole; nobody has a credential: RESOURCE_NOT_FOUND for each user that is asked for.",
    ),
    _api(
        security.AlterUserScramCredentialsRequest,
        security.AlterUserScramCredentialsResponse,
        "No credential is stored: setting one is refused with SECURITY_DISABLED, removing one is RESOURCE_NOT_FOUND.",
    ),
    _api(configs.DescribeQuorumRequest, configs.DescribeQuorumResponse, "Answers as a quorum of one."),
    _api(configs.UpdateFeaturesRequest, configs.UpdateFeaturesResponse, "The feature levels are fixed."),
    _api(metadata.DescribeClusterRequest, metadata.DescribeClusterResponse, "Whole; one broker."),
    _api(transactions.DescribeProducersRequest, transactions.DescribeProducersResponse, "Whole."),
    _api(transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse, "Whole."),
    _api(transactions.ListTransactionsRequest, transactions.ListTransactionsResponse, "Whole."),
    _api(
        consumer_groups.ConsumerGroupHeartbeatRequest,
        consumer_groups.ConsumerGroupHeartbeatResponse,
        "Whole (KIP-848): patterns are RE2's.",
    ),
    _api(consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse, "Whole."),
    _api(configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse, "Topics, brokers and groups."),
    _api(metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse, "Whole."),
    _api(queues.DescribeQueuesRequest, queues.DescribeQueuesResponse, "Queues by name, a page at a time."),
    _api(queues.ReadQueueRequest, queues.ReadQueueResponse, "Messages by offset; nothing is taken."),
    _api(queues.MoveMessagesRequest, queues.MoveMessagesResponse, "To a queue, an exchange, back, or away."),
    _api(queues.RestoreMessagesRequest, queues.RestoreMessagesResponse, "What is gone and still kept."),
    _api(queues.PurgeQueueRequest, queues.PurgeQueueResponse, "All that is ready."),
    _api(queues.CreateQueueRequest, queues.CreateQueueResponse, "As AMQP's queue.declare."),
    _api(queues.DeleteQueueRequest, queues.DeleteQueueResponse, "As AMQP's queue.delete."),
    _api(queues.DescribeExchangesRequest, queues.DescribeExchangesResponse, "Exchanges and their bindings."),
    _api(queues.CreateExchangeRequest, queues.CreateExchangeResponse, "As AMQP's exchange.declare."),
    _api(queues.DeleteExchangeRequest, queues.DeleteExchangeResponse, "As AMQP's exchange.delete."),
    _api(queues.AlterBindingsRequest, queues.AlterBindingsResponse, "As AMQP's bind and unbind."),
    _api(
        snapshots.CreateSnapshotRequest,
        snapshots.CreateSnapshotResponse,
        "The data directory as it is now, for a backup by a process on the same machine.",
    ),
]

APIS: dict[int, Api] = {each.key: each for each in sorted(_OFFERED, key=lambda each: each.key)}
assert len(APIS) == len(_OFFERED), "an API key is listed twice"

_LEFT_OUT = [
    ("SaslHandshake, SaslAuthenticate", "17, 36", "authentication is not built yet; listeners stay on loopback"),
    ("delegation tokens", "38–41", "they spare many workers a password store; one machine has no need"),
    ("GetTelemetrySubscriptions, PushTelemetry", "71, 72", "clients push metrics only where these are offered"),
    ("share groups", "76–79, 90–92", "not built yet"),
    ("streams groups", "88, 89", "only Kafka Streams speaks them, and it also runs on classic groups"),
    (
        "WriteTxnMarkers and other requests between brokers",
        "4–7, 27, 52–56, 58, 59, 62–64, 67, 70, 73, 80–87",
        "there is one broker; its parts call each other",
    ),
]


def support_matrix() -> str:
    """The text of docs/support-matrix.md."""
    lines = [
        "# The Kafka APIs that headrace offers",
        "",
        "Printed from the code by `python -m headrace.wire.kafka.apis`; a test compares. The versions are those that a",
        "Kafka 4.3 broker offers to clients. A request of any other API or version closes the connection, as in Kafka;",
        "ApiVersions alone answers an unknown version with UNSUPPORTED_VERSION.",
        "",
        "| key | API | versions | what is left out, and why |",
        "|---:|---|---|---|",
    ]
    rows = {
        api.key: f"| {api.key} | {api.name} | {api.version_min}–{api.version_max} | {api.note} |"
        for api in APIS.values()
    }
    lines += [row for key, row in rows.items() if not APIS[key].is_own]
    lines += ["", "## Not offered", "", "| APIs | keys | why |", "|---|---|---|"]
    lines += [f"| {names} | {keys} | {why} |" for names, keys, why in _LEFT_OUT]
    lines += [
        "",
        "## Only headrace's",
        "",
        "Administration of queues and exchanges, and backups. ApiVersions shows these to clients that call themselves",
        "`headrace`.",
        "",
        "| key | API | versions | what it does |",
        "|---:|---|---|---|",
    ]
    lines += [row for key, row in rows.items() if APIS[key].is_own]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(support_matrix())
