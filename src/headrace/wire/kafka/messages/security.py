"""Access control lists, SCRAM credentials and client quotas."""

from __future__ import annotations

from headrace.wire.kafka.schema import bits, boolean, f64, i8, i16, i32, message, string, struct, structs

__all__ = [
    "AclCreation",
    "AclCreationResult",
    "AclDescription",
    "AlterClientQuotasRequest",
    "AlterClientQuotasRequestEntryData",
    "AlterClientQuotasResponse",
    "AlterClientQuotasResponseEntryData",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponse",
    "AlterUserScramCredentialsResult",
    "ComponentData",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "CredentialInfo",
    "DeleteAclsFilter",
    "DeleteAclsFilterResult",
    "DeleteAclsMatchingAcl",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResource",
    "DescribeAclsResponse",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClientQuotasResponseEntryData",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "DescribeUserScramCredentialsResult",
    "EntityData",
    "OpData",
    "ScramCredentialDeletion",
    "ScramCredentialUpsertion",
    "UserName",
    "ValueData",
]


@message(api_key=29, versions=(1, 3), flexible=2)
class DescribeAclsRequest:
    resource_type_filter: int = i8()
    resource_name_filter: str | None = string(null=0)
    pattern_type_filter: int = i8(default=3)
    principal_filter: str | None = string(null=0)
    host_filter: str | None = string(null=0)
    operation: int = i8()
    permission_type: int = i8()


@struct
class AclDescription:
    principal: str = string()
    host: str = string()
    operation: int = i8()
    permission_type: int = i8()


@struct
class DescribeAclsResource:
    resource_type: int = i8()
    resource_name: str = string()
    pattern_type: int = i8(default=3)
    acls: list[AclDescription] = structs(AclDescription)


@message(api_key=29, versions=(1, 3), flexible=2)
class DescribeAclsResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0)
    resources: list[DescribeAclsResource] = structs(DescribeAclsResource)


@struct
class AclCreation:
    resource_type: int = i8()
    resource_name: str = string()
    resource_pattern_type: int = i8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = i8()
    permission_type: int = i8()


@message(api_key=30, versions=(1, 3), flexible=2)
class CreateAclsRequest:
    creations: list[AclCreation] = structs(AclCreation)


@struct
class AclCreationResult:
    error_code: int = i16()
    error_message: str | None = string(null=0)


@message(api_key=30, versions=(1, 3), flexible=2)
class CreateAclsResponse:
    throttle_time_ms: int = i32()
    results: list[AclCreationResult] = structs(AclCreationResult)


@struct
class DeleteAclsFilter:
    resource_type_filter: int = i8()
    resource_name_filter: str | None = string(null=0)
    pattern_type_filter: int = i8(default=3)
    principal_filter: str | None = string(null=0)
    host_filter: str | None = string(null=0)
    operation: int = i8()
    permission_type: int = i8()


@message(api_key=31, versions=(1, 3), flexible=2)
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = structs(DeleteAclsFilter)


@struct
class DeleteAclsMatchingAcl:
    error_code: int = i16()
    error_message: str | None = string(null=0)
    resource_type: int = i8()
    resource_name: str = string()
    pattern_type: int = i8(default=3)
    principal: str = string()
    host: str = string()
    operation: int = i8()
    permission_type: int = i8()


@struct
class DeleteAclsFilterResult:
    error_code: int = i16()
    error_message: str | None = string(null=0)
    matching_acls: list[DeleteAclsMatchingAcl] = structs(DeleteAclsMatchingAcl)


@message(api_key=31, versions=(1, 3), flexible=2)
class DeleteAclsResponse:
    throttle_time_ms: int = i32()
    filter_results: list[DeleteAclsFilterResult] = structs(DeleteAclsFilterResult)


@struct
class ComponentData:
    entity_type: str = string()
    match_type: int = i8()
    match: str | None = string(null=0)


@message(api_key=48, versions=(0, 1), flexible=1)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = structs(ComponentData)
    strict: bool = boolean()


@struct
class EntityData:
    entity_type: str = string()
    entity_name: str | None = string(null=0)


@struct
class ValueData:
    key: str = string()
    value: float = f64()


@struct
class DescribeClientQuotasResponseEntryData:
    entity: list[EntityData] = structs(EntityData)
    values: list[ValueData] = structs(ValueData)


@message(api_key=48, versions=(0, 1), flexible=1)
class DescribeClientQuotasResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0)
    entries: list[DescribeClientQuotasResponseEntryData] | None = structs(DescribeClientQuotasResponseEntryData, null=0)


@struct
class OpData:
    key: str = string()
    value: float = f64()
    remove: bool = boolean()


@struct
class AlterClientQuotasRequestEntryData:
    entity: list[EntityData] = structs(EntityData)
    ops: list[OpData] = structs(OpData)


@message(api_key=49, versions=(0, 1), flexible=1)
class AlterClientQuotasRequest:
    entries: list[AlterClientQuotasRequestEntryData] = structs(AlterClientQuotasRequestEntryData)
    validate_only: bool = boolean()


@struct
class AlterClientQuotasResponseEntryData:
    error_code: int = i16()
    error_message: str | None = string(null=0)
    entity: list[EntityData] = structs(EntityData)


@message(api_key=49, versions=(0, 1), flexible=1)
class AlterClientQuotasResponse:
    throttle_time_ms: int = i32()
    entries: list[AlterClientQuotasResponseEntryData] = structs(AlterClientQuotasResponseEntryData)


@struct
class UserName:
    name: str = string()


@message(api_key=50, versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = structs(UserName, null=0)


@struct
class CredentialInfo:
    mechanism: int = i8()
    iterations: int = i32()


@struct
class DescribeUserScramCredentialsResult:
    user: str = string()
    error_code: int = i16()
    error_message: str | None = string(null=0)
    credential_infos: list[CredentialInfo] = structs(CredentialInfo)


@message(api_key=50, versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0)
    results: list[DescribeUserScramCredentialsResult] = structs(DescribeUserScramCredentialsResult)


@struct
class ScramCredentialDeletion:
    name: str = string()
    mechanism: int = i8()


@struct
class ScramCredentialUpsertion:
    name: str = string()
    mechanism: int = i8()
    iterations: int = i32()
    salt: bytes = bits()
    salted_password: bytes = bits()


@message(api_key=51, versions=(0, 0), flexible=0)
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = structs(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = structs(ScramCredentialUpsertion)


@struct
class AlterUserScramCredentialsResult:
    user: str = string()
    error_code: int = i16()
    error_message: str | None = string(null=0)


@message(api_key=51, versions=(0, 0), flexible=0)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = i32()
    results: list[AlterUserScramCredentialsResult] = structs(AlterUserScramCredentialsResult)
