// The message browser: pages, live tail, search, columns from JSON, saved filters, export.

import { fill, h, icon } from "../lib/dom.js";
import { get, query } from "../lib/api.js";
import { bytes, count, plural, time, zoned } from "../lib/format.js";
import { dialog, empty, field, toast } from "../lib/dialog.js";
import { at, parsed } from "../lib/json.js";
import { load, save } from "../lib/store.js";
import { detail, preview } from "./message.js";

const ROWS_MAX = 500;
const COUNT = 50;

export function messageBrowser(view, topic) {
  const controls = searchControls();
  const status = h("div.scan-status");
  const rows = h("tbody");
  const head = h("tr");
  const foot = h("div.pager");
  const node = h("div.messages", controls.node, status,
    h("section.card.flush", h("div.table-frame", h("table.table.message-table", h("thead", head), rows)), foot));
  let place = null;
  let columns = load(`columns.${topic}`, []);
  let shown = [];
  let round = 0;

  // ---- what is asked for -------------------------------------------------------------------------------------------

  function asked() {
    const { q, where, regex, ignore_case, partitions, from, to, uncommitted } = place.query;
    return { topic, q, where, regex, ignore_case, partitions, from: from || "", to: to || "", uncommitted };
  }

  function isOldest() {
    return Boolean(place.query.from) && place.query.order !== "newest";
  }

  function update(now) {
    place = now;
    round += 1;
    controls.show(now.query);
    view.clear();
    drawHead();
    fill(status);
    fill(foot);
    if (now.query.live) return tail();
    shown = [];
    if (now.query.q) return search({});
    return page({});
  }

  // ---- pages ---------------------------------------------------------------------------------------------------------

  function page(more) {
    const own = round;
    const order = isOldest() ? "oldest" : "newest";
    if (!shown.length) fill(rows, waiting());
    return view.load(() => get("messages", { ...asked(), order, count: COUNT, ...more }), (found) => {
      shown = [...shown, ...found.messages];
      drawRows(found.why === "time");
      const next = found.why === "time" ? "Look further" : isOldest() ? "Newer messages" : "Older messages";
      fill(foot, h("span.muted", plural(shown.length, "message")),
        found.why === "time" ? h("span.muted.late", `Looking through ${plural(found.looked, "offset")} took too long: compaction or aborted transactions have left few messages.`) : null,
        found.left ? h("button.button.small", { on: { click: () => page({ ranges: found.left }) } }, next) : h("span.muted", "No more messages"));
    }, () => own === round && rows.isConnected, { onFailure: () => fill(rows) });
  }

  // ---- live tail -----------------------------------------------------------------------------------------------------

  function tail() {
    let seen = 0;
    let skipped = 0;
    const told = h("span", "Waiting for messages …");
    const bar = h("div.scan.live", h("i.pulse"), told, h("button.button.small", { on: { click: () => place.change({ live: null }) } }, icon("stop"), "Stop"));
    fill(status, bar);
    shown = [];
    fill(rows, h("tr.no-hover", h("td", { colspan: 9 }, empty("Waiting for messages", "New messages appear here as they are written."))));
    view.stream("tail", asked(), {
      began: () => {
        view.clear();
        bar.dataset.open = "true";
      },
      messages: (found) => {
        seen += found.messages.length;
        skipped += found.skipped;
        told.textContent = `${plural(seen, "message")}${skipped ? `, ${count(skipped)} more than can be shown` : ""}`;
        shown = [...found.messages.reverse(), ...shown].slice(0, ROWS_MAX);
        drawRows();
      },
      problem: (problem) => view.failed(problem),
      lost: () => view.lost(),
    });
  }

  // ---- search --------------------------------------------------------------------------------------------------------

  function search(more) {
    const bar = h("i");
    const told = h("span", "Searching …");
    const stop = h("button.button.small", { on: { click: () => { end(); told.textContent = `Stopped. ${told.textContent}`; stop.remove(); } } }, icon("stop"), "Stop");
    fill(status, h("div.scan", told, stop, h("div.progress", bar)));
    if (!shown.length) fill(rows, waiting());
    const order = isOldest() ? "oldest" : "newest";
    const end = view.stream("search", { ...asked(), order, limit: 100, ...more }, {
      progress: tell,
      matches: (found) => {
        shown = [...shown, ...found];
        shown.sort((one, other) => (order === "newest" ? other.timestamp - one.timestamp : one.timestamp - other.timestamp));
        drawRows();
      },
      problem: (problem) => { end(); fill(status); fill(rows); view.failed(problem); },
      lost: () => {  // asked again, it would begin again and find everything twice
        end();
        told.textContent = `Interrupted. ${told.textContent}`;
        stop.remove();
        view.lost();
      },
      done: (data) => {
        end();
        tell(data);
        stop.remove();
        bar.parentNode.remove();
        if (!shown.length) fill(rows, h("tr.no-hover", h("td", { colspan: 9 }, empty("No message matches", `${plural(data.records, "message")} were searched.`))));
        const why = { matches: "There are more.", records: "The limit of messages is reached.", time: "The time limit is reached." }[data.why];
        if (why && data.left) fill(foot, h("span.muted", why), h("button.button.small", { on: { click: () => search({ ranges: data.left }) } }, "Search further"));
      },
    }, { whileHidden: true });

    function tell(data) {
      bar.style.width = `${data.total ? (100 * data.offsets) / data.total : 100}%`;
      told.textContent = `${plural(data.matches, "match", "matches")} among ${plural(data.records, "message")} (${bytes(data.bytes)}) in ${data.seconds} s`
        + (data.unreadable ? `; ${count(data.unreadable)} could not be decoded` : "");
    }
  }

  // ---- rows ----------------------------------------------------------------------------------------------------------

  function drawHead() {
    fill(head, h("th.time", "Time"), h("th.number.wide-only", "Partition"), h("th.number", "Offset"), h("th", "Key"),
      columns.map((path) => h("th", h("span.row", path.join("."), h("button.icon-button.tiny", { "aria-label": `Remove column ${path.join(".")}`, on: { click: () => drop(path) } }, icon("close"))))),
      h("th.grow", "Value"));
  }

  function drawRows(isLate = false) {
    if (!shown.length) {
      const why = isLate ? empty("No messages yet", "There is more to look through.") : empty("No messages", "There are none in this range. Choose another one, or produce a message.");
      fill(rows, h("tr.no-hover", h("td", { colspan: 9 }, why)));
      return;
    }
    const open = new Set([...rows.querySelectorAll("tr.open")].map((each) => each.dataset.at));
    const details = new Map([...rows.querySelectorAll("tr.detail")].map((each) => [each.dataset.of, each]));
    fill(rows, shown.flatMap((each) => {
      const key = `${each.partition}:${each.offset}`;
      const line = rowOf(each, key);
      if (open.has(key) && details.has(key)) {
        line.classList.add("open");
        details.get(key).cells[0].colSpan = 5 + columns.length;
        return [line, details.get(key)];
      }
      return [line];
    }));
  }

  function rowOf(each, key) {
    const value = columns.length && each.value?.text !== undefined ? parsed(each.value.text) : undefined;
    const line = h("tr.link", { dataset: { at: key }, tabindex: "0", on: { click: toggle, keydown: (event) => { if (event.key === "Enter") toggle(); } } },
      h("td.time.mono", { title: zoned(each.timestamp) }, h("span.date", time(each.timestamp).slice(0, 11)), time(each.timestamp).slice(11)), h("td.number.wide-only", each.partition), h("td.number", count(each.offset)),
      h("td.mono.key", preview(each.key)), columns.map((path) => h("td.mono.key", value === undefined ? "" : at(value, path))),
      h("td.mono.value", preview(each.value)));
    function toggle() {
      if (line.classList.toggle("open")) {
        line.after(h("tr.detail.no-hover", { dataset: { of: key } }, h("td", { colspan: 5 + columns.length }, detail(topic, each, add))));
      } else {
        line.nextElementSibling?.remove();
      }
    }
    return line;
  }

  function add(path) {
    if (columns.some((each) => each.join("\0") === path.join("\0"))) return drop(path);
    setColumns([...columns, path]);
    toast(`${path.join(".")} is a column now`);
  }

  function drop(path) {
    setColumns(columns.filter((each) => each.join("\0") !== path.join("\0")));
  }

  function setColumns(next) {
    columns = next;
    save(`columns.${topic}`, columns);
    drawHead();
    drawRows();
  }

  // ---- controls ------------------------------------------------------------------------------------------------------

  function searchControls() {
    const text = h("input.mono", { type: "search", placeholder: "Search keys, values and headers", "aria-label": "Search messages", spellcheck: "false" });
    const where = h("select", { "aria-label": "Where" }, [["any", "anywhere"], ["key", "in keys"], ["value", "in values"], ["header", "in headers"]].map(([value, label]) => h("option", { value }, label)));
    const regex = h("button.toggle.mono", { type: "button", title: "Regular expression (RE2)", "aria-pressed": "false" }, ".*");
    const cased = h("button.toggle", { type: "button", title: "Ignore case", "aria-pressed": "false" }, "aA");
    for (const each of [regex, cased]) each.addEventListener("click", () => each.setAttribute("aria-pressed", String(each.getAttribute("aria-pressed") !== "true")));
    const start = h("select", { "aria-label": "From" }, [["", "Newest first"], ["beginning", "From the beginning"], ["offset", "From an offset"], ["time", "From a time"]].map(([value, label]) => h("option", { value }, label)));
    const offset = h("input", { type: "number", min: 0, placeholder: "offset", "aria-label": "Offset", hidden: true });
    const moment = h("input", { type: "datetime-local", step: 1, "aria-label": "Time", hidden: true });
    const partition = h("select", { "aria-label": "Partition" }, h("option", { value: "" }, "All partitions"));
    const open = h("input", { type: "checkbox", on: { change: () => go() } });
    const live = h("button.button", { type: "button" }, icon("play"), h("span", "Live"));
    start.addEventListener("change", () => { showFields(); if (start.value === "" || start.value === "beginning") go(); });
    for (const each of [offset, moment, partition]) each.addEventListener("change", () => go());
    live.addEventListener("click", () => place.change({ live: place.query.live ? null : 1 }));
    const form = h("form.toolbar", { on: { submit: (event) => { event.preventDefault(); go(); } } },
      h("div.search-group", h("label.search-box.grow", icon("search"), text), where, cased, regex, h("button.button", { type: "submit" }, "Search")),
      h("div.row.wrap", start, offset, moment, partition, live, filters(), exports(),
        h("label.check", { title: "Also messages of transactions that are open or were aborted" }, open, "Uncommitted")));

    function showFields() {
      offset.hidden = start.value !== "offset";
      moment.hidden = start.value !== "time";
    }

    function go() {
      const from = start.value === "offset" ? offset.value : start.value === "time" ? (moment.value ? `@${new Date(moment.value).getTime()}` : "") : start.value;
      const next = {
        q: text.value || null, where: where.value === "any" ? null : where.value, regex: regex.getAttribute("aria-pressed") === "true" ? 1 : null,
        ignore_case: cased.getAttribute("aria-pressed") === "true" ? 1 : null, from: from || null, partitions: partition.value || null,
        uncommitted: open.checked ? 1 : null,
      };
      const same = Object.entries(next).every(([name, value]) => String(place.query[name] ?? "") === String(value ?? ""));
      if (!same) return place.change(next);
      view.restart();
      update(place);
    }

    function show(given) {
      text.value = given.q || "";
      where.value = given.where || "any";
      regex.setAttribute("aria-pressed", String(Boolean(given.regex)));
      cased.setAttribute("aria-pressed", String(Boolean(given.ignore_case)));
      const from = given.from || "";
      start.value = from === "" || from === "beginning" ? from : from.startsWith("@") ? "time" : "offset";
      if (start.value === "offset") offset.value = from;
      if (start.value === "time") moment.value = localTime(Number(from.slice(1)));
      if (given.partitions && ![...partition.options].some((each) => each.value === given.partitions)) partition.append(h("option", { value: given.partitions }, `Partition ${given.partitions}`));
      partition.value = given.partitions || "";
      open.checked = Boolean(given.uncommitted);
      live.classList.toggle("active", Boolean(given.live));
      showFields();
    }

    return { node: form, show, partition };
  }

  function filters() {
    const list = h("div.menu-list");
    const node = h("details.menu", { on: { toggle: () => { if (node.open) draw(); } } }, h("summary.button", icon("star"), h("span", "Filters")), list);
    function draw() {
      const saved = load(`filters.${topic}`, []);
      fill(list, saved.length ? saved.map((each) => h("div.menu-row",
        h("button", { on: { click: () => { node.open = false; setColumns(each.columns || []); place.change({ q: null, where: null, regex: null, ignore_case: null, from: null, partitions: null, live: null, ...each.query }); } } }, each.name),
        h("button.icon-button", { "aria-label": `Delete filter ${each.name}`, on: { click: () => { save(`filters.${topic}`, saved.filter((other) => other !== each)); draw(); } } }, icon("close")))) : h("div.menu-note", "No saved filters for this topic."),
      h("button", { on: { click: () => { node.open = false; saveFilter(saved); } } }, icon("plus"), "Save what is shown now"));
    }
    return node;
  }

  function saveFilter(saved) {
    const name = h("input", { required: true, autofocus: true, value: place.query.q || "" });
    dialog({
      title: "Save filter", label: "Save", body: field("Name", name, "Kept in this browser: search, place, partition and columns."),
      submit: () => {
        const { tab, live, ...kept } = place.query;
        save(`filters.${topic}`, [...saved.filter((each) => each.name !== name.value), { name: name.value, query: kept, columns }]);
        toast("The filter is saved");
      },
    });
  }

  function exports() {
    const node = h("details.menu", h("summary.button", icon("download"), h("span", "Export")), h("div.menu-list",
      ["jsonl", "csv"].map((format) => h("button", { on: { click: () => { node.open = false; download(format); } } }, format === "csv" ? "CSV" : "JSON lines")),
      h("div.menu-note", "What the search and the place select, oldest first, up to a million messages.")));
    return node;
  }

  function download(format) {
    h("a", { href: `/api/export${query({ ...asked(), format, order: "oldest" })}`, download: "" }).click();
  }

  function waiting() {
    return Array.from({ length: 6 }, () => h("tr.no-hover.skeleton", h("td", { colspan: 9 }, h("i"))));
  }

  return {
    node,
    update,
    partitions(total) {
      const chosen = place?.query.partitions || "";
      fill(controls.partition, h("option", { value: "" }, "All partitions"), Array.from({ length: total }, (_, index) => h("option", { value: String(index) }, `Partition ${index}`)));
      controls.partition.value = chosen;
    },
    words() {
      const { from, partitions, live, uncommitted } = place.query;
      const start = live ? "end" : from === "beginning" ? "beginning" : from || `-${COUNT}`;
      return ["consume", topic, "--offset", start, ...(partitions ? ["--partition", partitions] : []), ...(uncommitted ? ["--isolation", "uncommitted"] : []), ...(live ? [] : ["--exit"])];
    },
  };
}

function localTime(ms) {
  const moment = new Date(ms);
  if (Number.isNaN(moment.getTime())) return "";
  return new Date(ms - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

