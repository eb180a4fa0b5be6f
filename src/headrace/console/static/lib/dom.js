// Nodes from texts. Nothing here, or anywhere, turns text into HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("div.card", {on: {click}, title: "…"}, "text", node, [nodes]) */
export function h(kind, ...rest) {
  return build((tag) => document.createElement(tag), kind, rest);
}

export function svg(kind, ...rest) {
  return build((tag) => document.createElementNS(SVG, tag), kind, rest);
}

function build(create, kind, rest) {
  const [tag, ...classes] = kind.split(".");
  const node = create(tag || "div");
  if (classes.length) node.setAttribute("class", classes.join(" "));
  const props = isProps(rest[0]) ? rest.shift() : {};
  for (const [name, value] of Object.entries(props)) set(node, name, value);
  append(node, rest);
  return node;
}

function isProps(value) {
  return value !== null && typeof value === "object" && !(value instanceof Node) && !Array.isArray(value);
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
  else if (name === "style") Object.assign(node.style, value);
  else if (name === "dataset") Object.assign(node.dataset, value);
  else if (name === "value") node.value = value;
  else if (name === "class") node.classList.add(...String(value).split(" ").filter(Boolean));
  else node.setAttribute(name, value === true ? "" : value);
}

/** A name that may be broken after its punctuation, where its column is narrow. */
export function breakable(name) {
  return String(name).split(/(?<=[._/-])/).flatMap((part, index) => (index ? [h("wbr"), part] : [part]));
}

export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : visible(String(child)));
  }
  return node;
}

const UNSEEN = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g;

/** Characters that are not seen, or that turn the text after them around, by their numbers. */
function visible(text) {
  return text.replace(UNSEEN, (character) => `[U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
}

export function fill(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

/**
 * Like `fill`, but what is the same stays the same node: a click, the focus and a selection survive the next answer.
 * Only for nodes whose handlers depend on nothing but their attributes.
 */
export function renew(node, ...children) {
  merge(node, append(document.createDocumentFragment(), children));
  return node;
}

function merge(node, wanted) {
  const next = [...wanted.childNodes];
  [...node.childNodes].slice(next.length).forEach((child) => child.remove());
  next.forEach((child, index) => {
    const old = node.childNodes[index];
    if (!old) node.append(child);
    else if (old.isEqualNode(child)) return;
    else if (old instanceof Element && old.cloneNode(false).isEqualNode(child.cloneNode(false))) merge(old, child);
    else old.replaceWith(child);
  });
}

const PATHS = {
  overview: "M3 13h4l3-8 4 14 3-9 1.500 3H21",
  topics: "M4 6h16M4 12h16M4 18h10",
  groups: "M9 11a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7Zm-6 9c0-3.500 2.500-6 6-6s6 2.500 6 6M16 4.500a3.500 3.500 0 0 1 0 6M18 14.500c2 .8 3 2.800 3 5.500",
  queues: "M4 5h16v5H4zM4 14h16v5H4zM8 7.500h0M8 16.500h0",
  captures: "M12 8c4.400 0 8-1.100 8-2.500S16.400 3 12 3 4 4.100 4 5.500 7.600 8 12 8Zm8-2.500v13c0 1.400-3.600 2.500-8 2.500s-8-1.100-8-2.500v-13M20 12c0 1.400-3.600 2.500-8 2.500S4 13.400 4 12",
  pipelines: "M4 4h6v5H4zM14 9.500h6v5h-6zM4 15h6v5H4zM10 6.500h2a2 2 0 0 1 2 2V11M10 17.500h2a2 2 0 0 0 2-2V13",
  dashboards: "M4 4h7v7H4zM13 4h7v4h-7zM13 11h7v9h-7zM4 14h7v6H4z",
  search: "M10.500 17a6.500 6.500 0 1 0 0-13 6.500 6.500 0 0 0 0 13ZM15.500 15.500 21 21",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  sun: "M12 16.500a4.500 4.500 0 1 0 0-9 4.500 4.500 0 0 0 0 9ZM12 2v2.500M12 19.500V22M4.200 4.200 6 6M18 18l1.800 1.800M2 12h2.500M19.500 12H22M4.200 19.800 6 18M18 6l1.800-1.800",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500Z",
  plus: "M12 5v14M5 12h14",
  play: "M7 5v14l12-7z",
  stop: "M6 6h12v12H6z",
  close: "M6 6l12 12M18 6 6 18",
  chevron: "m9 6 6 6-6 6",
  down: "m6 9 6 6 6-6",
  menu: "M4 7h16M4 12h16M4 17h16",
  download: "M12 4v11m0 0 4.500-4.500M12 15l-4.500-4.500M5 20h14",
  send: "M4 12 20 4l-5 16-3.500-6.500z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  alert: "M12 4 2.500 20h19zM12 10v4.500M12 17.200v.3",
  ok: "m5 12.500 4.500 4.500L19 7.500",
  info: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM12 11v5.500M12 7.800v.2",
  terminal: "m5 7 5 5-5 5M12.500 17H19",
  star: "m12 4 2.500 5.300 5.700.7-4.200 4 1.100 5.700L12 16.900l-5.100 2.800L8 14l-4.200-4 5.700-.7z",
  edit: "M5 19h3.500L19 8.500 15.500 5 5 15.500z",
};

export function icon(name) {
  return svg("svg.icon", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: PATHS[name] || PATHS.info }));
}
