"""Nexmark: an auction house as three streams, and the questions that stream processors are compared with.

generator   persons, auctions and bids, any range of them by itself
load        events into topics
queries     the questions, as pipelines on Spark
oracle      the same in DuckDB's SQL: the judge
streams     topics to results, micro-batch by micro-batch, folded and compared
flink       the same in Flink's SQL on the same topics
__main__    ``make nexmark``: all of it, and the table
"""
