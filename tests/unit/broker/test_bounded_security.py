"""Requests on very many ACLs, credentials and quotas: answered in slices and bounded answers."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.security import (
    AclCreation,
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeUserScramCredentialsRequest,
    EntityData,
    OpData,
    ScramCredentialUpsertion,
    UserName,
)
from tests.unit.broker.harness import Harness, raw

MIB = 1 << 20
REPEATED = 2400

CREATION = AclCreation(resource_type=2, resource_name="t", operation=3, permission_type=3)
FILTER = DeleteAclsFilter(resource_type_filter=2, operation=3, permission_type=3)


def test_many_access_control_lists_are_refused_in_slices_and_share_their_bytes(
    with_slices: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        created = await raw(harness, CreateAclsRequest(creations=[CREATION] * REPEATED))
        deleted = await raw(harness, DeleteAclsRequest(filters=[FILTER] * REPEATED))
        for results in (created.results, deleted.filter_results):
            assert len(results) == REPEATED
            assert len({id(each) for each in results}) == 1
            assert results.errors == {ErrorCode.SECURITY_DISABLED: 1}

    with_slices(scenario)


def test_many_users_and_quotas_are_answered_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        names = [f"user-{index}" for index in range(REPEATED)]
        described = await harness.ask(DescribeUserScramCredentialsRequest(users=[UserName(name=n) for n in names]))
        assert {each.error_code for each in described.results} == {ErrorCode.RESOURCE_NOT_FOUND}
        upsertions = [ScramCredentialUpsertion(name=name, mechanism=1, iterations=4096) for name in names]
        altered = await harness.ask(AlterUserScramCredentialsRequest(upsertions=upsertions))
        assert [each.error_code for each in altered.results] == [ErrorCode.SECURITY_DISABLED] * REPEATED
        entries = [
            AlterClientQuotasRequestEntryData(
                entity=[EntityData(entity_type="user", entity_name=name)], ops=[OpData(key="producer_byte_rate")]
            )
            for name in names
        ]
        quotas = await harness.ask(AlterClientQuotasRequest(entries=entries))
        assert [each.error_code for each in quotas.entries] == [ErrorCode.UNSUPPORTED_VERSION] * REPEATED

    with_slices(scenario)


def test_an_answer_on_too_many_users_says_that_it_is_full(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        names = [UserName(name=f"user-{index:04}" + "x" * 200) for index in range(5000)]
        answer = await harness.ask(DescribeUserScramCredentialsRequest(users=names))
        codes = [each.error_code for each in answer.results]
        found = codes.count(ErrorCode.RESOURCE_NOT_FOUND)
        assert 0 < found < 5000
        assert codes == [ErrorCode.RESOURCE_NOT_FOUND] * found + [ErrorCode.POLICY_VIOLATION] * (5000 - found)
        assert answer.results[-1].error_message is None

    with_slices(scenario, **{"response.bytes.max": MIB})
