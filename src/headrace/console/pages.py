"""The pages of the console. A new one is added here."""

from __future__ import annotations

from headrace.console import captures, dashboards, groups, messages, overview, pipelines, queues, topics
from headrace.console.page import Page

__all__ = ["PAGES"]

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    topics.PAGE,
    messages.PAGE,
    groups.PAGE,
    queues.PAGE,
    captures.PAGE,
    pipelines.PAGE,
    dashboards.PAGE,
)
