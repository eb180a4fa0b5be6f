// Sending a message: a new one, one from a template, or one that was there before.

import { fill, h, icon } from "../lib/dom.js";
import { get, post } from "../lib/api.js";
import { dialog, field, notice, toast } from "../lib/dialog.js";
import { load, save } from "../lib/store.js";
import { plural } from "../lib/format.js";
import { isCut } from "../lib/json.js";

const TEMPLATES_MAX = 20;

/** `message` is one to publish again, as the browser got it. */
export async function produceDialog(topic, message = null) {
  if (message && isCut(message)) {
    message = await get("message", { topic, partition: message.partition, offset: message.offset }).catch(() => message);
  }
  const target = h("input.mono", { value: topic, required: true, spellcheck: "false" });
  const partition = h("input", { type: "number", min: 0, placeholder: "by key" });
  const times = h("input", { type: "number", min: 1, max: 1000, value: 1 });
  const key = editor("Key", message ? message.key : null, 1);
  const value = editor("Value", message ? message.value : { text: "" }, 8);
  const headers = headerRows(message ? message.headers : []);
  const template = h("input", { type: "checkbox" });
  const saved = templateMenu();
  const cut = message && isCut(message);

  const shown = dialog({
    title: message ? "Re-publish message" : "Produce message", label: "Send", wide: true,
    body: [
      cut ? notice("warning", "This message is larger than the console shows", "Only the first part of what is cut would be sent. Use headrace consume and produce instead.") : null,
      h("div.fields.three", field("Topic", target), field("Partition", partition), field("How many", times)),
      key.node, value.node, headers.node,
      h("div.row.wrap", h("label.check", template, "Fill in ", h("code", "{{n}}"), h("code", "{{uuid}}"), h("code", "{{now}}"), h("code", "{{now_ms}}")), saved),
    ],
    submit: async () => {
      const body = { topic: target.value, key: key.value(), value: value.value(), headers: headers.value(), template: template.checked, count: Number(times.value) || 1 };
      if (partition.value !== "") body.partition = Number(partition.value);
      const done = await post("produce", body);
      const first = done.at[0];
      toast(done.sent === 1 && first ? `Sent to partition ${first.partition}, offset ${first.offset}` : `${plural(done.sent, "message")} sent`);
    },
  });
  value.focus();
  return shown;

  function templateMenu() {
    const list = h("div.menu-list");
    const node = h("details.menu", { on: { toggle: () => { if (node.open) draw(); } } }, h("summary.button.small", icon("star"), "Templates"), list);
    function draw() {
      const all = load(`templates.${topic}`, []);
      fill(list, all.map((each) => h("div.menu-row", h("button", { type: "button", on: { click: () => { node.open = false; key.set(each.key); value.set(each.value); headers.set(each.headers); template.checked = each.template; } } }, each.name),
        h("button.icon-button", { type: "button", "aria-label": `Delete template ${each.name}`, on: { click: () => { save(`templates.${topic}`, all.filter((other) => other !== each)); draw(); } } }, icon("close")))),
      h("button", { type: "button", on: { click: () => { node.open = false; keep(all); } } }, icon("plus"), "Save as template"));
    }
    return node;
  }

  function keep(all) {
    const name = h("input", { required: true, autofocus: true });
    dialog({
      title: "Save template", label: "Save", body: field("Name", name, "Kept in this browser, for this topic."),
      submit: () => {
        const made = { name: name.value, key: part(key.value()), value: part(value.value()), headers: headers.value().map(([each, content]) => [each, part(content)]), template: template.checked };
        save(`templates.${topic}`, [made, ...all.filter((each) => each.name !== made.name)].slice(0, TEMPLATES_MAX));
        toast("The template is saved");
      },
    });
  }
}

function part(value) {
  return value === null ? null : typeof value === "string" ? { text: value } : value;
}

/** Text, base64 or null. */
function editor(label, given, rows) {
  const text = h("textarea.mono", { rows, spellcheck: "false", "aria-label": label, on: { input: tell } });
  const hint = h("span.field-hint.warn");
  const kind = h("select", { "aria-label": `Kind of ${label}` }, [["text", "text"], ["base64", "base64"], ["null", "null"]].map(([value, name]) => h("option", { value }, name)));
  kind.addEventListener("change", () => { text.disabled = kind.value === "null"; tell(); });
  set(given);
  function tell() {
    hint.textContent = kind.value === "text" ? brokenJson(text.value) : "";
  }
  function set(content) {
    kind.value = content === null ? "null" : content.text === undefined ? "base64" : "text";
    text.value = content === null ? "" : content.text ?? content.base64;
    text.disabled = kind.value === "null";
    tell();
  }
  return {
    node: h("div.field", h("span.field-label.row.between", label, kind), text, hint),
    value: () => (kind.value === "null" ? null : kind.value === "base64" ? { base64: text.value.trim() } : text.value),
    set,
    focus: () => text.focus(),
  };
}

/** What is wrong with a text that looks like JSON and is none; {{…}} of templates stand for numbers. */
function brokenJson(text) {
  if (!/^\s*[{[]/.test(text)) return "";
  try {
    JSON.parse(text.replace(/\{\{\s*\w+\s*\}\}/g, "0"));
    return "";
  } catch (error) {
    return `This is not JSON, and is sent as it is: ${error.message}`;
  }
}

function headerRows(given) {
  const list = h("div.header-rows");
  function add(name = "", value = { text: "" }) {
    const row = h("div.row.header-row", h("input.mono", { placeholder: "name", value: name, "aria-label": "Header name" }),
      h("input.mono.grow", { placeholder: "value", value: value === null ? "" : value.text ?? "", "aria-label": "Header value", disabled: value !== null && value.text === undefined }),
      h("button.icon-button", { type: "button", "aria-label": "Remove header", on: { click: () => row.remove() } }, icon("close")));
    row.content = value;
    list.append(row);
  }
  function set(all) {
    fill(list);
    all.forEach(([name, value]) => add(name, value));
  }
  set(given);
  return {
    node: h("div.field", h("span.field-label.row.between", "Headers", h("button.button.small", { type: "button", on: { click: () => add() } }, icon("plus"), "Add")), list),
    value: () => [...list.children].map((row) => {
      const [name, value] = row.querySelectorAll("input");
      return [name.value, value.disabled ? { base64: row.content.base64 } : row.content === null && value.value === "" ? null : value.value];
    }).filter(([name]) => name !== ""),
    set,
  };
}
