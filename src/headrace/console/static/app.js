// The shell: navigation, router, palette, theme. Pages are in pages.js.

import { append, fill, h, icon, renew } from "./lib/dom.js";
import { get, stream } from "./lib/api.js";
import { command } from "./lib/command.js";
import { copy, notice } from "./lib/dialog.js";
import { openPalette } from "./lib/palette.js";
import { loadSession, session } from "./lib/session.js";
import { PAGES } from "./pages.js";

const navigation = PAGES.filter((page) => page.nav);
const main = h("main", { tabindex: "-1" });
const links = h("nav", { "aria-label": "Pages" });
const trail = h("div.trail");
let current = null;
const AGAIN_MS = 3000;

function shell() {
  const theme = h("button.icon-button.theme", { title: "Light or dark", "aria-label": "Switch between light and dark", on: { click: switchTheme } }, icon("sun"), icon("moon"));
  const find = h("button.find", { on: { click: () => openPalette(navigation) } }, icon("search"), h("span", "Search"), h("kbd", "/"));
  const menu = h("button.icon-button.menu", { "aria-label": "Menu", on: { click: () => document.body.classList.toggle("menu-open") } }, icon("menu"));
  append(document.body, [
    h("aside", h("a.brand", { href: "#/" }, h("img", { src: "/static/icon.svg", alt: "" }), "headrace"), links,
      h("div.aside-foot", session.read_only ? h("div.badge", "read-only") : null,
        h("div.muted.clip", { title: session.bootstrap }, session.bootstrap), h("div.muted", `v${session.version}`))),
    h("div.scrim", { on: { click: closeMenu } }),
    h("div.page", h("header.top", menu, trail, find, theme), main),
  ]);
}

function closeMenu() {
  document.body.classList.remove("menu-open");
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", document.documentElement.dataset.theme);
  } catch { /* the choice holds until the page is left */ }
}

// ---- router ----------------------------------------------------------------------------------------------------------

function readPlace() {
  const [path, text = ""] = (location.hash.slice(1) || "/").split(/\?(.*)/s);
  return { path, query: Object.fromEntries(new URLSearchParams(text)) };
}

function match(path) {
  const given = path.split("/");
  for (const page of PAGES) {
    const wanted = page.path.split("/");
    if (wanted.length !== given.length) continue;
    const params = {};
    const fits = wanted.every((part, index) => {
      if (!part.startsWith(":")) return part === given[index];
      try {
        params[part.slice(1)] = decodeURIComponent(given[index]);
      } catch {
        return false;
      }
      return given[index] !== "";
    });
    if (fits) return { page, params };
  }
  return null;
}

class Place {
  constructor(path, params, query) {
    Object.assign(this, { path, params, query });
  }

  /** Change some of the query; null removes. The page's `update` is called, or it is rendered again. */
  change(changes, { replace = false } = {}) {
    const next = { ...this.query, ...changes };
    for (const [name, value] of Object.entries(next)) if (value === null || value === undefined || value === "") delete next[name];
    const text = new URLSearchParams(next).toString();
    const hash = `#${this.path}${text ? `?${text}` : ""}`;
    if (replace) {
      history.replaceState(null, "", hash);
      route();
    } else {
      location.hash = hash;
    }
  }
}

function route() {
  const { path, query } = readPlace();
  const found = match(path);
  const place = new Place(path, found?.params || {}, query);
  if (current && current.path === path && current.update) {
    current.place = place;
    current.view.restart();
    current.update(place);
    return;
  }
  current?.view.leave();
  closeMenu();
  const view = new View(found?.page);
  current = { path, place, view, update: null };
  fill(main, view.root);
  main.scrollTop = 0;
  for (const link of links.children) {
    const own = link.dataset.path === "/" ? path === "/" : path.startsWith(link.dataset.path);
    own ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  if (!found) {
    view.title("Not found");
    view.root.append(notice("error", `There is no page ${path}`, "Choose one on the left."));
    return;
  }
  current.update = found.page.render(view, place) || null;
}

// ---- what a page is given -----------------------------------------------------------------------------------------------

/** The view of a page: its head, its body, its stream. Everything it opened is closed when the page is left. */
class View {
  constructor(page) {
    this.page = page;
    this.head = h("div.page-head");
    this.trouble = h("div");
    this.body = h("div.page-body");
    this.root = h("div.view", this.head, this.trouble, this.body);
    this.endings = [];
    this.streams = [];
  }

  /** The title, what leads to it ([[label, link], …]), and the nodes at its right. */
  title(text, { trail: steps = [], actions = [], words = null, note = null } = {}) {
    document.title = `${text} · headrace`;
    fill(trail, steps.flatMap(([label, link]) => [h("a", { href: link }, label), h("span.muted", "/")]), h("span", text));
    fill(this.head, h("div.page-title", h("h1", text), note), h("div.row.actions", actions, words ? this.copyButton(words) : null));
  }

  /** "Copy as command"; `words` is a list, or a function that gives one when it is used. */
  copyButton(words) {
    const line = () => command(typeof words === "function" ? words() : words);
    return h("button.button.copy-command", { title: "Copy as command", on: { click: () => copy(line(), line()), pointerenter: (event) => { event.currentTarget.title = line(); } } },
      icon("terminal"), h("span", "Copy as command"));
  }

  /** Follow a view of the server. A failure is shown above the page, and goes when the next answer comes. */
  live(name, parameters, onData) {
    return this.stream(name, parameters, {
      data: (data) => {
        if (data.problem && !data.alarms?.length) this.problem(data.problem, "These are the figures of the last answer. The page goes on when the broker answers.");
        else this.clear();
        onData(data);
      },
      problem: (problem) => this.failed(problem),
      lost: () => this.lost(),
    });
  }

  /** A console that was started again has another token: then the page that asks for it is shown. */
  lost() {
    this.problem("The console does not answer.", "The page goes on when it does.");
    get("session").catch((error) => { if (error.status === 401) location.reload(); });
  }

  stream(name, parameters, handlers, options) {
    const end = stream(name, parameters, handlers, options);
    this.streams.push(end);
    return end;
  }

  problem(text, hint = "") {
    renew(this.trouble, notice("error", text, hint));
  }

  /** An answer that is an error. What does not exist has no figures, and nothing can be done with it. */
  failed(problem) {
    this.root.classList.toggle("missing", Boolean(problem.missing));
    this.problem(problem.error || problem.message, problem.hint);
  }

  /** Ask once for what is not live, while `wanted`. A broker that is away is asked again, as its notice promises. */
  async load(ask, onData, wanted, { onFailure = () => {}, again = false } = {}) {
    try {
      const found = await ask();
      if (!wanted()) return;
      if (again) this.clear();
      onData(found);
    } catch (error) {
      if (!wanted()) return;
      onFailure();
      this.failed(error);
      if (error.status === 503) setTimeout(() => { if (wanted()) this.load(ask, onData, wanted, { onFailure, again: true }); }, AGAIN_MS);
    }
  }

  clear() {
    this.root.classList.remove("missing");
    fill(this.trouble);
  }

  onLeave(ending) {
    this.endings.push(ending);
  }

  restart() {
    this.streams.splice(0).forEach((end) => end());
  }

  leave() {
    this.restart();
    this.endings.splice(0).forEach((end) => end());
  }
}

// ---- start --------------------------------------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if ((event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !typing)) {
    event.preventDefault();
    openPalette(navigation);
  }
});
addEventListener("hashchange", route);

try {
  await loadSession();
  shell();
  append(links, navigation.map((page) => h("a", { href: `#${page.path}`, dataset: { path: page.path } }, icon(page.nav.icon), h("span", page.nav.label))));
  route();
} catch (error) {
  append(document.body, [notice("error", error.message, error.hint)]);
}
