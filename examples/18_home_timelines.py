"""Home timelines: a view of two tables that both change. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import Event, run_pipeline


def timelines(spark: SparkSession) -> DataFrame:
    """For everybody the two latest posts of those whom they follow."""
    posts = hr.changes(hr.stream(spark, "posts", schema="id long, author string, text string"), key="id")
    follows = hr.changes(hr.stream(spark, "follows", schema="reader string, author string"), key=["reader", "author"])
    seen = hr.join_tables(posts, follows, "author")
    return hr.view(seen, keys="reader", values={"posts": F.max_by(F.struct("author", "text"), "id", 2)})


def post(number: int, author: str | None, text: str = "") -> Event:
    value = None if author is None else {"id": number, "author": author, "text": text}
    return Event(value, key=str(number))


def follow(reader: str, author: str, *, no_more: bool = False) -> Event:
    key = {"reader": reader, "author": author}
    return Event(None if no_more else key, key=json.dumps(key))


if __name__ == "__main__":
    spark = hr.session(app_name="timelines", conf={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"})
    rows = run_pipeline(
        timelines,
        {
            "posts": [
                [post(1, "ann", "Hello"), post(2, "bob", "Good morning")],
                [post(3, "ann", "It rains"), post(2, "bob", "Good evening")],  # bob has edited his post
                [post(3, None)],  # ann has deleted hers
                [],
            ],
            "follows": [
                [follow("zoe", "ann")],
                [follow("zoe", "bob")],
                [],
                [follow("zoe", "ann", no_more=True)],
            ],
        },
        spark=spark,
    )
    spark.stop()
    for row in rows:
        shown = ", ".join(f"{each.author}: {each.text}" for each in row.after.posts)
        print(f"{row.op:6} {row.key.reader}: {shown}")
    assert [[each.text for each in row.after.posts] for row in rows] == [
        ["Hello"],
        ["It rains", "Good evening"],
        ["Good evening", "Hello"],
        ["Good evening"],
    ]
