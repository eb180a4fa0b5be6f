"""Consumer groups: members share partitions, and remember how far they read."""

from headrace.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
