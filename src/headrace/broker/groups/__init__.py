"""Consumer groups: members share partitions, and remember how far they read.

coordinator.py   members that join, stay and leave; groups that change their protocol
group.py         what every kind of group offers
classic.py       a classic group, and rebalance.py what moves it
consumer.py      a consumer group (KIP-848), and heartbeats.py what moves it
mixed.py         classic members of consumer groups
assignors.py     who gets which partition, and assigning.py where that is computed
matching.py      topics that match the patterns of members
commits.py       offsets committed, offset_fetch.py read, and offsets.py where they are kept
admin.py         groups listed, described and deleted
"""

from headrace.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
