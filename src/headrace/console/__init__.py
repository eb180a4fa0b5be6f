"""The web console: a separate process, a client of any Kafka broker, headrace's or Apache Kafka.

    serving.py       on sockets, with deadlines        child.py      as a child of ``headrace up``
    gate.py          host, origin, token, policy       app.py        pages behind the gate, ``Console``
    page.py          what a page is made of            pages.py      which pages there are
    sampler.py       one thread that looks at the cluster; history.py and snapshot.py keep what it saw
    pool.py          clients for threads               streams.py    Server-Sent Events made by threads
    watch.py         a second thread: state records of pipelines and captures, queues
    overview.py  alarms.py  topics.py  messages.py     pages, and groups.py  queues.py  captures.py  pipelines.py
    dashboards.py    and what they share: subjects.py, what reports and may be lost; results.py, rows of a topic
    scanning.py  matching.py  message_json.py          reading messages, searching them, showing them
    limits.py        every limit, by name              problems.py   what a browser is shown when something fails
    static/          what the browser loads: plain ES modules and one style sheet, no build step

**How a page is added.**

1. A module here with functions that take an ``Ask`` and give what JSON can hold, and a ``PAGE`` that names them. They
   run on threads, and ``ask.client`` is a client of the broker that they may block with::

       def groups(ask: Ask) -> dict[str, Any]:
           rows = [{"name": each.name} for each in Groups(ask.client).list_all()]
           return listing(ask, rows, search=["name"], sort="name")

       PAGE = Page(name="groups", views=[View(name="groups", answer=groups)], actions=[...])

   A ``View`` is served once at ``/api/groups`` and as a stream of what has changed at ``/live/groups``. An ``Action``
   is a POST, which a read-only console refuses. ``listing`` pages, sorts and filters a table.
   ``ask.console.sampler.snapshot`` and ``ask.console.history`` have what was sampled: figures, and series for charts.
2. Its name in ``pages.py``.
3. A module ``static/pages/groups.js`` that exports ``pages``, a list of ``{path, nav, render}``, and its import
   in ``static/pages.js``. ``render(view, place)`` builds nodes into ``view``: see ``static/pages/topics.js``.
   Texts become nodes with ``h()`` from ``static/lib/dom.js``, never HTML: the policy forbids it.
4. A test in tests/console that opens it with real data, in both themes.
"""
