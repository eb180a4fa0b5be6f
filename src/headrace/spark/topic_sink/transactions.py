"""What the sink asks about many transactions at once: one request per coordinator and not one per transaction."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.client import (
    Client,
    Outcome,
    ProducerIdentity,
    TransactionInfo,
    TransactionLost,
    end_transaction,
    init_producer_id,
    list_transactions,
)
from headrace.client.client import check
from headrace.client.transactions import END_VERSION_KEEPING_EPOCH, transactions_v2
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
)

__all__ = ["abort_open", "commit_all", "outcomes"]

FENCING_TIMEOUT_MS = 60_000
UNDER_WAY_MAX = 64
"""Requests sent before the first answer is read; brokers stop reading a connection with many more."""


def commit_all(client: Client, identities: Iterable[ProducerIdentity]) -> dict[ProducerIdentity, Outcome]:
    """Commit every one of these transactions, those committed before included; gives what became of those lost."""
    waiting = list(identities)
    lost: list[ProducerIdentity] = []
    while waiting:
        part, waiting = waiting[:UNDER_WAY_MAX], waiting[UNDER_WAY_MAX:]
        for identity in _commit_together(client, part):
            try:
                end_transaction(client, identity, commit=True)
            except TransactionLost:
                lost.append(identity)
    found = outcomes(client, lost) if lost else {}
    return {each: outcome for each, outcome in found.items() if outcome is not Outcome.COMMITTED}


def _commit_together(client: Client, identities: list[ProducerIdentity]) -> list[ProducerIdentity]:
    """Ask for all before the first answer is read; those that did not go through at once are given back."""
    remaining = list(identities)
    try:
        under_way = []
        for identity in identities:
            connection = client.connection(client.transaction_coordinator(identity.transactional_id))
            request = EndTxnRequest(
                transactional_id=identity.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                committed=True,
            )
            version_max = None if transactions_v2(connection) else END_VERSION_KEEPING_EPOCH
            under_way.append((identity, connection, connection.send(request, EndTxnResponse, version_max=version_max)))
        for identity, connection, pending in under_way:
            if connection.wait(pending).error_code == ErrorCode.NONE:
                remaining.remove(identity)
    except KafkaError as error:
        client.learn_from(error.code)
    return remaining


def outcomes(client: Client, identities: Iterable[ProducerIdentity]) -> dict[ProducerIdentity, Outcome]:
    """What has become of each transaction."""
    wanted = list(identities)
    known = client.retrying(lambda: _describe(client, sorted({each.transactional_id for each in wanted})))
    return {
        each: info.outcome_of(each) if (info := known.get(each.transactional_id)) is not None else Outcome.UNKNOWN
        for each in wanted
    }


def _describe(client: Client, transactional_ids: list[str]) -> dict[str, TransactionInfo]:
    by_node: dict[int, list[str]] = {}
    for each in transactional_ids:
        by_node.setdefault(client.transaction_coordinator(each), []).append(each)
    found: dict[str, TransactionInfo] = {}
    for node, ids in by_node.items():
        answer = client.call(node, DescribeTransactionsRequest(transactional_ids=ids), DescribeTransactionsResponse)
        for described in answer.transaction_states:
            if described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            check(described.error_code, None, f"describing transactional id {described.transactional_id!r}")
            found[described.transactional_id] = TransactionInfo(
                transactional_id=described.transactional_id,
                state=described.transaction_state,
                producer_id=described.producer_id,
                epoch=described.producer_epoch,
                timeout_ms=described.transaction_timeout_ms,
            )
    return found


def abort_open(client: Client, prefix: str, *, keep: Iterable[ProducerIdentity] = ()) -> list[str]:
    """Abort every open transaction whose id begins with ``prefix``, except those of ``keep``; gives their ids.

    Readers of committed records would wait for them until they time out. Initialising an id also fences a task that
    still writes under it. One of ``keep`` may end between the two questions, by a request that a driver sent before it
    died; initialised then, nobody could tell any more how it ended.
    """
    kept = {each.transactional_id: each for each in keep}
    ours = list_transactions(client, prefix=prefix, states=["Ongoing"])
    decided = [kept[each] for each in ours if each in kept]
    if decided:
        state = outcomes(client, decided)
        ours = [each for each in ours if each not in kept or state[kept[each]] is Outcome.SUPERSEDED]
    for each in ours:
        init_producer_id(client, each, FENCING_TIMEOUT_MS)
    return ours
