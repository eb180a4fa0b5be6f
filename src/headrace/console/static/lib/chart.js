// Line charts in SVG: axes with units, a legend that switches series, a tooltip, time ranges.

import { fill, h, svg } from "./dom.js";
import { UNITS, clock, timeMarks } from "./format.js";

export const RANGES = [[300, "5 min"], [600, "10 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"]];

const LONG_MS = [60, 120, 240, 600, 1200, 2400, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 345600].map((seconds) => seconds * 1000);

const MARGIN = { top: 8, right: 12, bottom: 22, left: 58 };

/**
 * chart({title, unit, names, height, colours}) gives {node, update(data, {over})}; data is {from, to, times, series: [{name, values}]}.
 * `over`: what it is about does not run any more. `names` says how series are called in the legend; `total` shows a figure beside the title.
 */
export function chart({ title, unit = "count", names = {}, height = 190, colours = [], area = true }) {
  const format = UNITS[unit] || UNITS.count;
  const off = new Set();
  const figure = h("span.chart-figure");
  const legend = h("div.legend");
  const plot = h("div.chart-plot");
  const tip = h("div.chart-tip", { hidden: true });
  const node = h("section.card.chart",
    h("header.card-head", h("h3", title), figure, legend), h("div.chart-frame", plot, tip));
  let data = null;
  let isOver = false;
  let width = 0;
  let scale = null;
  let drawn = null;
  let pointer = null;  // where the mouse is: the tooltip stays when the next answer is drawn

  plot.addEventListener("pointermove", (event) => {
    pointer = event.clientX;
    point();
  });
  plot.addEventListener("pointerleave", () => {
    pointer = null;
    tip.hidden = true;
    drawn?.rule.setAttribute("visibility", "hidden");
    if (drawn) fill(drawn.dots);
  });

  new ResizeObserver(() => {
    const now = Math.round(plot.clientWidth);
    if (now && now !== width) {
      width = now;
      draw();
    }
  }).observe(plot);

  function update(next, { over = false } = {}) {
    data = next;
    isOver = over;
    draw();
  }

  function shown() {
    return data.series.map((series, index) => ({ ...series, index })).filter((series) => !off.has(series.name));
  }

  function colour(index) {
    return `var(--series-${(colours[index] ?? index) % 8})`;
  }

  function draw() {
    if (!data || !width) return;
    drawLegend();
    const last = shown().map((series) => lastOf(series.values)).filter((value) => value !== null);
    fill(figure, !isOver && data.series.length === 1 && last.length ? format(last[0]) : "");
    const known = data.series.some((series) => series.values.some((value) => value !== null));
    if (!known) {
      scale = null;
      fill(plot, h("div.chart-empty", { style: { height: `${height}px` } }, isOver ? "No samples in this time" : "Collecting the first samples …"));
      return;
    }
    const most = Math.max(...shown().flatMap((series) => series.values.filter((value) => value !== null)), 0);
    const long = unit === "ms" && most > 30_000 ? LONG_MS.find((each) => each >= most * 1.02) : undefined;  // minutes have no tenths
    const top = long ?? (unit === "messages" ? Math.max(4, niceTop(most)) : niceTop(most));
    const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    scale = {
      x: (ms) => MARGIN.left + ((ms - data.from) / Math.max(1, data.to - data.from)) * inner.width,
      y: (value) => MARGIN.top + inner.height * (1 - value / top),
      inner,
    };
    const rule = svg("line.rule", { y1: MARGIN.top, y2: MARGIN.top + inner.height, visibility: "hidden" });
    const dots = svg("g");
    const image = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
      gridOf(top), timesOf(), shown().flatMap((series) => lineOf(series)), rule, dots,
      svg("rect.catcher", { x: MARGIN.left, y: MARGIN.top, width: Math.max(0, inner.width), height: inner.height }));
    fill(plot, image);
    drawn = { image, rule, dots };
    if (pointer !== null) point();
  }

  function drawLegend() {
    if (data.series.length < 2) return fill(legend);
    fill(legend, data.series.map((series, index) => h("button.legend-item", {
      "aria-pressed": String(!off.has(series.name)),
      on: { click: () => { off.has(series.name) ? off.delete(series.name) : off.add(series.name); draw(); } },
    }, h("i", { style: { background: colour(index) } }), names[series.name] || series.name,
    h("b", format(lastOf(series.values))))));
  }

  function gridOf(top) {
    const steps = height > 150 ? 4 : 2;
    return Array.from({ length: steps + 1 }, (_, index) => (top * index) / steps).map((value) => svg("g",
      svg("line.grid", { x1: MARGIN.left, x2: width - MARGIN.right, y1: scale.y(value), y2: scale.y(value) }),
      svg("text.axis", { x: MARGIN.left - 8, y: scale.y(value) + 3.5, "text-anchor": "end" }, format(value))));
  }

  function timesOf() {
    const { marks, step_s } = timeMarks(data.from, data.to, Math.max(2, Math.floor(scale.inner.width / 90)));
    return marks.map((ms) => {
      const text = clock(ms, step_s < 60);
      const x = Math.min(scale.x(ms), width - 2 - text.length * 3.2);  // the last one would be cut
      return svg("text.axis", { x, y: height - 5, "text-anchor": "middle" }, text);
    });
  }

  function lineOf(series) {
    const pieces = [];
    let piece = [];
    data.times.forEach((ms, index) => {
      const value = series.values[index];
      if (value === null || value === undefined) {
        if (piece.length) pieces.push(piece);
        piece = [];
      } else {
        piece.push([scale.x(ms), scale.y(value)]);
      }
    });
    if (piece.length) pieces.push(piece);
    const style = { stroke: colour(series.index), fill: colour(series.index) };
    return pieces.flatMap((points) => {
      const path = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      const floor = scale.y(0).toFixed(1);
      const under = `${path}L${points.at(-1)[0].toFixed(1)} ${floor}L${points[0][0].toFixed(1)} ${floor}Z`;
      return [
        area ? svg("path.area", { d: under, style: { fill: style.fill } }) : null,
        svg("path.line", { d: path, style: { stroke: style.stroke } }),
      ];
    });
  }

  function point() {
    if (!scale || !data.times.length) return;
    const { image, rule, dots } = drawn;
    const box = image.getBoundingClientRect();
    const x = pointer - box.left;
    let near = 0;
    data.times.forEach((ms, index) => {
      if (Math.abs(scale.x(ms) - x) < Math.abs(scale.x(data.times[near]) - x)) near = index;
    });
    const at = scale.x(data.times[near]);
    rule.setAttribute("x1", at);
    rule.setAttribute("x2", at);
    rule.setAttribute("visibility", "visible");
    const rows = shown().filter((series) => series.values[near] !== null && series.values[near] !== undefined);
    fill(dots, rows.map((series) => svg("circle.dot", { cx: at, cy: scale.y(series.values[near]), r: 3.5, style: { fill: colour(series.index) } })));
    fill(tip, h("div.tip-time", clock(data.times[near])), rows.map((series) => h("div.tip-row",
      h("i", { style: { background: colour(series.index) } }), h("span", names[series.name] || series.name), h("b", format(series.values[near])))));
    tip.hidden = false;
    const left = at + 14 + tip.offsetWidth > width ? at - 14 - tip.offsetWidth : at + 14;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${MARGIN.top + 4}px`;
  }

  return { node, update };
}

function lastOf(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) {
    if (values[index] !== null && values[index] !== undefined) return values[index];
  }
  return null;
}

/** A round number that holds the value, and whose quarters are round too. */
function niceTop(value) {
  if (value <= 0) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10, 12].map((step) => step * power).find((top) => top >= value * 1.02) || 16 * power;
}

/** A small line without axes, for a tile. */
export function sparkline(values, index = 0) {
  const known = values.map((value, at) => [at, value]).filter(([, value]) => value !== null && value !== undefined);
  if (known.length < 2) return svg("svg.spark", { viewBox: "0 0 100 24" });
  const top = Math.max(...known.map(([, value]) => value), 1e-9);
  const points = known.map(([at, value]) => `${((at / (values.length - 1)) * 100).toFixed(1)} ${(22 - (value / top) * 20).toFixed(1)}`);
  return svg("svg.spark", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path.area", { d: `M${points.join("L")}L100 24L0 24Z`, style: { fill: `var(--series-${index})` } }),
    svg("path.line", { d: `M${points.join("L")}`, style: { stroke: `var(--series-${index})` } }));
}

export function rangePicker(place, otherwise = 600) {
  const now = Number(place.query.range || otherwise);
  return h("div.segmented", { role: "group", "aria-label": "Time range" }, RANGES.map(([seconds, label]) =>
    h("button", { "aria-pressed": String(seconds === now), on: { click: () => place.change({ range: seconds === otherwise ? null : seconds }) } }, label)));
}

