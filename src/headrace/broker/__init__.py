"""What requests mean: topics, produce, fetch, groups, transactions. No sockets here; what must wait is a future."""
