// What flows, what waits, what is wrong.

import { h, icon, renew } from "../lib/dom.js";
import { chart, rangePicker, sparkline } from "../lib/chart.js";
import { bytes, count, duration, plural, short } from "../lib/format.js";
import { empty } from "../lib/dialog.js";
import { link, stateBadge } from "../lib/subject.js";

export const pages = [{ path: "/", nav: { label: "Overview", icon: "overview" }, render }];

function render(view, place) {
  const alarms = h("div.alarms");
  const tiles = h("div.tiles");
  const flow = chart({ title: "Messages", unit: "messages/s", names: { in: "written", out: "read by groups" }, colours: [0, 1] });
  const lag = chart({ title: "Lag of all groups", unit: "messages", colours: [3], names: { lag: "lag" } });
  const written = chart({ title: "Written to disk", unit: "bytes/s", colours: [2], names: { written: "written" } });
  const disk = chart({ title: "Stored", unit: "bytes", colours: [4], names: { used: "stored" } });
  const busiest = h("div");
  const lagging = h("div");
  const running = h("div");
  view.body.append(alarms, tiles,
    h("div.grid.two", flow.node, lag.node, written.node, disk.node),
    h("section.card.gap", h("header.card-head", h("h3", "Pipelines and captures"), h("a.more", { href: "#/pipelines" }, "All pipelines")), running),
    h("div.grid.two",
      h("section.card", h("header.card-head", h("h3", "Busiest topics"), h("a.more", { href: "#/topics?sort=-rate" }, "All topics")), busiest),
      h("section.card", h("header.card-head", h("h3", "Groups by lag"), h("a.more", { href: "#/groups?sort=-lag" }, "All groups")), lagging)));

  function update(now) {
    view.title("Overview", { actions: [rangePicker(now)], words: ["status"] });
    view.live("overview", { range: now.query.range }, show);
  }

  function show(data) {
    renew(alarms, data.alarms.map(alarm));
    renew(tiles, tilesOf(data));
    flow.update(data.charts.flow);
    lag.update(data.charts.lag);
    written.update(data.charts.bytes);
    disk.update(data.charts.disk);
    renew(busiest, small(data.busiest, [
      ["Topic", (row) => h("a", { href: `#/topics/${encodeURIComponent(row.name)}` }, row.name)],
      ["Messages/s", (row) => short(row.rate), true],
      ["Messages", (row) => short(row.messages), true, "wide-only"],
      ["Size", (row) => bytes(row.size), true],
    ], () => empty("No topics yet", "Producers make them when they write, or you do.", h("a.button", { href: "#/topics" }, "Topics"))));
    renew(running, small(data.running, [
      ["Name", (row) => h("a", { href: link(`${row.kind}s`, row.name) }, row.name)],
      ["Kind", (row) => row.kind, false, "wide-only"],
      ["State", (row) => stateBadge(row.state)],
      ["Rows/s", (row) => short(row.rows_per_s), true],
      ["Behind", (row) => (row.kind === "capture" ? (row.lag_ms === null || row.lag_ms === undefined ? "–" : duration(row.lag_ms / 1000)) : count(row.lag)), true],
    ], () => empty("Nothing runs", "headrace run FILE.py and headrace capture run NAME report here."), { clip: false }));
    renew(lagging, small(data.lagging, [
      ["Group", (row) => h("a", { href: `#/groups/${encodeURIComponent(row.name)}` }, row.name)],
      ["State", (row) => row.state || "–"],
      ["Lag", (row) => count(row.lag), true],
    ], () => empty("No groups yet", "A consumer with a group.id makes one.")));
  }

  update(place);
  return update;
}

function alarm(each) {
  return h(`div.notice.${each.level === "error" ? "error" : "warning"}`, { role: "alert" }, icon("alert"),
    h("div", h("div.notice-text", each.title), h("div.notice-hint", each.text)),
    each.link ? h("a.button.small", { href: `#${each.link}` }, "Show") : null);
}

function tilesOf(data) {
  const series = (name) => data.charts[name].series[0].values;
  const out = data.charts.flow.series[1].values;
  const used = data.disk ? 1 - data.disk.usable / data.disk.total : null;
  const { state, full_in_s: left } = data.forecast;
  const forecast = state === "unknown" ? "" : state === "steady" || left > 365 * 86400 ? ", steady" : `, full in ${duration(left)}`;
  return [
    tile("Written", short(data.in), "messages/s", sparkline(series("flow"), 0), `${plural(data.messages, "message")} stored`),
    tile("Read by groups", short(data.out), "messages/s", sparkline(out, 1), plural(data.groups, "group")),
    tile("To disk", ...rateOf(data.bytes), sparkline(series("bytes"), 2), `${bytes(data.used)} stored`),
    tile("Lag", short(data.lag), "messages", sparkline(series("lag"), 3), data.lag ? "in all groups" : "nobody is behind"),
    used === null ? tile("Topics", count(data.topics), "", null, plural(data.partitions, "partition"))
      : tile("Disk", `${Math.round(used * 100)} %`, "used", meter(used), `${bytes(data.disk.usable)} free${forecast}`),
  ];
}

/** "4.9 MB" and "/s" as a figure with its unit, like those of the other tiles. */
function rateOf(size) {
  const [figure, unit] = bytes(size).split(" ");
  return [figure, `${unit}/s`];
}

function tile(label, figure, unit, picture, note) {
  return h("section.card.tile", h("div.tile-label", label), h("div.tile-figure", figure, h("small", unit)), h("div.tile-picture", picture), h("div.tile-note", note));
}

function meter(share) {
  return h("div.meter", h(`i${share > 0.9 ? ".bad" : share > 0.75 ? ".warn" : ""}`, { style: { width: `${Math.min(100, share * 100)}%` } }));
}

/** A table whose rows are all there. Columns are [title, cell(row), number, class]; `clip`: texts that are too long end in dots. */
export function small(rows, columns, nothing, { clip = true } = {}) {
  if (!rows.length) return nothing();
  const kind = ([, , number, more = ""], otherwise) => `${number ? "number" : otherwise} ${more}`;
  return h("div.table-frame", h("table.table.plain",
    h("thead", h("tr", columns.map((column) => h("th", { class: kind(column, "") }, column[0])))),
    h("tbody", rows.map((row) => h("tr", columns.map((column) => h("td", { class: kind(column, clip ? "clip" : "") }, column[1](row))))))));
}
