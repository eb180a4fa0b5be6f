// One message: as a line, and opened.

import { fill, h, icon } from "../lib/dom.js";
import { get } from "../lib/api.js";
import { bytes, zoned } from "../lib/format.js";
import { copy, notice } from "../lib/dialog.js";
import { bytesOf, hex, isCut, parsed, pretty } from "../lib/json.js";
import { session } from "../lib/session.js";
import { command } from "../lib/command.js";
import { produceDialog } from "./produce.js";

const LINE_MAX = 300;

export function preview(part) {
  if (part === null || part === undefined) return h("span.muted", "null");
  if (part.text === undefined) return h("span.muted", `binary, ${bytes(part.size)}`);
  if (part.text === "") return h("span.muted", "empty");
  return part.text.slice(0, LINE_MAX).replace(/\s+/g, " ");
}

/** The opened message; what was cut in the list is asked for. */
export function detail(topic, short, onField) {
  const node = h("div.message-detail");
  draw(short);
  if (isCut(short)) {
    get("message", { topic, partition: short.partition, offset: short.offset }).then(draw).catch((error) => node.prepend(notice("error", error.message, error.hint)));
  }

  function draw(message) {
    fill(node,
      h("div.detail-head",
        h("dl.facts", fact("Time", `${zoned(message.timestamp)}${message.by_broker ? ", by the broker's clock" : ""}`), fact("Partition", message.partition), fact("Offset", message.offset),
          fact("Key", message.key ? bytes(message.key.size) : "null"), fact("Value", message.value ? bytes(message.value.size) : "null")),
        h("div.row.wrap",
          h("button.button.small", { on: { click: () => copy(textOf(message.value), message.value?.cut ? `Only the first part of the value is copied: it has ${bytes(message.value.size)}` : "The value is copied", message.value?.cut ? "warning" : "ok") } }, icon("copy"), "Copy value"),
          h("button.button.small", { on: { click: () => copy(JSON.stringify(whole(topic, message), null, 2), "The message is copied as JSON") } }, icon("copy"), "Copy message"),
          h("button.button.small", { on: { click: () => { const line = command(["consume", topic, "--partition", String(message.partition), "--offset", String(message.offset), "--count", "1"]); copy(line, line); } } }, icon("terminal"), "Copy as command"),
          session.read_only ? null : h("button.button.small", { on: { click: () => produceDialog(topic, message) } }, icon("send"), "Re-publish"))),
      section("Value", message.value, onField),
      message.key === null ? null : section("Key", message.key, null),
      message.headers.length ? h("div.part", h("div.part-head", h("h4", "Headers")), h("table.table.plain.headers", h("tbody", message.headers.map(([name, value]) => h("tr", h("td.mono.strong.wrap-any", name === "" ? h("span.muted", "empty") : name), h("td.mono.wrap-any", value === null ? h("span.muted", "null") : value.text === "" ? h("span.muted", "empty") : value.text ?? `0x${[...bytesOf(value)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`))))),
        message.headers_cut ? h("div.muted", "It has more headers than are shown.") : null) : null);
  }
  return node;
}

function fact(label, value) {
  return h("div", h("dt", label), h("dd", value));
}

function section(title, part, onField) {
  if (part === null) return h("div.part", h("div.part-head", h("h4", title)), h("div.muted", "null"));
  const code = h("pre.code");
  const value = part.text === undefined ? undefined : parsed(part.text);
  const forms = { ...(value === undefined || part.cut ? {} : { JSON: () => pretty(part.text, onField) }), ...(part.text === undefined ? {} : { Text: () => part.text }), Hex: () => hex(bytesOf(part)) };
  const choices = h("div.segmented.small", Object.keys(forms).map((name) => h("button", { on: { click: () => choose(name) } }, name)));
  function choose(name) {
    [...choices.children].forEach((each) => each.setAttribute("aria-pressed", String(each.textContent === name)));
    fill(code, forms[name]());
    code.classList.toggle("hex", name === "Hex");
  }
  choose(Object.keys(forms)[0]);
  return h("div.part", h("div.part-head", h("h4", title), choices), code, part.cut ? h("div.muted", `The first part of ${bytes(part.size)} is shown.`) : null);
}

function textOf(part) {
  return part === null ? "" : part.text ?? part.base64;
}

function whole(topic, message) {
  const shown = { topic, partition: message.partition, offset: message.offset, timestamp: message.timestamp };
  for (const name of ["key", "value"]) {
    const part = message[name];
    if (part !== null && part.text === undefined) shown[`${name}_base64`] = part.base64;
    else shown[name] = part === null ? null : part.text;
  }
  if (message.headers.length) shown.headers = message.headers.map(([name, value]) => [name, value === null ? null : value.text ?? { base64: value.base64 }]);
  return shown;
}
