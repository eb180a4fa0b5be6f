"""What requests mean: topics, produce, fetch, groups, transactions. No sockets here; an answer that must wait is a
``PendingReply``."""
