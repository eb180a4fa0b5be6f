"""DescribeClientQuotas and AlterClientQuotas.

headrace enforces no quotas. So there are none to describe, removing one changes nothing, and setting one is refused: a
limit that is accepted and not kept would be worse than none. Wrong requests get Kafka's answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from headrace.broker.access import AccessDenied, Operation
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.config import Settings
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)

__all__ = ["ClientQuotaHandler"]

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

KEYS = frozenset({"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"})
IP_KEYS = frozenset({"connection_creation_rate"})

Entity = dict[str, str | None]
"""Name by type. As in Kafka the last name of a type counts."""


class ClientQuotaHandler:
    """Answers DescribeClientQuotas and AlterClientQuotas."""

    def __init__(self, *, settings: Settings) -> None:
        self._settings = settings

    def describe_client_quotas(self, request: Request[DescribeClientQuotasRequest]) -> Reply:
        try:
            request.access.check_cluster(Operation.DESCRIBE_CONFIGS)
            _check_filter(request.body.components)
        except KafkaError as error:
            return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
        return DescribeClientQuotasResponse(error_message="")

    def alter_client_quotas(self, request: Request[AlterClientQuotasRequest]) -> Steps[Reply]:
        """One answer per entity, also where several entries name it."""
        try:
            request.access.check_cluster(Operation.ALTER_CONFIGS)
            denied = None
        except AccessDenied as error:
            denied = error
        errors: dict[tuple[tuple[str, str | None], ...], KafkaError | None] = {}
        for entry in request.body.entries:
            entity = {each.entity_type: each.entity_name for each in entry.entity}
            key = tuple(sorted(entity.items()))
            errors[key] = denied or (_duplicate(entity) if key in errors else _unalterable(entity, entry))
            yield 1 + (len(entry.entity) + len(entry.ops)) // 10
        entries = Elements(AlterClientQuotasResponse, request.version, self._settings)
        for key, refused in errors.items():
            make = partial(_altered, [EntityData(entity_type=kind, entity_name=name) for kind, name in key])
            if entries.full is not None:
                entries.refuse(make(entries.full))
            else:
                entries.add(make(refused), make)
            yield 1 + len(key) // 10
        return AlterClientQuotasResponse(entries=entries.encoded)


def _check_filter(components: Iterable[ComponentData]) -> None:
    seen: set[str] = set()
    for each in components:
        kind = each.entity_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in seen:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        _check_match(each)
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
        )


def _check_match(component: ComponentData) -> None:
    if component.match_type == EXACT and component.match is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if component.match_type in (DEFAULT, SPECIFIED) and component.match is not None:
        name = "DEFAULT" if component.match_type == DEFAULT else "SPECIFIED"
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Request specified MATCH_TYPE_{name}, but also specified a match string."
        )
    if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")


def _unalterable(entity: Entity, entry: AlterClientQuotasRequestEntryData) -> KafkaError | None:
    """Kafka's reason to refuse the entry, else that we enforce no quotas; None if it only removes."""
    try:
        _check_entity(entity)
        _check_keys(entity, entry.ops)
    except KafkaError as error:
        return error
    if len({each.key for each in entry.ops}) != len(entry.ops):
        return _duplicate(entity)
    if all(each.remove for each in entry.ops):
        return None
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, "headrace does not enforce client quotas; the quota was not set.")


def _check_entity(entity: Entity) -> None:
    if not entity:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
    if IP in entity and len(entity) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        )


def _check_keys(entity: Entity, changes: Iterable[OpData]) -> None:
    known = IP_KEYS if IP in entity else KEYS
    for each in changes:
        if not each.remove and each.key not in known:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {each.key}")


def _duplicate(entity: Entity) -> KafkaError:
    shown = ", ".join(f"{kind}={name}" for kind, name in entity.items())
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")


def _altered(entity: list[EntityData], error: KafkaError | None) -> AlterClientQuotasResponseEntryData:
    if error is None:
        return AlterClientQuotasResponseEntryData(error_message=None, entity=entity)
    text = None if isinstance(error, AnswerTooLarge) else error.message  # a full answer has no room for texts
    return AlterClientQuotasResponseEntryData(error_code=error.code, error_message=text, entity=entity)
