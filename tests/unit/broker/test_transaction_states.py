"""The tables: complete, and closed under what the coordinator does with them."""

from __future__ import annotations

import pytest

from headrace.broker.transactions.states import (
    END_WITH_BUMP,
    END_WITHOUT_BUMP,
    NEXT_STATES,
    EndAnswer,
    State,
    Transaction,
)

AT_WORK = [state for state in State if state is not State.DEAD]


def transaction(state: State = State.EMPTY) -> Transaction:
    return Transaction(transactional_id="t", producer_id=7, producer_epoch=3, timeout_ms=1000, state=state)


def test_every_state_says_what_may_follow_it() -> None:
    assert set(NEXT_STATES) == set(State)


def test_only_dead_is_an_end_and_every_other_state_can_be_reached() -> None:
    assert [state for state in State if not NEXT_STATES[state]] == [State.DEAD]
    reached = {State.EMPTY}
    while True:
        further = reached.union(*(NEXT_STATES[state] for state in reached))
        if further == reached:
            break
        reached = further
    assert reached == set(State)


def test_a_decision_can_only_be_completed_as_it_was_made() -> None:
    assert NEXT_STATES[State.PREPARE_COMMIT] == {State.COMPLETE_COMMIT}
    assert NEXT_STATES[State.PREPARE_ABORT] == {State.COMPLETE_ABORT}


def test_end_without_bump_has_an_answer_for_every_state() -> None:
    assert set(END_WITHOUT_BUMP) == {(state, commit) for state in AT_WORK for commit in (True, False)}


def test_end_with_bump_fences_exactly_the_epochs_that_no_client_of_ours_can_have() -> None:
    every = {(state, commit, retry) for state in AT_WORK for commit in (True, False) for retry in (True, False)}
    fenced = {(state, retry) for state, _, retry in every - set(END_WITH_BUMP)}
    assert fenced == {
        (State.EMPTY, True),
        (State.ONGOING, True),
        (State.PREPARE_COMMIT, False),
        (State.PREPARE_ABORT, False),
    }


def test_every_decide_in_the_tables_is_a_transition_that_the_states_allow() -> None:
    decides = [(state, commit) for (state, commit), answer in END_WITHOUT_BUMP.items() if answer is EndAnswer.DECIDE]
    decides += [(key[0], key[1]) for key, answer in END_WITH_BUMP.items() if answer is EndAnswer.DECIDE]
    for state, commit in decides:
        assert (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT) in NEXT_STATES[state]


def test_a_transition_that_the_table_forbids_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="CompleteCommit cannot become PrepareCommit"):
        transaction(State.COMPLETE_COMMIT).prepared(commit=True, bump=False, next_producer_id=-1, now_ms=1)


def test_a_row_gives_back_the_transaction_it_was_made_from() -> None:
    ongoing = transaction().with_members(5, partitions=frozenset([("b", 1), ("a", 0)]), groups=frozenset(["g"]))
    decided = ongoing.prepared(commit=True, bump=True, next_producer_id=9, now_ms=6)
    for each in (transaction(), ongoing, decided, decided.completed(7)):
        assert Transaction.from_row("t", each.to_row()) == each


def test_the_start_of_a_transaction_is_its_first_member_and_not_its_last() -> None:
    first = transaction().with_members(100, partitions=frozenset([("a", 0)]))
    assert first.with_members(200, groups=frozenset(["g"])).started_ms == 100


def test_completing_with_the_epochs_used_up_changes_the_producer_id_and_starts_epochs_again() -> None:
    ongoing = transaction().with_members(5, partitions=frozenset([("a", 0)]))
    completed = ongoing.prepared(commit=True, bump=True, next_producer_id=9, now_ms=6).completed(7)
    assert (completed.producer_id, completed.producer_epoch, completed.previous_producer_id) == (9, 0, 7)
    assert completed.partitions == frozenset()
