"""The sink ``headrace``: rows become records of a topic, each exactly once.

Owns the order of steps that makes a batch of many tasks count at one moment (``protocol``), the record of that moment
(``decisions``), and the encoding of rows as record batches. It never writes to anything but a Kafka broker: systems
outside are ``headrace/targets``, which ``spark/sinks`` brings rows to.
"""
