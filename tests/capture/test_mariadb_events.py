"""What capture makes of the binlog's bytes and numbers, without a server."""

from __future__ import annotations

import pytest

from headrace.capture.mariadb_binlog import IGNORABLE, refuse_unknown
from headrace.capture.mariadb_rows import MalformedBinlog
from headrace.errors import UsageError


@pytest.mark.parametrize("kind", range(165, 172))
def test_a_compressed_event_is_refused_and_the_setting_named(kind: int) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_unknown(kind, 0)
    assert "SET GLOBAL log_bin_compress = 'OFF'" in (refused.value.hint or "")


def test_an_unknown_event_is_refused_unless_it_says_that_it_may_be_left_out() -> None:
    with pytest.raises(MalformedBinlog, match="type 172"):
        refuse_unknown(172, 0)
    refuse_unknown(172, IGNORABLE)
    refuse_unknown(9, 0)
