"""Systems outside that follow a stream of changes: databases, caches, search indexes, files, HTTP and mail.

``target.py`` says what a target is and how a batch counts once (fences); each other module knows one kind of system.
Batches come as Arrow tables. Nothing here imports Spark, reads a topic or keeps a clock, so pipelines, projections of
events and connectors write through the same code and the same fences.
"""
