"""Classic groups: joining, syncing, leaving, and looking at them."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, bits, boolean, i16, i32, message, string, struct, structs

__all__ = [
    "DeletableGroupResult",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribedGroup",
    "DescribedGroupMember",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupRequest",
    "JoinGroupRequestProtocol",
    "JoinGroupResponse",
    "JoinGroupResponseMember",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListedGroup",
    "MemberIdentity",
    "MemberResponse",
    "SyncGroupRequest",
    "SyncGroupRequestAssignment",
    "SyncGroupResponse",
]


@struct
class JoinGroupRequestProtocol:
    name: str = string()
    metadata: bytes = bits()


@message(api_key=11, versions=(0, 9), flexible=6)
class JoinGroupRequest:
    group_id: str = string()
    session_timeout_ms: int = i32()
    rebalance_timeout_ms: int = i32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, null=5, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = structs(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, null=8, default=None)


@struct
class JoinGroupResponseMember:
    member_id: str = string()
    group_instance_id: str | None = string(since=5, null=5, default=None)
    metadata: bytes = bits()


@message(api_key=11, versions=(0, 9), flexible=6)
class JoinGroupResponse:
    throttle_time_ms: int = i32(since=2)
    error_code: int = i16()
    generation_id: int = i32(default=-1)
    protocol_type: str | None = string(since=7, null=7, default=None)
    protocol_name: str | None = string(null=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = structs(JoinGroupResponseMember)


@struct
class SyncGroupRequestAssignment:
    member_id: str = string()
    assignment: bytes = bits()


@message(api_key=14, versions=(0, 5), flexible=4)
class SyncGroupRequest:
    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, null=3, default=None)
    protocol_type: str | None = string(since=5, null=5, default=None)
    protocol_name: str | None = string(since=5, null=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = structs(SyncGroupRequestAssignment)


@message(api_key=14, versions=(0, 5), flexible=4)
class SyncGroupResponse:
    throttle_time_ms: int = i32(since=1)
    error_code: int = i16()
    protocol_type: str | None = string(since=5, null=5, default=None)
    protocol_name: str | None = string(since=5, null=5, default=None)
    assignment: bytes = bits()


@message(api_key=12, versions=(0, 4), flexible=4)
class HeartbeatRequest:
    group_id: str = string()
    generation_id: int = i32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, null=3, default=None)


@message(api_key=12, versions=(0, 4), flexible=4)
class HeartbeatResponse:
    throttle_time_ms: int = i32(since=1)
    error_code: int = i16()


@struct
class MemberIdentity:
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, null=3, default=None)
    reason: str | None = string(since=5, null=5, default=None)


@message(api_key=13, versions=(0, 5), flexible=4)
class LeaveGroupRequest:
    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = structs(MemberIdentity, since=3)


@struct
class MemberResponse:
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, null=3)
    error_code: int = i16(since=3)


@message(api_key=13, versions=(0, 5), flexible=4)
class LeaveGroupResponse:
    throttle_time_ms: int = i32(since=1)
    error_code: int = i16()
    members: list[MemberResponse] = structs(MemberResponse, since=3)


@message(api_key=15, versions=(0, 6), flexible=5)
class DescribeGroupsRequest:
    groups: list[str] = array("string")
    include_authorized_operations: bool = boolean(since=3)


@struct
class DescribedGroupMember:
    member_id: str = string()
    group_instance_id: str | None = string(since=4, null=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bits()
    member_assignment: bytes = bits()


@struct
class DescribedGroup:
    error_code: int = i16()
    error_message: str | None = string(since=6, null=6, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = structs(DescribedGroupMember)
    authorized_operations: int = i32(since=3, default=-2147483648)


@message(api_key=15, versions=(0, 6), flexible=5)
class DescribeGroupsResponse:
    throttle_time_ms: int = i32(since=1)
    groups: list[DescribedGroup] = structs(DescribedGroup)


@message(api_key=16, versions=(0, 5), flexible=3)
class ListGroupsRequest:
    states_filter: list[str] = array("string", since=4)
    types_filter: list[str] = array("string", since=5)


@struct
class ListedGroup:
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


@message(api_key=16, versions=(0, 5), flexible=3)
class ListGroupsResponse:
    throttle_time_ms: int = i32(since=1)
    error_code: int = i16()
    groups: list[ListedGroup] = structs(ListedGroup)


@message(api_key=42, versions=(0, 3), flexible=2)
class DeleteGroupsRequest:
    groups_names: list[str] = array("string")


@struct
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = i16()
    error_message: str | None = string(since=3, null=3, default=None)


@message(api_key=42, versions=(0, 3), flexible=2)
class DeleteGroupsResponse:
    throttle_time_ms: int = i32()
    results: list[DeletableGroupResult] = structs(DeletableGroupResult)
