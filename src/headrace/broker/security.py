"""Access control lists and SCRAM credentials: answered as Apache Kafka answers where nothing is configured.

headrace keeps neither yet. So ACLs are SECURITY_DISABLED, no user has a credential, and storing one is refused.

The cost is bounded: elements are handled in slices, equal answers share their bytes, and answers have a size limit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from headrace.broker.access import AccessDenied, Operation
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.config import Settings
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.security import (
    AclCreation,
    AclCreationResult,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

__all__ = ["SecurityHandler"]

ELEMENTS_PER_STEP = 20
UNKNOWN = 0
"""Kafka's number for a kind of resource, pattern, operation or permission that its sender does not know."""

MECHANISMS = (1, 2)
"""SCRAM-SHA-256 and SCRAM-SHA-512."""

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384

NO_AUTHORIZER = KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
NO_AUTHORIZER_TO_DESCRIBE = KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
NOT_STORED = KafkaError(
    ErrorCode.SECURITY_DISABLED, "headrace does not authenticate clients yet; the credential was not stored."
)

Credential = ScramCredentialDeletion | ScramCredentialUpsertion


class SecurityHandler:
    """Answers DescribeAcls, CreateAcls, DeleteAcls, DescribeUserScramCredentials and AlterUserScramCredentials."""

    def __init__(self, *, settings: Settings) -> None:
        self._settings = settings

    # ---- access control lists ----

    def describe_acls(self, request: Request[DescribeAclsRequest]) -> Reply:
        if _is_unknown(request.body):
            return _hang_up(request)
        error = _denied(request, Operation.DESCRIBE) or NO_AUTHORIZER_TO_DESCRIBE
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)

    def create_acls(self, request: Request[CreateAclsRequest]) -> Steps[Reply]:
        asked = request.body.creations
        if (yield from _any_unknown(asked)):
            return _hang_up(request)
        error = _denied(request, Operation.ALTER) or NO_AUTHORIZER
        results = Elements(CreateAclsResponse, request.version, self._settings)
        yield from _same_for_all(asked, results, error, _creation_refused)
        return CreateAclsResponse(results=results.encoded)

    def delete_acls(self, request: Request[DeleteAclsRequest]) -> Steps[Reply]:
        asked = request.body.filters
        if (yield from _any_unknown(asked)):
            return _hang_up(request)
        error = _denied(request, Operation.ALTER) or NO_AUTHORIZER
        results = Elements(DeleteAclsResponse, request.version, self._settings)
        yield from _same_for_all(asked, results, error, _deletion_refused)
        return DeleteAclsResponse(filter_results=results.encoded)

    # ---- SCRAM credentials ----

    def describe_user_scram_credentials(self, request: Request[DescribeUserScramCredentialsRequest]) -> Steps[Reply]:
        """No user has a credential. A user that is asked for twice is answered once, with an error."""
        asked = request.body.users or []
        results = Elements(DescribeUserScramCredentialsResponse, request.version, self._settings)
        if denied := _denied(request, Operation.DESCRIBE):
            yield from _same_for_all(asked, results, denied, partial(_description_refused, ""))
            return DescribeUserScramCredentialsResponse(
                error_code=denied.code, error_message=denied.message, results=results.encoded
            )
        times: dict[str, int] = {}
        for users in in_steps(asked, ELEMENTS_PER_STEP):
            for user in users:
                times[user.name] = times.get(user.name, 0) + 1
            yield 1
        for names in in_steps(times, ELEMENTS_PER_STEP):
            for name in names:
                _add(results, name, partial(_description_refused, name), _undescribed(name, times[name]))
            yield len(names)
        return DescribeUserScramCredentialsResponse(error_message="", results=results.encoded)

    def alter_user_scram_credentials(self, request: Request[AlterUserScramCredentialsRequest]) -> Steps[Reply]:
        """One answer per user: its first error. There always is one, because nothing is stored."""
        denied = _denied(request, Operation.ALTER)
        errors: dict[str, KafkaError] = {}
        seen: set[tuple[str, int]] = set()
        asked: list[Credential] = [*request.body.deletions, *request.body.upsertions]
        for some in in_steps(asked, ELEMENTS_PER_STEP):
            for each in some:
                if errors.get(each.name, NOT_STORED) is NOT_STORED:
                    errors[each.name] = denied or _unalterable(each, seen)
                seen.add((each.name, each.mechanism))
            yield len(some)
        results = Elements(AlterUserScramCredentialsResponse, request.version, self._settings)
        for names in in_steps(errors, ELEMENTS_PER_STEP):
            for name in names:
                _add(results, name, partial(_alteration_refused, name), errors[name])
            yield len(names)
        return AlterUserScramCredentialsResponse(results=results.encoded)


def _denied(request: Request[Any], operation: Operation) -> AccessDenied | None:
    try:
        request.access.check_cluster(operation)
    except AccessDenied as denied:
        return denied
    return None


# ---- elements that a newer client knows and we do not ----


def _is_unknown(asked: DescribeAclsRequest | DeleteAclsFilter | AclCreation) -> bool:
    if isinstance(asked, AclCreation):
        kinds = (asked.resource_type, asked.resource_pattern_type)
    else:
        kinds = (asked.resource_type_filter, asked.pattern_type_filter)
    return UNKNOWN in (*kinds, asked.operation, asked.permission_type)


def _any_unknown(asked: Iterable[DeleteAclsFilter | AclCreation]) -> Steps[bool]:
    for some in in_steps(asked, ELEMENTS_PER_STEP):
        if any(map(_is_unknown, some)):
            return True
        yield 1
    return False


def _hang_up(request: Request[Any]) -> None:
    """Kafka cannot even read such a request, and closes the connection."""
    request.peer.hang_up("an ACL request contains an unknown element")


# ---- answers ----


def _add(results: Elements, key: Hashable, refusal: Callable[[KafkaError], object], error: KafkaError) -> None:
    """Add the answer to one element, or the shorter one that the answer is full."""
    if results.full is not None:
        results.refuse(refusal(results.full))
    elif not results.repeat(key):
        results.add(refusal(error), refusal, key)


def _same_for_all(
    asked: Sequence[object], results: Elements, error: KafkaError, refusal: Callable[[KafkaError], object]
) -> Steps[None]:
    for some in in_steps(asked, ELEMENTS_PER_STEP):
        for _ in some:
            _add(results, "all", refusal, error)
        yield len(some)


def _text(error: KafkaError) -> str | None:
    """A full answer has no room for a text in each of its elements."""
    return None if isinstance(error, AnswerTooLarge) else error.message


def _creation_refused(error: KafkaError) -> AclCreationResult:
    return AclCreationResult(error_code=error.code, error_message=_text(error))


def _deletion_refused(error: KafkaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error.code, error_message=_text(error))


def _description_refused(name: str, error: KafkaError) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=name, error_code=error.code, error_message=_text(error))


def _alteration_refused(name: str, error: KafkaError) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=name, error_code=error.code, error_message=_text(error))


def _undescribed(name: str, times: int) -> KafkaError:
    if times > 1:
        return KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
        )
    return KafkaError(
        ErrorCode.RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {name}"
    )


def _unalterable(asked: Credential, seen: set[tuple[str, int]]) -> KafkaError:
    """Why a credential is not changed: Kafka's reason where it has one, else that we store none."""
    if not asked.name:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if asked.mechanism not in MECHANISMS:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(asked, ScramCredentialDeletion):
        return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    if asked.iterations < ITERATIONS_MIN:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if asked.iterations > ITERATIONS_MAX:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if (asked.name, asked.mechanism) in seen:
        return KafkaError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    return NOT_STORED
