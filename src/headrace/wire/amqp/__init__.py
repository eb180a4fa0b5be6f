"""AMQP 0-9-1 as RabbitMQ speaks it, without I/O: bytes become events, and methods become bytes.

    errors.py       reply codes, and what each of them ends: a channel or the connection
    tables.py       field tables, within bounds
    methods.py      every method with its arguments, declared once
    properties.py   the properties of a message, mostly as the bytes that they came as
    connection.py   frames: ``receive_data(bytes) -> events``, and frames to send

Owns the wire's format. Never knows what a queue is.
"""
