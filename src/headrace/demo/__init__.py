"""``headrace demo``: from a shop's database to what is derived from it, alive.

    shop ─▶ PostgreSQL ─▶ capture ─▶ topics ─▶ Spark pipelines ─▶ topics, PostgreSQL, a search index
    visitors ──────────── clicks ───▶

``shop`` writes the business, ``visitors`` the clicks, ``pipelines`` is what a user would write, ``stage`` starts all
parts as processes and stops them, ``display`` shows them, and ``audit`` compares the ends of the way in the end.
"""
