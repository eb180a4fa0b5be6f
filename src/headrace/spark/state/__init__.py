"""Keyed state: what an operator is, where its state lies, and how both are hung into Spark.

``operator`` says what an operator in columns is and ``bucket`` how the state of many keys is held; neither knows Spark.
``kernel`` applies an operator to a DataFrame, ``inspection`` looks into a checkpoint. ``dedup`` is the simplest
operator. Nothing here knows windows, tables or watermarks of sources: those import this, never the other way.
"""
