// Pipelines: the graph with rows per second on its links, batches by phase, watermark, state, errors, results.

import { breakable, fill, h } from "../lib/dom.js";
import { get } from "../lib/api.js";
import { chart, rangePicker } from "../lib/chart.js";
import { ago, bytes, count, duration, short, time } from "../lib/format.js";
import { empty, notice } from "../lib/dialog.js";
import { graph } from "../lib/graph.js";
import { durationTicksOf, plot } from "../lib/plot.js";
import { figure, following, forgetButton, lifeLine, link, stateBadge, troubles } from "../lib/subject.js";
import { searchBox, table } from "../lib/table.js";
import { small } from "./overview.js";

export const pages = [
  { path: "/pipelines", nav: { label: "Pipelines", icon: "pipelines" }, render: renderList },
  { path: "/pipelines/:name", render: renderPipeline },
];

const PHASES = {
  latestOffset: "ask for offsets", queryPlanning: "plan", walCommit: "write the plan down", getBatch: "get the batch",
  addBatch: "compute and write", commitOffsets: "commit",
};
const RESULTS_S = 3;
const SHOWN = 20;

function behind(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = (Date.now() - ms) / 1000;
  return seconds < 0 ? "ahead" : duration(Math.round(seconds * 10) / 10);
}

const COLUMNS = [
  { name: "name", title: "Pipeline", class: "grow", cell: (row) => [h("a.strong", { href: link("pipelines", row.name) }, breakable(row.name)), row.error ? h("div.muted.narrow-text", row.error) : null] },
  { name: "state", title: "State", cell: (row) => h("span.row", stateBadge(row.state), row.restarts ? h("span.badge.warn.wide-only", `${count(row.restarts)} restarts`) : null) },
  { name: "rows_per_s", title: "Rows/s", number: true, cell: (row) => short(row.rows_per_s) },
  { name: "lag", title: "Lag", number: true, cell: (row) => count(row.lag) },
  { name: "batch_ms", title: "Batch", number: true, class: "wide-only", cell: (row) => (row.batch_ms === null ? "–" : duration(row.batch_ms / 1000)) },
  { name: "watermark_ms", title: "Watermark behind", number: true, class: "wide-only", cell: (row) => (row.alive ? behind(row.watermark_ms) : "–") },
  { name: "late_rows", title: "Late rows", number: true, class: "wide-only", cell: (row) => count(row.late_rows) },
];

function renderList(view, place) {
  const list = table({
    columns: COLUMNS, place,
    onRow: (row) => { location.hash = link("pipelines", row.name); },
    nothing: () => (place.query.q ? empty("No pipeline has that name", `Nothing matches “${place.query.q}”.`)
      : empty("No pipeline has reported", "headrace run FILE.py runs the pipelines of a file and reports here.")),
  });
  view.body.append(h("div.toolbar", searchBox(following(place), "Filter pipelines")), h("section.card.flush", list.node));
  function update(now) {
    Object.assign(place, now);
    view.title("Pipelines", { words: ["status"] });
    view.live("pipelines", now.query, list.update);
  }
  update(place);
  return update;
}

function renderPipeline(view, place) {
  const name = place.params.name;
  const note = h("span.figures");
  const trouble = h("div");
  const tiles = h("div.tiles");
  const drawing = h("div");
  const phases = plot({ title: "Batch time by phase", kind: "stack", height: 190, format: (ms) => duration(ms / 1000), names: PHASES, nothing: "No batch yet", cut: true, ticks: durationTicksOf });
  const rows = chart({ title: "Rows read", unit: "messages/s", colours: [0] });
  const lag = chart({ title: "Lag", unit: "messages", colours: [3], names: { lag: "lag" } });
  const watermark = h("div.watermark");
  const operators = h("div");
  const found = results(view, name);
  view.body.append(trouble, tiles,
    h("section.card", h("header.card-head", h("h3", "Graph"), h("span.muted", "rows per second on the links")), drawing),
    h("div.grid.two", phases.node, rows.node, lag.node, h("section.card", h("header.card-head", h("h3", "Watermark")), watermark)),
    h("section.card.flush.gap", h("header.card-head", h("h3", "State by operator")), operators), found.node);
  let shown = null;

  function update(now) {
    Object.assign(place, now);
    head(now, shown);
    view.live("pipeline", { name, range: now.query.range }, (data) => show(now, data));
  }
  function head(now, data) {
    const words = data?.command ? commandWords(data) : ["consume", "__headrace_state", "-o", "beginning", "-e"];
    view.title(name, { trail: [["Pipelines", "#/pipelines"]], note, words, actions: [rangePicker(now), data ? forgetButton("pipeline", data, "#/pipelines") : null] });
  }
  function show(now, data) {
    if (!shown || shown.alive !== data.alive || shown.command !== data.command) head(now, data);
    shown = data;
    fill(note, lifeLine(data), data.origin ? h("span.muted.clip", { title: data.origin }, data.origin.split("/").at(-1)) : null);
    fill(trouble, troubles(data), data.last_error && data.last_error !== data.error ? notice("info", `Last error, ${ago(data.last_error_ms)}: ${data.last_error}`, `${count(data.restarts)} restarts since it began`) : null);
    fill(tiles,
      figure("Rows", short(data.rows_per_s), "/s", `${count(data.rows)} in all`),
      figure("Lag", data.lag === null ? "–" : short(data.lag), "", "records not yet read"),
      figure("Batch", data.batch_ms === null ? "–" : duration(data.batch_ms / 1000), "", data.batch === null ? "none yet" : `number ${count(data.batch)}`),
      figure("Late rows", count(data.late_rows), "", "behind the watermark"),
      figure("Dead letters", count(data.dead_letters), "", data.dead_letters_topic ? h("a", { href: link("topics", data.dead_letters_topic) }, data.dead_letters_topic) : "no topic is set for them"));
    fill(drawing, drawGraph(data));
    phases.update(phaseLines(data.batches));
    rows.update(data.charts.rows, { over: !data.alive });
    lag.update(data.charts.lag, { over: !data.alive });
    fill(watermark, watermarkOf(data));
    fill(operators, small(data.graph.nodes.filter((node) => node.state !== null && node.state !== undefined), operatorColumns(data), () => empty("No state", "No operator of this pipeline keeps state."), { clip: false }));
    found.of(data);
  }
  update(place);
  return update;
}

function commandWords(data) {
  return [...data.command.split(" ").filter((word) => word !== "headrace"), "--only", data.name];
}

// ---- graph ----------------------------------------------------------------------------------------------------------------

function drawGraph(data) {
  const { nodes = [], edges = [] } = data.graph;
  if (!nodes.length) return empty("No graph", "A bounded pipeline has none, and one that starts has not reported yet.");
  const facts = (id) => (data.alive ? data.nodes[id] || {} : {});
  const inputs = new Map();
  for (const [, to] of edges) inputs.set(to, (inputs.get(to) || 0) + 1);
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const rate = ([from, to]) => {
    const value = byId.get(from)?.kind === "source" ? facts(from).rows_per_s : inputs.get(to) === 1 ? facts(to).rows_per_s : null;
    return value === undefined ? null : value;
  };
  const most = Math.max(1, ...edges.map((edge) => rate(edge) || 0));
  return graph({
    label: `Graph of ${data.name}`,
    nodes: nodes.map((node) => ({ id: node.id, kind: node.kind, title: node.title, lines: lines(node, facts(node.id)), link: node.topics?.length ? link("topics", node.topics[0]) : null, tip: (node.parameters || []).filter(([, value]) => !UNSET.has(value)).map(([key, value]) => `${key}: ${value}`) })),
    links: edges.map((edge) => ({ from: edge[0], to: edge[1], label: rate(edge) === null ? "" : `${short(rate(edge))}/s`, strength: (rate(edge) || 0) / most })),
  });
}

function lines(node, facts) {
  if (node.kind === "source") return [node.text === "headrace" ? "topic" : node.text, facts.lag === null || facts.lag === undefined ? "" : `lag ${short(facts.lag)}`];
  if (node.kind === "sink") return [node.topics?.length ? "exactly once" : ""];
  const held = [facts.held === null || facts.held === undefined ? "" : `${short(facts.held)} held`, facts.held_bytes ? bytes(facts.held_bytes) : ""].filter(Boolean).join(", ");
  return [node.text, held];
}

/** Parameters that say that something is not used. */
const UNSET = new Set(["", "False", "None", "[]", "{}", "()"]);

function operatorColumns(data) {
  const of = (node) => data.nodes[node.id] || {};
  return [
    ["Operator", (node) => h("span", h("span.strong", node.title), node.text ? h("div.muted.narrow-text", node.text) : null)],
    ["Rows held", (node) => count(of(node).held), true],
    ["Size", (node) => bytes(of(node).held_bytes), true],
    ["Updated in last batch", (node) => count(of(node).updated), true],
    ["Late in last batch", (node) => count((of(node).dropped || 0) + (of(node).late_rows || 0)), true],
    ["Parameters", (node) => h("span.chips", (node.parameters || []).filter(([, value]) => !UNSET.has(value)).map(([key, value]) => h("span.chip", { title: value }, h("b", key), " ", value.length > 40 ? `${value.slice(0, 39)}…` : value)))],
  ];
}

function phaseLines(batches) {
  const names = Object.keys(PHASES).filter((phase) => batches.some((batch) => batch.phases?.[phase]));
  const lines = names.map((phase) => ({ name: phase, points: batches.map((batch) => [String(batch.id), batch.phases?.[phase] || 0]) }));
  return { x_kind: "text", lines };
}

function watermarkOf(data) {
  if (data.watermark_ms === null) return h("p.muted", "There is none: no source has event time, or no row has come.");
  const [first, ...rest] = data.watermark_text.split("\n");
  return [h("p", h("b", time(data.watermark_ms).slice(0, 19)), h("span.muted", ` ${data.alive ? `${behind(data.watermark_ms)} behind the clock` : ""}`)),
    rest.length ? rest.map((line) => h("p", line)) : h("p.muted", first)];
}

// ---- results --------------------------------------------------------------------------------------------------------------

function results(view, name) {
  const title = h("h3", "Results");
  const where = h("span.muted");
  const picker = h("span.row.results-pick");
  const body = h("div");
  const node = h("section.card.flush.gap", h("header.card-head", title, where, picker), body);
  let topic = null;
  let timer = null;
  let as = "table";
  let picture = null;
  view.onLeave(() => clearInterval(timer));

  function of(data) {
    if (data.results_topic === topic) return;
    topic = data.results_topic;
    clearInterval(timer);
    if (!topic) {
      fill(body, empty("No topic", "Its rows go to another system, which has them; the graph says which."));
      return;
    }
    fill(where, "newest rows of ", h("a", { href: link("topics", topic) }, topic));
    load();
    timer = setInterval(() => { if (!document.hidden) load(); }, RESULTS_S * 1000);
  }
  async function load() {
    try {
      draw(await get("pipeline/results", { name, count: 200 }));
    } catch (error) {
      fill(body, notice("error", error.message, error.hint));
    }
  }
  function draw(data) {
    const columns = data.columns.map((column, index) => ({ column, index }));
    const numbers = columns.filter(({ index }) => data.rows.some((row) => typeof row.values[index] === "number" || numeric(row.values[index])) && data.rows.every((row) => row.values[index] === null || typeof row.values[index] === "number" || numeric(row.values[index])));
    const times = columns.filter(({ index }) => data.rows.length && data.rows.every((row) => isTime(row.values[index])));
    fill(picker, numbers.length ? ["table", "chart"].map((kind) => h("button.button.small", { class: as === kind ? "active" : "", on: { click: () => { as = kind; draw(data); } } }, kind === "table" ? "Table" : "Chart")) : null);
    if (as === "chart" && numbers.length) return drawChart(data, numbers, times[0]);
    picture = null;
    fill(body, small(data.rows.slice(0, SHOWN), [
      ...columns.map(({ column, index }) => [column, (row) => cellText(row.values[index]), numbers.some((each) => each.index === index)]),
      ["Written", (row) => h("span.muted", time(row.timestamp_ms).slice(11, 19)), true],
    ], () => empty("No rows yet", "The topic has no rows."), { clip: false }),
    data.unreadable ? h("p.muted.pad", `${count(data.unreadable)} records are no JSON objects and are not shown.`) : null);
  }
  function drawChart(data, numbers, at) {
    const lines = numbers.filter(({ index }) => index !== at?.index).slice(0, 6).map(({ column, index }) => ({
      name: column, points: data.rows.map((row) => [at ? Date.parse(row.values[at.index]) : row.timestamp_ms, Number(row.values[index])]).filter(([, y]) => Number.isFinite(y)).reverse(),
    }));
    if (!picture) {
      picture = plot({ kind: "line", bare: true, height: 260 });
      fill(body, h("div.pad", picture.node));
    }
    picture.update({ x_kind: "time", lines });
  }
  return { node, of };
}

export function numeric(value) {
  return typeof value === "string" && /^-?\d+(\.\d+)?$/.test(value) && value.length < 16;
}

export function isTime(value) {
  return typeof value === "string" && /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d/.test(value) && !Number.isNaN(Date.parse(value));
}

export function cellText(value) {
  if (value === null || value === undefined) return h("span.muted", "null");
  if (typeof value === "object") return h("code.cell-json", JSON.stringify(value));
  if (isTime(value)) return h("span.nowrap", value.replace("T", " ").replace(/\.000(Z|$)/, "$1"));
  const text = String(value);
  return text.length > 200 ? `${text.slice(0, 199)}…` : text;
}
