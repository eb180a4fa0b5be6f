"""Bytes to events and back, without I/O: no sockets, no clock, no threads below this package."""
