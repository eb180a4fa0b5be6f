"""Every message headrace speaks, one module per neighbourhood of the protocol."""

from __future__ import annotations
