// Dashboards: every chart that hr.dashboard defined, live.

import { fill, h } from "../lib/dom.js";
import { get } from "../lib/api.js";
import { sparkline } from "../lib/chart.js";
import { count, plural, short } from "../lib/format.js";
import { empty, notice } from "../lib/dialog.js";
import { plot } from "../lib/plot.js";
import { link } from "../lib/subject.js";
import { small } from "./overview.js";
import { cellText, numeric } from "./pipelines.js";

export const pages = [{ path: "/dashboards", nav: { label: "Dashboards", icon: "dashboards" }, render }];

const TABLE_ROWS = 12;

function render(view, place) {
  const grid = h("div.dashboards");
  const charts = new Map();
  view.body.append(grid);
  view.onLeave(() => charts.forEach((each) => each.end()));

  function update(now) {
    Object.assign(place, now);
    view.title("Dashboards", { words: ["consume", "__headrace_state", "-o", "beginning", "-e"] });
    view.live("dashboards", {}, (data) => show(data.dashboards));
  }
  function show(wanted) {
    const keys = wanted.map((each) => JSON.stringify(each));
    for (const [key, each] of charts) {
      if (!keys.includes(key)) {
        each.end();
        charts.delete(key);
      }
    }
    wanted.forEach((each, index) => { if (!charts.has(keys[index])) charts.set(keys[index], dashboard(view, each)); });
    fill(grid, wanted.length ? keys.map((key) => charts.get(key).node) : empty("No dashboards yet",
      "One line next to a pipeline makes one: hr.dashboard(\"Revenue\", topic=\"revenue\", x=\"minute\", y=\"amount\")"));
  }
  update(place);
  return update;
}

function dashboard(view, definition) {
  const { name, kind, topic, unit, refresh_s } = definition;
  const foot = h("div.dashboard-foot");
  const body = h("div.dashboard-body");
  const number = (value) => (unit ? `${short(value)} ${unit}` : short(value));
  const picture = kind === "line" || kind === "bar" ? plot({ kind, bare: true, height: 240, format: number }) : null;
  const node = h(`section.card.dashboard.${kind}`, { "aria-label": name }, h("header.card-head", h("h3", name), h("span.results-pick", view.copyButton(["consume", topic, "-o", "-10", "-e"]))), body, foot);
  let timer = null;
  let ended = false;
  if (picture) body.append(picture.node);

  async function load() {
    if (ended) return;
    if (!document.hidden) {
      try {
        draw(await get("dashboard", { name }));
      } catch (error) {
        fill(foot, notice("error", error.message, error.hint));
      }
    }
    if (!ended) timer = setTimeout(load, refresh_s * 1000);
  }
  function draw(data) {
    if (picture) picture.update(data, data.records ? missingFields(definition) : undefined);
    else if (kind === "number") fill(body, h("div.big-number", data.value === null ? "–" : short(data.value), unit ? h("small", unit) : null), sparkline(data.points.map(([, value]) => value).slice(-120), 0));
    else fill(body, small(data.rows.slice(0, TABLE_ROWS), data.columns.map((column, index) => [column, (row) => cellText(row[index]), data.rows.every((row) => row[index] === null || typeof row[index] === "number" || numeric(row[index]))]), () => empty("No rows yet", `Topic ${topic} has none.`), { clip: false }));
    fill(foot, h("a", { href: link("topics", topic) }, topic), h("span", definition.by_key ? plural(data.records, "row") : data.records ? `newest ${plural(data.records, "record")}` : "no records yet"),
      data.unreadable ? h("span", `${count(data.unreadable)} are no JSON objects`) : null);
  }
  load();
  return { node, end: () => { ended = true; clearTimeout(timer); } };
}

/** A name that is misspelt next to the pipeline would look like a topic without rows. */
function missingFields({ x, y }) {
  return `No record has both ${x || "x"} and a number in ${y.join(" or ") || "y"}`;
}
