// JSON for people: indented and coloured from its own text, so that large numbers keep their digits.

import { h } from "./dom.js";

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[[\]{}:,]/g;

export function parsed(text) {
  const begin = text.trimStart()[0];
  if (begin !== "{" && begin !== "[") return undefined;
  try {
    return JSON.parse(text, (_, value, context) =>
      typeof value === "number" && !Number.isSafeInteger(value) && Number.isInteger(value) && context?.source ? context.source : value);
  } catch {
    return undefined;
  }
}

const COLOURED_MAX = 5000;

/**
 * Nodes for a text that `parsed` accepted. `onField(path)` makes names of fields into buttons. Only the beginning of a
 * large text is coloured: a hundred thousand nodes would hold the browser for seconds.
 */
export function pretty(text, onField = null) {
  const out = [];
  let plain = "";
  const stack = [];
  let expectKey = false;
  const newline = () => { plain += `\n${"  ".repeat(stack.length)}`; };
  const node = (made, index) => {
    if (index > COLOURED_MAX) {
      plain += tokens[index];
    } else {
      out.push(plain, made());
      plain = "";
    }
  };
  const tokens = text.match(TOKEN) || [];
  tokens.forEach((token, index) => {
    const top = stack.at(-1);
    if (token === "{" || token === "[") {
      plain += token;
      stack.push({ object: token === "{", key: "" });
      expectKey = token === "{";
      if (tokens[index + 1] !== "}" && tokens[index + 1] !== "]") newline();
    } else if (token === "}" || token === "]") {
      stack.pop();
      if (tokens[index - 1] !== "{" && tokens[index - 1] !== "[") newline();
      plain += token;
      expectKey = false;
    } else if (token === ",") {
      plain += ",";
      newline();
      expectKey = Boolean(top?.object);
    } else if (token === ":") {
      plain += ": ";
      expectKey = false;
    } else if (expectKey) {
      top.key = JSON.parse(token);
      const path = stack.every((each) => each.object) ? stack.map((each) => each.key) : null;
      node(() => (onField && path
        ? h("button.json-key", { type: "button", title: `Show ${path.join(".")} as a column`, on: { click: () => onField(path) } }, token)
        : h("span.json-key", token)), index);
    } else {
      node(() => h(`span.json-${token[0] === "\"" ? "text" : /[tfn]/.test(token[0]) ? "word" : "number"}`, token), index);
    }
  });
  return [...out, plain];
}

/** The value at a path of fields, as a text for a cell. */
export function at(value, path) {
  let found = value;
  for (const name of path) {
    if (found === null || typeof found !== "object" || !Object.hasOwn(found, name)) return "";
    found = found[name];
  }
  return found === null ? "null" : typeof found === "object" ? JSON.stringify(found) : String(found);
}

/** Bytes in rows of sixteen, as hex editors show them. */
export function hex(data) {
  const rows = [];
  for (let start = 0; start < data.length; start += 16) {
    const part = data.slice(start, start + 16);
    const codes = [...part].map((byte) => byte.toString(16).padStart(2, "0"));
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const right = codes.slice(8).join(" ").padEnd(23);
    const text = [...part].map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    rows.push(`${start.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  return rows.join("\n");
}

/** Whether some of a message's bytes were left out. */
export function isCut(message) {
  return message.headers_cut || [message.key, message.value, ...message.headers.map(([, value]) => value)].some((part) => part?.cut);
}

export function bytesOf(part) {
  if (!part) return new Uint8Array();
  if (part.text !== undefined) return new TextEncoder().encode(part.text);
  return Uint8Array.from(atob(part.base64), (character) => character.charCodeAt(0));
}
