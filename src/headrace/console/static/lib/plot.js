// Charts of results: lines and bars over times, numbers or texts, several series, a legend and a tooltip.
// Charts of what the console sampled over time are in chart.js.

import { fill, h, svg } from "./dom.js";
import { clock, short, time, timeMarks } from "./format.js";

const MARGIN = { top: 10, right: 12, bottom: 24, left: 58 };
const DAY_MS = 86_400_000;
const DAYS_MS = 3 * DAY_MS;
const DURATIONS_S = [30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];

/**
 * plot({title, kind: "line" | "bar" | "stack", height, format}) gives {node, update(data)}.
 * `ticks` chooses the round values of the vertical axis.
 * With `cut`, a few values far above the others do not make the others small: their bars end at the top.
 * data is {x_kind: "time" | "number" | "text", lines: [{name, points: [[x, y], …]}]}.
 */
export function plot({ title, kind = "line", height = 230, format = short, names = {}, nothing = "No rows yet", bare = false, cut = false, ticks: marks = ticksOf }) {
  const off = new Set();
  const legend = h("div.legend");
  const area = h("div.chart-plot");
  const tip = h("div.chart-tip", { hidden: true });
  const node = h(bare ? "div.chart" : "section.card.chart",
    h("header.card-head", title ? h("h3", title) : null, legend), h("div.chart-frame", area, tip));
  let data = null;
  let missing = nothing;
  let width = 0;
  let pointAt = null;  // shows what is at a place of the screen in what is drawn now
  let pointer = null;  // where the mouse is: the tooltip stays when the next answer is drawn

  area.addEventListener("pointermove", (event) => {
    pointer = event.clientX;
    pointAt?.(pointer);
  });
  area.addEventListener("pointerleave", () => {
    pointer = null;
    pointAt?.(pointer);
  });

  new ResizeObserver(() => {
    const now = Math.round(area.clientWidth);
    if (now && now !== width) {
      width = now;
      draw();
    }
  }).observe(area);

  /** `without`: what is said where there is nothing to draw. */
  function update(next, without = nothing) {
    data = next;
    missing = without;
    draw();
  }

  const colour = (index) => `var(--series-${index % 8})`;
  const shown = () => data.lines.map((line, index) => ({ ...line, index })).filter((line) => !off.has(line.name));

  function draw() {
    if (!data || !width) return;
    fill(legend, data.lines.length < 2 ? [] : data.lines.map((line, index) => h("button.legend-item", {
      type: "button", "aria-pressed": String(!off.has(line.name)),
      on: { click: () => { off.has(line.name) ? off.delete(line.name) : off.add(line.name); draw(); } },
    }, h("i", { style: { background: colour(index) } }), names[line.name] || line.name)));
    const lines = shown();
    if (!lines.some((line) => line.points.length)) {
      pointAt = null;
      tip.hidden = true;
      fill(area, h("div.chart-empty", { style: { height: `${height}px` } }, missing));
      return;
    }
    const steps = xSteps(lines);
    const scale = scaleOf(lines, steps);
    const marks = svg("g");
    const image = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title || "Chart" },
      grid(scale), xAxis(steps, scale), kind === "line" ? lines.flatMap((line) => lineOf(line, scale)) : barsOf(lines, steps, scale), marks,
      svg("rect.catcher", { x: MARGIN.left, y: MARGIN.top, width: Math.max(0, scale.width), height: scale.height }));
    fill(area, image);
    pointAt = (clientX) => point(clientX, image, lines, steps, scale, marks);
    pointAt(pointer);
  }

  /** Every x once, in order; texts keep the order in which they come. */
  function xSteps(lines) {
    const all = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))];
    return data.x_kind === "text" ? all : all.sort((one, other) => one - other);
  }

  function scaleOf(lines, steps) {
    const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    const sums = new Map();
    for (const line of lines) for (const [x, y] of line.points) sums.set(x, (sums.get(x) || 0) + y);
    const values = kind === "stack" ? [...sums.values()] : lines.flatMap((line) => line.points.map(([, y]) => y));
    let low = Math.min(...values);
    let high = cut ? Math.min(Math.max(...values), usual(values) * 3) : Math.max(...values);
    const flat = kind === "line" && low > 0 && high > low && low > (high - low) * 3;  // a line far from 0 needs no 0
    if (!flat) [low, high] = [Math.min(0, low), Math.max(0, high)];
    const ticks = marks(low, high === low ? low + 1 : high, Math.max(2, Math.floor(inner.height / 45)));
    [low, high] = [ticks[0], ticks.at(-1)];
    const continuous = kind === "line" && data.x_kind !== "text" && steps.length > 1;
    const places = new Map(steps.map((x, index) => [x, index]));
    const slot = inner.width / Math.max(1, steps.length);
    return {
      ...inner, ticks, slot, continuous,
      x: (x) => MARGIN.left + (continuous ? ((x - steps[0]) / (steps.at(-1) - steps[0])) * inner.width : (places.get(x) + 0.5) * slot),
      y: (y) => MARGIN.top + inner.height * (1 - (y - low) / (high - low)),
      floor: Math.min(Math.max(0, low), high),
    };
  }

  function grid(scale) {
    return scale.ticks.map((value) => svg("g",
      svg("line.grid", { x1: MARGIN.left, x2: width - MARGIN.right, y1: scale.y(value), y2: scale.y(value) }),
      svg("text.axis", { x: MARGIN.left - 8, y: scale.y(value) + 3.5, "text-anchor": "end" }, format(value))));
  }

  function xText(x, steps) {
    if (data.x_kind === "number") return short(x);
    if (data.x_kind !== "time") return String(x);
    const span = steps.at(-1) - steps[0];
    if (span >= DAYS_MS || areDays(steps)) return new Date(x).toISOString().slice(0, 10);  // a date of JSON is one of UTC
    return clock(x, span < 600_000 && steps.some((each) => each % 60_000));
  }

  /** Times and numbers have round marks, wherever the points are. */
  function roundMarks(steps, scale) {
    const room = Math.max(2, Math.floor(scale.width / 90));
    const [low, high] = [steps[0], steps.at(-1)];
    return data.x_kind === "time" ? timeMarks(low, high, room, { utc: high - low >= DAYS_MS }).marks : ticksOf(low, high, room).filter((each) => each >= low && each <= high);
  }

  function xAxis(points, scale) {
    const round = scale.continuous && !(data.x_kind === "time" && areDays(points)) ? roundMarks(points, scale) : [];
    const steps = round.length > 1 ? round : points;
    const texts = steps.map((x) => xText(x, steps));
    const longest = Math.min(18, Math.max(...texts.map((text) => text.length)));
    const room = Math.max(1, Math.floor(scale.width / (longest * 6.6 + 14)));
    const every = Math.max(1, Math.ceil(steps.length / room));
    let end = -Infinity;
    return steps.map((x, index) => {
      const half = (Math.min(texts[index].length, longest) * 6.4) / 2;
      const at = Math.min(Math.max(scale.x(x), MARGIN.left - 20 + half), width - 2 - half);
      if (index % every || at - half < end + 8) return null;
      end = at + half;
      return svg("text.axis", { x: at, y: height - 6, "text-anchor": "middle" }, clip(texts[index], longest));
    });
  }

  function lineOf(line, scale) {
    const points = line.points.map(([x, y]) => [scale.x(x), scale.y(y)]).sort(([one], [other]) => one - other);
    const path = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const single = points.length === 1 ? svg("circle.dot", { cx: points[0][0], cy: points[0][1], r: 3, style: { fill: colour(line.index) } }) : null;
    return [single, svg("path.line", { d: path, style: { stroke: colour(line.index) } })];
  }

  function barsOf(lines, steps, scale) {
    const tops = new Map();
    const each = kind === "stack" ? 1 : lines.length;
    const wide = Math.max(1, Math.min(46, (scale.slot * 0.78) / each));
    return lines.flatMap((line, order) => line.points.map(([x, y]) => {
      const from = kind === "stack" ? tops.get(x) || 0 : scale.floor;
      const to = kind === "stack" ? from + y : y;
      tops.set(x, to);
      const left = scale.x(x) - (wide * each) / 2 + (kind === "stack" ? 0 : order * wide);
      const top = Math.max(MARGIN.top, Math.min(scale.y(from), scale.y(to)));
      const bottom = Math.max(MARGIN.top, scale.y(from), scale.y(to));
      return svg("rect.bar", { x: left.toFixed(1), y: top.toFixed(1), width: Math.max(1, wide - 1).toFixed(1), height: Math.max(y && bottom > MARGIN.top ? 1 : 0, bottom - top).toFixed(1), style: { fill: colour(line.index) } });
    }));
  }

  function point(clientX, image, lines, steps, scale, marks) {
    if (clientX === null) {
      tip.hidden = true;
      fill(marks);
      return;
    }
    const x = clientX - image.getBoundingClientRect().left;
    const near = steps.reduce((best, each) => (Math.abs(scale.x(each) - x) < Math.abs(scale.x(best) - x) ? each : best), steps[0]);
    const at = scale.x(near);
    const rows = lines.map((line) => [line, line.points.find(([each]) => each === near)]).filter(([, found]) => found);
    fill(marks, svg("line.rule", { x1: at, x2: at, y1: MARGIN.top, y2: MARGIN.top + scale.height }),
      kind === "line" ? rows.map(([line, [, y]]) => svg("circle.dot", { cx: at, cy: scale.y(y), r: 3.5, style: { fill: colour(line.index) } })) : null);
    const said = data.x_kind === "time" && !areDays(steps) ? time(near).slice(0, 19) : xText(near, steps);
    fill(tip, h("div.tip-time", said), rows.map(([line, [, y]]) => h("div.tip-row",
      h("i", { style: { background: colour(line.index) } }), h("span", names[line.name] || line.name), h("b", format(y)))));
    tip.hidden = false;
    const left = at + 14 + tip.offsetWidth > width ? at - 14 - tip.offsetWidth : at + 14;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${MARGIN.top + 4}px`;
  }

  return { node, update };
}

/** Dates in JSON have no time. They are read as midnight UTC, and shown as dates in every zone of the browser. */
function areDays(steps) {
  return steps.length > 0 && steps.every((each) => each % DAY_MS === 0);
}

/** The value that nine of ten do not exceed. */
function usual(values) {
  return [...values].sort((one, other) => one - other)[Math.floor(values.length * 0.9)] || Math.max(...values);
}

function clip(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

/** The same for durations in ms from 0: minutes have no tenths. */
export function durationTicksOf(low, high, wanted) {
  const step = DURATIONS_S.map((seconds) => seconds * 1000).find((each) => each >= high / wanted);
  if (high < 60_000 || !step) return ticksOf(low, high, wanted);
  return Array.from({ length: Math.ceil(high / step) + 1 }, (_, index) => index * step);
}

/** Round numbers that hold both ends, about `wanted` of them. */
export function ticksOf(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
  const ticks = [];
  for (let at = Math.floor(low / step + 1e-9); ticks.length < 20; at += 1) {
    ticks.push(Number((at * step).toPrecision(12)));
    if (at * step >= high - step * 1e-9) break;
  }
  return ticks;
}
