"""What requests mean: topics, produce, fetch, groups, transactions, queues. No sockets here; an answer that must wait
is a ``PendingReply``."""
