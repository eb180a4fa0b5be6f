"""Queues: messages that are handed out one by one, acknowledged one by one, and gone then.

    routing.py      exchanges and bindings: which queues a message goes to
    virtual_host.py the exchanges and queues of one name space
    registry.py     what is durable of them, and where messages lie
    rows.py         its rows in the state tables, also while the disk refuses them
    queue.py        the messages of a queue: what is handed out, and what a queue's policy does to the others
    damaged.py      one whose logs cannot be read: it takes no message, so that none is confirmed and lost
    rotation.py     its consumers: who gets the next message
    lane.py         the messages of a queue in a log: which are ready, taken and gone
    encoding.py     messages as the records of a batch, and back
    journal.py      what makes that survive a crash
    channel.py      what one client does: publishing, consuming, acknowledging
    deliveries.py   what a channel was sent and has not acknowledged
    topology.py     what a channel declares, binds and deletes
    stream.py       a queue that is the log itself
    reply_to.py     answers that need no queue
    admin.py        requests about queues on the Kafka port: look, declare, delete
    moves.py        the same: move, redrive, restore
    blocking.py     when publishers are held, because the disk is full or almost full
    retention.py    how long messages that are gone are kept
    feeds.py        records of topics that become messages, and messages that become records
    turn.py         work that is done once for everything that one read of a socket brought

Owns what AMQP's methods mean. Never touches a socket.
"""
