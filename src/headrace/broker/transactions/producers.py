"""InitProducerId: producer ids and epochs.

A producer without a transactional id gets a new producer id. One with a transactional id gets the next epoch of that
id, which fences the producer that had it before.
"""

from __future__ import annotations

from headrace.broker.access import Operation
from headrace.broker.errors import code_of
from headrace.broker.limits import TRANSACTIONAL_ID_CHARS_MAX, TRANSACTIONAL_IDS_MAX
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.state import StateStore
from headrace.broker.transactions.answers import init_failed
from headrace.broker.transactions.connections import Connections
from headrace.broker.transactions.endings import EndTxnHandler
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.registry import Transactions
from headrace.broker.transactions.states import EPOCH_EXHAUSTED, NO_EPOCH, NO_ID, State, Transaction
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock
from headrace.wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

__all__ = ["ProducerIdHandler"]


class ProducerIdHandler:
    """Answers InitProducerId."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        settings: Settings,
        ids: ProducerIds,
        transactions: Transactions,
        connections: Connections,
        endings: EndTxnHandler,
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._ids = ids
        self._transactions = transactions
        self._connections = connections
        self._endings = endings

    def init_producer_id(self, request: Request[InitProducerIdRequest]) -> Reply:
        body = request.body
        try:
            if body.transactional_id is None:
                request.access.check_idempotent_write()
            else:
                request.access.transaction(body.transactional_id, Operation.WRITE)
            if (body.producer_id == NO_ID) != (body.producer_epoch == NO_EPOCH):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together or not at all")
            if body.transactional_id is None:
                response = InitProducerIdResponse(producer_id=self._ids.take(), producer_epoch=0)
                return once_flushed(self._state, self._ids.reserved_at, response)
            self._check_init(body)
            return self._init_transactional(request, body.transactional_id)
        except HeadraceError as error:
            return init_failed(code_of(error), request.version)

    def _check_init(self, body: InitProducerIdRequest) -> None:
        if not body.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if len(body.transactional_id) > TRANSACTIONAL_ID_CHARS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is too long")
        if body.enable2_pc:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "two-phase commit is not offered")
        if body.keep_prepared_txn:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "prepared transactions are not kept")
        if not 0 < body.transaction_timeout_ms <= self._settings.integer("transaction.max.timeout.ms"):
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    def _init_transactional(self, request: Request[InitProducerIdRequest], transactional_id: str) -> Reply:
        known = request.access.transaction(transactional_id, Operation.WRITE)
        current = known or self._new(transactional_id, request.body)
        self._check_expected(current, request.body)
        if current.state.decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.state is State.ONGOING:
            # The old producer is fenced and its transaction aborted first; the client asks again for the next epoch.
            self._endings.decide(current, commit=False, bump=True)
            refused = init_failed(ErrorCode.CONCURRENT_TRANSACTIONS, request.version)
            return self._transactions.once_durable(transactional_id, refused)
        initialised = self._initialised(current, request.body)
        self._transactions.store(initialised)
        self._connections.begin(initialised, request.peer)
        response = InitProducerIdResponse(
            producer_id=initialised.producer_id, producer_epoch=initialised.producer_epoch
        )
        return self._transactions.once_durable(transactional_id, response)

    def _new(self, transactional_id: str, body: InitProducerIdRequest) -> Transaction:
        if len(self._transactions) >= TRANSACTIONAL_IDS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{TRANSACTIONAL_IDS_MAX} transactional ids are in use; lower transactional.id.expiration.ms",
            )
        return Transaction(
            transactional_id=transactional_id,
            producer_id=self._ids.take(),
            timeout_ms=body.transaction_timeout_ms,
            updated_ms=self._clock.wall_ms(),
        )

    @staticmethod
    def _check_expected(current: Transaction, body: InitProducerIdRequest) -> None:
        """A producer that sends its id and epoch is refused if another producer has taken over."""
        known = (
            body.producer_id == NO_ID
            or current.producer_epoch == NO_EPOCH
            or body.producer_id == current.producer_id
            or (body.producer_id == current.previous_producer_id and body.producer_epoch >= EPOCH_EXHAUSTED)
        )
        if not known:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)

    def _initialised(self, current: Transaction, body: InitProducerIdRequest) -> Transaction:
        """With the next epoch; with the same one for a retry; with a new producer id when the epochs are used up."""
        now_ms, timeout_ms = self._clock.wall_ms(), body.transaction_timeout_ms
        expected = None if body.producer_id == NO_ID else body.producer_epoch
        matches = expected is None or expected == current.producer_epoch or current.producer_epoch == NO_EPOCH
        if matches and current.epoch_exhausted:
            producer_id = self._ids.take()
            return current.with_producer_id(producer_id, timeout_ms, expected=expected is not None, now_ms=now_ms)
        if matches:
            return current.with_epoch_bumped(timeout_ms, expected_epoch=expected, now_ms=now_ms)
        if expected == current.last_epoch:
            return current.answered_again(timeout_ms, now_ms)
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
