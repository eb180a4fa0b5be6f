"""Consumer groups: members share partitions, and remember how far they read.

coordinator.py   members that join, stay and leave; groups that change their protocol
group.py         what every kind of group offers
classic.py       a classic group, and rebalance.py what moves it
consumer.py      a consumer group (KIP-848), and heartbeats.py what moves it
mixed.py         classic members of consumer groups
commits.py       requests about offsets, and offsets.py where those are kept
admin.py         groups listed, described and deleted
"""

from headrace.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
