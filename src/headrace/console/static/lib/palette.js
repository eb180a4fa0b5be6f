// The command palette: one box over pages, topics, groups and whatever else has a name.

import { fill, h, icon } from "./dom.js";
import { get } from "./api.js";

const SHOWN_MAX = 40;

/** Kinds of names: {kind, icon, link(name)}. Pages add theirs with `searchable`. */
const KINDS = {
  topics: { label: "Topic", icon: "topics", link: (name) => `#/topics/${encodeURIComponent(name)}` },
  groups: { label: "Group", icon: "groups", link: (name) => `#/groups/${encodeURIComponent(name)}` },
  queues: { label: "Queue", icon: "queues", link: (name) => `#/queues/${encodeURIComponent(name)}` },
  captures: { label: "Capture", icon: "captures", link: (name) => `#/captures/${encodeURIComponent(name)}` },
  dashboards: { label: "Dashboard", icon: "dashboards", link: () => "#/dashboards" },
  pipelines: { label: "Pipeline", icon: "pipelines", link: (name) => `#/pipelines/${encodeURIComponent(name)}` },
};

export function searchable(kind, how) {
  KINDS[kind] = how;
}

export function openPalette(pages) {
  if (document.querySelector("dialog.palette")) return;
  let items = [];
  let chosen = 0;
  let all = pages.map((page) => ({ label: "Page", icon: page.nav.icon, name: page.nav.label, link: `#${page.path}` }));
  const list = h("ul", { role: "listbox" });
  const input = h("input", { type: "text", placeholder: "Jump to a topic, group, page …", "aria-label": "Search", spellcheck: "false", on: { input: refresh, keydown: key } });
  const node = h("dialog.palette", { on: { close: () => node.remove(), mousedown: (event) => { if (event.target === node) node.close(); } } },
    h("div.palette-box", icon("search"), input, h("kbd", "esc")), list);
  document.body.append(node);
  node.showModal();
  refresh();
  get("names").then((names) => {
    for (const [kind, found] of Object.entries(names)) {
      const how = KINDS[kind];
      if (how) all.push(...found.map((name) => ({ label: how.label, icon: how.icon, name, link: how.link(name) })));
    }
    refresh();
  }).catch(() => {});

  function refresh() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    items = all.map((item) => ({ item, rank: rank(item.name.toLowerCase(), words) }))
      .filter(({ rank: at }) => at >= 0).sort((one, other) => one.rank - other.rank).slice(0, SHOWN_MAX).map(({ item }) => item);
    chosen = 0;
    draw();
  }

  function draw() {
    fill(list, items.length ? items.map((item, index) => h("li", {
      role: "option", "aria-selected": String(index === chosen),
      on: { click: () => go(item), pointermove: () => { if (chosen !== index) { chosen = index; mark(); } } },
    }, icon(item.icon), h("span.palette-name", item.name), h("span.palette-kind", item.label))) : h("li.palette-none", "Nothing has that name"));
  }

  function mark() {
    [...list.children].forEach((child, index) => child.setAttribute("aria-selected", String(index === chosen)));
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
  }

  function key(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = Math.min(Math.max(chosen + (event.key === "ArrowDown" ? 1 : -1), 0), items.length - 1);
      mark();
    } else if (event.key === "Enter" && items[chosen]) {
      event.preventDefault();
      go(items[chosen]);
    }
  }

  function go(item) {
    node.close();
    location.hash = item.link;
  }
}

/** Names that begin with the words before those that have them somewhere; -1: not all words are there. */
function rank(name, words) {
  let total = 0;
  for (const word of words) {
    const at = name.indexOf(word);
    if (at < 0) return -1;
    total += at === 0 ? 0 : /[^a-z0-9]/.test(name[at - 1]) ? 1 : 2;
  }
  return total + name.length / 1000;
}
