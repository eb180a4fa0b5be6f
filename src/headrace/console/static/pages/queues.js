// Queues: what waits in them, how messages get there, and dead letters on their way back.

import { breakable, fill, h, icon } from "../lib/dom.js";
import { get, post } from "../lib/api.js";
import { chart, rangePicker } from "../lib/chart.js";
import { ago, bytes, count, plural, short } from "../lib/format.js";
import { dialog, empty, field, notice, toast } from "../lib/dialog.js";
import { graph } from "../lib/graph.js";
import { parsed, pretty } from "../lib/json.js";
import { following, link, stateBadge } from "../lib/subject.js";
import { searchBox, table } from "../lib/table.js";
import { session } from "../lib/session.js";
import { small } from "./overview.js";

export const pages = [
  { path: "/queues", nav: { label: "Queues", icon: "queues" }, render: renderList },
  { path: "/queues/:name", render: renderQueue },
];

const COLUMNS = [
  { name: "name", title: "Queue", class: "grow", cell: (row) => h("span.row", h("a.strong.name", { href: link("queues", row.name), title: row.name }, breakable(row.name)), row.flags.map((flag) => h("span.badge", flag)), row.error ? h("span.badge.bad", { title: row.error }, "cannot be served") : null) },
  { name: "ready", title: "Ready", number: true, cell: (row) => count(row.ready) },
  { name: "unacknowledged", title: "Unacked", number: true, cell: (row) => count(row.unacknowledged) },
  { name: "consumers", title: "Consumers", number: true, class: "wide-only", cell: (row) => count(row.consumers) },
  { name: "published_per_s", title: "In/s", number: true, cell: (row) => rate(row.published_per_s) },
  { name: "delivered_per_s", title: "Out/s", number: true, cell: (row) => rate(row.delivered_per_s) },
  { name: "bytes", title: "Size", number: true, class: "wide-only", cell: (row) => bytes(row.bytes) },
];

function rate(value) {
  return value ? short(value) : h("span.muted", "0");
}

function renderList(view, place) {
  const list = table({
    columns: COLUMNS, place,
    onRow: (row) => { location.hash = link("queues", row.name); },
    nothing: () => (place.query.q ? empty("No queue has that name", `Nothing matches “${place.query.q}”.`)
      : empty("No queues yet", "An AMQP client makes one when it declares it, or: headrace queue create NAME")),
  });
  const toolbar = h("div.toolbar", searchBox(following(place), "Filter queues"));
  const card = h("section.card.flush", list.node);
  const without = h("div");
  view.body.append(toolbar, card, without);
  function update(now) {
    Object.assign(place, now);
    view.title("Queues", { words: ["queue", "list"] });
    view.live("queues", now.query, (data) => {
      const missing = Boolean(data.unavailable);
      toolbar.hidden = card.hidden = missing;
      fill(without, missing ? empty("This broker has no queues", "Queues are a part of headrace's own broker, for AMQP 0-9-1 clients. Apache Kafka has none.") : null);
      if (!missing) list.update(data);
    });
  }
  update(place);
  return update;
}

function renderQueue(view, place) {
  const name = place.params.name;
  const note = h("span.figures");
  const held = chart({ title: "Messages", unit: "messages", names: { ready: "ready", unacknowledged: "unacknowledged" }, colours: [0, 3] });
  const rates = chart({ title: "Rates", unit: "messages/s", names: { published: "in", delivered: "out" }, colours: [1, 2] });
  const routes = h("div");
  const facts = h("div");
  const messages = messageList(view, name);
  view.body.append(h("div.grid.two", held.node, rates.node),
    h("section.card.flush", h("header.card-head", h("h3", "How messages get here")), routes, facts), messages.node);
  let drawn = "";

  function update(now) {
    Object.assign(place, now);
    view.title(name, {
      trail: [["Queues", "#/queues"]], note, words: ["queue", "describe", name],
      actions: [rangePicker(now), session.read_only ? null : h("button.button.danger", { on: { click: () => purgeDialog(name) } }, icon("trash"), h("span", "Purge"))],
    });
    view.live("queue", { name, range: now.query.range }, show);
  }

  function show(data) {
    fill(note, h("span", `${count(data.ready)} ready`), h("span", `${count(data.unacknowledged)} unacknowledged`), h("span", plural(data.consumers, "consumer")), h("span.muted", bytes(data.bytes)));
    held.update(data.charts.held);
    rates.update(data.charts.rates);
    const now = JSON.stringify([data.routes, data.arguments]);
    if (now !== drawn) {
      drawn = now;
      fill(routes, drawRoutes(name, data));
      const given = Object.entries(data.arguments);
      fill(facts, given.length ? h("div.chips", given.map(([key, value]) => h("span.chip", h("b", key), " ", typeof value === "object" ? JSON.stringify(value) : String(value)))) : null);
    }
    messages.counts(data);
  }

  messages.load();
  update(place);
  return update;
}

/** Exchanges on the left, the queue on the right; the default exchange reaches every queue by its name. */
function drawRoutes(name, data) {
  const bound = data.routes.links.filter((each) => each.source !== "");
  const exchanges = data.routes.exchanges.filter((each) => each.name !== "");
  const nodes = [
    { id: "x:", kind: "source", title: "(default exchange)", lines: ["to every queue by name"] },
    ...exchanges.map((each) => ({ id: `x:${each.name}`, kind: "source", title: each.name, lines: [`${each.kind} exchange`] })),
    { id: "q", kind: "sink", title: name, lines: [`${count(data.ready)} ready`] },
  ];
  const links = [
    { from: "x:", to: "q", label: clip(name) },
    ...bindings(bound).map(([from, to, keys]) => ({ from: `x:${from}`, to, label: keys.length > 1 ? `${keys.length} bindings` : clip(keys[0]), tip: keys.join("\n") })),
  ];
  return graph({ nodes, links, label: `Bindings of ${name}` });
}

/** Bindings between the same two are one link: their labels would hide each other. */
function bindings(bound) {
  const found = new Map();
  for (const each of bound) {
    const to = each.to_exchange ? `x:${each.destination}` : "q";
    const way = JSON.stringify([each.source, to]);
    if (!found.has(way)) found.set(way, [each.source, to, []]);
    found.get(way)[2].push(each.key || (Object.keys(each.arguments).length ? "headers" : ""));
  }
  return [...found.values()];
}

function clip(text) {
  return text.length > 13 ? `${text.slice(0, 12)}…` : text;
}

// ---- messages -----------------------------------------------------------------------------------------------------------

function messageList(view, name) {
  const chosen = new Map();
  const list = h("div.messages");
  const bar = h("div.row.bulk");
  const search = h("input", { type: "search", placeholder: "Filter by body, key or header", "aria-label": "Filter messages", on: { keydown: (event) => { if (event.key === "Enter") load(); } } });
  const status = h("span.muted");
  const node = h("section.card.flush",
    h("header.card-head", h("h3", "Messages"), h("span.muted", "peeked at, not consumed"), h("span.results-pick", view.copyButton(["queue", "peek", name]))),
    h("div.toolbar", h("label.search-box", icon("search"), search), h("button.button", { on: { click: load } }, "Refresh"), status), bar, list);
  let rows = [];
  let filtered = false;
  let ready = null;

  async function load() {
    status.textContent = "Reading …";
    try {
      const wanted = search.value;
      const found = await get("queue/messages", { name, q: wanted, count: 100 });
      rows = found.messages;
      filtered = wanted !== "";
      chosen.clear();
      status.textContent = `${plural(rows.length, "message")} of ${count(found.looked)} read`;
      draw();
    } catch (error) {
      status.textContent = "";
      fill(list, notice("error", error.message, error.hint));
    }
  }

  /** Look again when the number of messages changes while nothing is chosen. */
  function counts(data) {
    const now = `${data.ready}/${data.unacknowledged}`;
    if (ready !== null && ready !== now && !chosen.size && !document.querySelector("dialog[open]") && !list.querySelector("details[open]")) load();
    ready = now;
  }

  const mark = (row) => `${row.lane}/${row.offset}`;

  function draw() {
    fill(list, rows.length ? rows.map(messageRow) : empty("No messages", search.value ? "None of the messages that were read matches." : "The queue is empty."));
    drawBar();
  }

  function drawBar() {
    const dead = rows.filter((row) => row.died && row.state === "ready");
    fill(bar, session.read_only ? null : [
      chosen.size ? h("b", `${plural(chosen.size, "message")} chosen`) : null,
      chosen.size && [...chosen.values()].every((row) => row.died) ? h("button.button.primary.small", { on: { click: () => redrive([...chosen.values()]) } }, "Redrive chosen") : null,
      chosen.size ? h("button.button.danger.small", { on: { click: () => drop([...chosen.values()]) } }, "Remove chosen") : null,
      dead.length && filtered ? h("button.button.small.redrive-shown", { on: { click: () => redrive(dead) } }, `Redrive the ${dead.length} shown`) : null,
      dead.length && !filtered ? h("button.button.small.redrive-all", { on: { click: redriveAll } }, "Redrive all dead letters") : null,
    ]);
  }

  function messageRow(row) {
    const box = h("input", { type: "checkbox", "aria-label": `Choose message ${row.offset}`, disabled: row.state !== "ready" || session.read_only, on: { change: () => { box.checked ? chosen.set(mark(row), row) : chosen.delete(mark(row)); drawBar(); } } });
    const text = row.is_text ? row.body : `${row.body} (base64)`;
    const isJson = row.is_text && parsed(row.body) !== undefined;
    return h("details.queue-message", h("summary", h("span.message-box", box), h("span.number.muted", `#${row.offset}`), stateBadge(row.state),
      row.died ? h("span.badge.bad", `${row.died.reason} in ${row.died.queue}`) : null,
      h("span.muted", row.exchange ? `${row.exchange} → ${row.key}` : row.key), h("code.clip.grow", text.slice(0, 200)), h("span.muted.message-age", row.enqueued_ms ? ago(row.enqueued_ms) : ""), h("span.muted", bytes(row.bytes))),
    h("div.queue-message-open", h("pre.code", isJson ? pretty(row.body) : text), row.bytes > 4096 ? h("p.muted", "Only the first 4 kB are shown.") : null,
      Object.keys(row.properties).length ? h("pre.code", pretty(JSON.stringify(row.properties))) : null,
      row.died && row.state === "ready" && !session.read_only ? h("button.button.small", { on: { click: () => redrive([row]) } }, `Redrive to ${row.died.queue}`) : null));
  }

  function redrive(some) {
    ask(`Redrive ${plural(some.length, "message")}?`, "They go back to the queues they came from, and leave this one.", "Redrive", false,
      () => post("queue/redrive", { name, messages: some.map((row) => [row.lane, row.offset]) }), "redriven");
  }
  function redriveAll() {
    ask("Redrive all dead letters?", `Every ready message of ${name} that is a dead letter goes back to the queue it came from, also those not shown here.`, "Redrive all", false,
      () => post("queue/redrive", { name, messages: "dead" }), "redriven");
  }
  function drop(some) {
    ask(`Remove ${plural(some.length, "message")}?`, "They are acknowledged without being handled. Until retention ends they can be brought back: headrace queue restore.", "Remove", true,
      () => post("queue/drop", { name, messages: some.map((row) => [row.lane, row.offset]) }), "removed");
  }
  function ask(title, text, label, danger, act, verb) {
    dialog({
      title, label, danger, body: h("p", text),
      submit: async () => {
        const done = await act();
        const left = done.not_ready + done.unroutable + done.refused;
        toast(`${plural(done.moved, "message")} ${verb}${left ? `; ${count(left)} stayed (${[done.not_ready && "taken meanwhile", done.unroutable && "no queue to go to", done.refused && "refused by a full queue"].filter(Boolean).join(", ")})` : ""}`, left ? "warning" : "ok");
        await load();
      },
    });
  }

  return { node, load, counts };
}

function purgeDialog(name) {
  const confirm = h("input", { autofocus: true, spellcheck: "false", name: "confirm" });
  dialog({
    title: `Purge ${name}?`, label: "Purge", danger: true,
    body: [h("p", "All messages that are ready are removed. Those that consumers hold stay."), field(`Write ${name} to confirm`, confirm)],
    submit: async () => {
      if (confirm.value !== name) throw new Error(`Write ${name} to confirm.`);
      const done = await post("queue/purge", { name, confirm: confirm.value });
      toast(`${plural(done.purged, "message")} removed`);
    },
  });
}
