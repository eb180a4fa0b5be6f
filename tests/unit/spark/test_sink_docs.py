"""The page about the sink has every option with its default, and none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.spark.topic_sink.options import COLUMNS, SINK

PAGE = (Path(__file__).resolve().parents[3] / "docs/spark-sink.md").read_text()


def test_every_option_and_its_default_is_on_the_page() -> None:
    section = PAGE.split("## Options")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]*)\|", section, re.MULTILINE))
    assert list(listed) == [each.name for each in SINK]
    for each in SINK:
        if each.default is not None:
            assert listed[each.name].strip(" `") == str(each.default), each.name


def test_every_column_is_on_the_page() -> None:
    section = PAGE.split("## Columns")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(COLUMNS)
