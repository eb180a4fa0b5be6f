// Captures: how far their snapshots and positions are, how far behind, and what is wrong.

import { breakable, fill, h } from "../lib/dom.js";
import { chart, rangePicker } from "../lib/chart.js";
import { bytes, count, duration, plural, short } from "../lib/format.js";
import { empty, notice } from "../lib/dialog.js";
import { figure, following, forgetButton, lifeLine, link, stateBadge, troubles } from "../lib/subject.js";
import { searchBox, table } from "../lib/table.js";
import { small } from "./overview.js";

export const pages = [
  { path: "/captures", nav: { label: "Captures", icon: "captures" }, render: renderList },
  { path: "/captures/:name", render: renderCapture },
];

const seconds = (ms) => (ms === null || ms === undefined ? "–" : duration(ms / 1000));

const COLUMNS = [
  { name: "name", title: "Capture", class: "grow", cell: (row) => [h("a.strong", { href: link("captures", row.name) }, breakable(row.name)), row.error ? h("div.muted.narrow-text", row.error) : null] },
  { name: "state", title: "State", cell: (row) => stateBadge(row.state) },
  { name: "database", title: "Database", class: "wide-only", cell: (row) => h("span.muted", row.database) },
  { name: "tables_done", title: "Snapshot", cell: (row) => (!row.tables ? h("span.muted", "not begun") : row.tables_done === row.tables ? "done" : `${row.tables_done} of ${row.tables} tables`) },
  { name: "lag_ms", title: "Lag", number: true, cell: (row) => (row.alive ? seconds(row.lag_ms) : "–") },
  { name: "lag_bytes", title: "Behind", number: true, class: "wide-only", cell: (row) => (row.alive ? bytes(row.lag_bytes) : "–") },
  { name: "retained_bytes", title: "Slot", number: true, class: "wide-only", cell: (row) => bytes(row.retained_bytes) },
  { name: "events", title: "Events", number: true, class: "wide-only", cell: (row) => count(row.events) },
];

function renderList(view, place) {
  const list = table({
    columns: COLUMNS, place,
    onRow: (row) => { location.hash = link("captures", row.name); },
    nothing: () => (place.query.q ? empty("No capture has that name", `Nothing matches “${place.query.q}”.`)
      : empty("No capture has reported", "headrace capture run NAME postgresql://… follows a database and reports here.")),
  });
  view.body.append(h("div.toolbar", searchBox(following(place), "Filter captures")), h("section.card.flush", list.node));
  function update(now) {
    Object.assign(place, now);
    view.title("Captures", { words: ["capture", "status"] });
    view.live("captures", now.query, list.update);
  }
  update(place);
  return update;
}

function renderCapture(view, place) {
  const name = place.params.name;
  const note = h("span.figures");
  const trouble = h("div");
  const tiles = h("div.tiles");
  const lag = chart({ title: "Lag", unit: "ms", colours: [3], names: { lag: "lag" } });
  const sizes = chart({ title: "Behind, and kept by the database", unit: "bytes", colours: [0, 4], names: { behind: "behind", retained: "kept" } });
  const events = chart({ title: "Events", unit: "messages/s", colours: [1], names: { events: "events" } });
  const tables = h("div");
  view.body.append(trouble, tiles, h("div.grid.two.three", lag.node, sizes.node, events.node),
    h("section.card.flush", h("header.card-head", h("h3", "Tables")), tables));

  function update(now) {
    Object.assign(place, now);
    head(now, null);
    view.live("capture", { name, range: now.query.range }, (data) => show(now, data));
  }
  function head(now, data) {
    view.title(name, { trail: [["Captures", "#/captures"]], note, words: ["capture", "status", name], actions: [rangePicker(now), data ? forgetButton("capture", data, "#/captures") : null] });
  }
  let forgettable = null;
  function show(now, data) {
    const counts = data.lag_bytes !== null || data.retained_bytes !== null || data.charts.bytes.series.some((each) => each.values.some((value) => value !== null));
    sizes.node.hidden = !counts;  // a database without a log that is read from, such as SQLite, has no such bytes
    if (forgettable !== data.alive) head(now, data);
    forgettable = data.alive;
    fill(note, lifeLine(data));
    fill(trouble, troubles(data), data.alive && data.health && data.health !== "ok" ? notice("warning", data.health, data.advice) : null);
    fill(tiles,
      figure("Lag", data.alive ? seconds(data.lag_ms) : "–", "", !data.alive ? "not known: it does not run" : data.lag_bytes === null ? "behind the database" : `${bytes(data.lag_bytes)} behind`),
      data.kind === "postgresql" ? figure("Slot", bytes(data.retained_bytes), "", "kept by the database") : figure("Slot", "none", "", "only PostgreSQL has slots"),
      figure("Snapshot", data.tables ? `${data.tables_done} of ${data.tables}` : "–", data.tables ? " tables" : "", `${short(data.rows)} rows read`),
      figure("Events", short(data.events), "", `${plural(data.transactions, "commit")}, ${plural(data.sessions, "session")}`),
      figure("Position", h("span.position", { title: data.position }, data.position || "–"), "", data.database));
    lag.update(data.charts.lag, { over: !data.alive });
    sizes.update(data.charts.bytes, { over: !data.alive });
    events.update(data.charts.events, { over: !data.alive });
    fill(tables, small(data.table_rows, [
      ["Table", (row) => h("a", { href: link("topics", row.topic) }, row.table)],
      ["Snapshot", snapshot],
      ["Rows", (row) => count(row.rows), true],
      ["Rows/s", (row) => (row.rows_per_s ? short(row.rows_per_s) : ""), true],
      ["Dead letters", (row) => (row.dead_letters ? h("b", count(row.dead_letters)) : "0"), true],
    ], () => empty("No tables yet", "The snapshot has not begun.")));
  }
  update(place);
  return update;
}

function snapshot(row) {
  if (row.done) return h("span.badge.good", "done");
  const share = row.expected ? Math.min(1, row.rows / row.expected) : 0;
  const left = row.rows_per_s ? `, ${duration(Math.max(0, row.expected - row.rows) / row.rows_per_s)} left` : "";
  return h("span.row", h("span.meter.inline", h("i", { style: { width: `${share * 100}%` } })), h("span.muted", row.expected ? `${Math.round(share * 100)} % of about ${short(row.expected)}${left}` : "reading"));
}
