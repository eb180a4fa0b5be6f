"""The servers themselves: that they start, answer and end."""

from __future__ import annotations

import pytest

from tests.servers.kafka import answers
from tests.servers.process import RunningServer

pytestmark = pytest.mark.servers


def test_a_started_broker_answers_at_its_address(broker: RunningServer) -> None:
    assert answers(broker.address[1])
