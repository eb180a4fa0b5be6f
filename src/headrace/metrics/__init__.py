"""What an operator can ask the process: metrics, health and readiness, over HTTP.

    families.py     every metric, declared once: name, kind, labels, what it means
    collector.py    reads the parts' counters when somebody asks, in small slices
    known_names.py  the same facts under the names of other exporters
    reported.py     lag of pipelines and captures, from the state records that they publish
    endpoints.py    /metrics, /health and /ready

The parts know nothing of this: they keep plain attributes (``headrace.measures``), and the collector looks at them.
"""

from __future__ import annotations

from headrace.metrics.collector import Collector, Sources
from headrace.metrics.endpoints import Endpoints

__all__ = ["Collector", "Endpoints", "Sources"]
