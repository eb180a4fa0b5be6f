"""Queues, judged by RabbitMQ and by real clients."""
