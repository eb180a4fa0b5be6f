// Graphs that flow from left to right, drawn in SVG: layers by the longest way, few crossings, labels on the links.

import { h, svg } from "./dom.js";

const NODE = { width: 196, height: 66 };
const GAP = { x: 92, y: 22 };
const SWEEPS = 6;
const MARGIN = 10;
const LEAST_SCALE = 0.72;  // what is still too wide then is scrolled

/**
 * nodes: [{id, kind, title, lines: [text, …], link, tip}], links: [{from, to, label, tip, strength}].
 * Strength, 0 to 1, is how thick a link is.
 */
export function graph({ nodes, links, label }) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const sound = links.filter((link) => known.has(link.from) && known.has(link.to) && link.from !== link.to);
  const layers = ordered(layered(nodes, sound), sound);
  const places = placed(layers);
  const width = MARGIN * 2 + layers.length * NODE.width + Math.max(0, layers.length - 1) * GAP.x;
  const rows = Math.max(1, ...layers.map((layer) => layer.length));
  const height = MARGIN * 2 + rows * NODE.height + (rows - 1) * GAP.y;
  const image = svg("svg.flow", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label || "Graph", style: { minWidth: `${Math.round(width * LEAST_SCALE)}px` } },
    svg("g", sound.map((link) => linkOf(link, places))),
    svg("g", nodes.map((node) => nodeOf(node, places.get(node.id)))),
    svg("g", sound.map((link) => labelOf(link, places))));
  return h("div.flow-frame", image);
}

/** The layer of a node is the longest way to it; one that nothing leads to stands before what it leads to. A circle, which no query has, is cut where it is met again. */
function layered(nodes, links) {
  const above = new Map(nodes.map((node) => [node.id, []]));
  for (const link of links) above.get(link.to).push(link.from);
  const depth = new Map();
  function depthOf(id, path) {
    if (depth.has(id)) return depth.get(id);
    if (path.has(id)) return 0;
    path.add(id);
    const found = Math.max(-1, ...above.get(id).map((each) => depthOf(each, path))) + 1;
    path.delete(id);
    depth.set(id, found);
    return found;
  }
  nodes.forEach((node) => depthOf(node.id, new Set()));
  const last = Math.max(0, ...depth.values());
  nodes.filter((node) => node.kind === "sink").forEach((node) => depth.set(node.id, last));
  const below = (id) => links.filter((link) => link.from === id).map((link) => depth.get(link.to));
  nodes.filter((node) => !above.get(node.id).length).forEach((node) => {  // a link over a layer would run through its nodes
    const next = Math.min(...below(node.id));
    if (Number.isFinite(next)) depth.set(node.id, Math.max(0, next - 1));
  });
  const layers = Array.from({ length: last + 1 }, () => []);
  nodes.forEach((node) => layers[depth.get(node.id)].push(node.id));
  return layers;
}

/** Every layer in the order of the mean place of its neighbours, forth and back. */
function ordered(layers, links) {
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0;
    const rank = new Map();
    layers.forEach((layer) => layer.forEach((id, index) => rank.set(id, index - layer.length / 2)));
    for (const layer of forth ? layers : [...layers].reverse()) {
      const mean = (id) => {
        const near = links.filter((link) => (forth ? link.to : link.from) === id).map((link) => rank.get(forth ? link.from : link.to));
        return near.length ? near.reduce((sum, each) => sum + each, 0) / near.length : rank.get(id);
      };
      const means = new Map(layer.map((id) => [id, mean(id)]));
      layer.sort((one, other) => means.get(one) - means.get(other));
      layer.forEach((id, index) => rank.set(id, index - layer.length / 2));
    }
  }
  return layers;
}

function placed(layers) {
  const most = Math.max(1, ...layers.map((layer) => layer.length));
  const places = new Map();
  layers.forEach((layer, column) => layer.forEach((id, row) => places.set(id, {
    x: MARGIN + column * (NODE.width + GAP.x),
    y: MARGIN + (row + (most - layer.length) / 2) * (NODE.height + GAP.y),
  })));
  return places;
}

function ends(link, places) {
  const from = places.get(link.from);
  const to = places.get(link.to);
  return { x1: from.x + NODE.width, y1: from.y + NODE.height / 2, x2: to.x, y2: to.y + NODE.height / 2 };
}

function linkOf(link, places) {
  const { x1, y1, x2, y2 } = ends(link, places);
  const bend = Math.max(30, (x2 - x1) / 2);
  const thick = 1.5 + 3 * Math.min(1, Math.max(0, link.strength || 0));
  return svg(`path.flow-link${link.strength > 0 ? ".moving" : ""}`, {
    d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 5} ${y2}`, "stroke-width": thick.toFixed(1),
  });
}

function labelOf(link, places) {
  if (!link.label) return null;
  const { x1, y1, x2, y2 } = ends(link, places);
  const wide = link.label.length * 6.3 + 12;
  const [x, y] = [(x1 + Math.min(x2, x1 + GAP.x)) / 2, x2 - x1 > GAP.x + 1 ? y1 : (y1 + y2) / 2];
  return svg("g.flow-label", link.tip ? svg("title", link.tip) : null, svg("rect", { x: x - wide / 2, y: y - 10, width: wide, height: 20, rx: 10 }),
    svg("text", { x, y: y + 4, "text-anchor": "middle" }, link.label));
}

function nodeOf(node, { x, y }) {
  const lines = (node.lines || []).filter(Boolean).slice(0, 2);
  const first = y + (NODE.height - lines.length * 16) / 2 + 4;
  const box = svg(`g.flow-node.${node.kind}`,
    svg("title", [node.title, ...(node.lines || []), ...(node.tip || [])].filter(Boolean).join("\n")),
    svg("rect", { x, y, width: NODE.width, height: NODE.height, rx: 8 }),
    svg("rect.flow-edge", { x, y: y + 10, width: 4, height: NODE.height - 20, rx: 2 }),
    svg("text.flow-title", { x: x + 16, y: first }, clip(node.title, 22)),
    lines.map((line, index) => svg("text.flow-line", { x: x + 16, y: first + 16 * (index + 1) }, clip(line, 28))));
  return node.link ? svg("a", { href: node.link }, box) : box;
}

function clip(text, most) {
  const whole = String(text);
  return whole.length <= most ? whole : `${whole.slice(0, most - 1)}…`;
}
