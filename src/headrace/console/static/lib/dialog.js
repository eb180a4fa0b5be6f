// Dialogs, short messages, menus.

import { fill, h, icon } from "./dom.js";

let shelf = null;

export function toast(text, kind = "ok") {
  shelf ??= document.body.appendChild(h("div.toasts", { role: "status" }));
  const node = h(`div.toast.${kind}`, icon(kind === "ok" ? "ok" : "alert"), h("span", text));
  shelf.append(node);
  setTimeout(() => node.remove(), kind === "ok" ? 2500 : 6000);
}

export async function copy(text, what = "Copied", kind = "ok") {
  try {
    await navigator.clipboard.writeText(text);
    toast(what, kind);
  } catch {
    dialog({ title: "Copy", body: h("textarea.code", { rows: 6, readonly: true, value: text }) });
  }
}

/**
 * A dialog; `submit` may be async, and what it throws is shown in it. Gives {close, problem}.
 */
export function dialog({ title, body, submit, label = "OK", danger = false, wide = false }) {
  const trouble = h("div");
  const button = submit ? h(`button.button.${danger ? "danger" : "primary"}`, { type: "submit" }, label) : null;
  const form = h("form.dialog-body", { method: "dialog", on: { submit: send } },
    h("header", h("h2", title), h("button.icon-button", { type: "button", "aria-label": "Close", on: { click: close } }, icon("close"))),
    h("div.dialog-content", body), trouble,
    h("footer", h("button.button", { type: "button", on: { click: close } }, submit ? "Cancel" : "Close"), button));
  const node = h(`dialog${wide ? ".wide" : ""}`, { on: { close: () => node.remove(), mousedown: (event) => { if (event.target === node) close(); } } }, form);
  document.body.append(node);
  node.showModal();
  node.querySelector("[autofocus], input, textarea, select")?.focus();

  function close() {
    node.close();
  }
  async function send(event) {
    event.preventDefault();
    if (!submit) return close();
    button.disabled = true;
    try {
      if (await submit() !== false) close();
    } catch (error) {
      problem(error);
    } finally {
      button.disabled = false;
    }
  }
  function problem(error) {
    fill(trouble, notice("error", error.message, error.hint));
  }
  return { close, problem, button, node };
}

export function notice(kind, text, hint = "", ...more) {
  return h(`div.notice.${kind}`, { role: kind === "error" ? "alert" : "note" },
    icon(kind === "ok" ? "ok" : kind === "info" ? "info" : "alert"),
    h("div", h("div.notice-text", text), hint ? h("div.notice-hint", hint) : null, more));
}

export function empty(title, text, ...actions) {
  return h("div.empty", h("div.empty-title", title), h("div.empty-text", text), actions.length ? h("div.row", actions) : null);
}

export function field(label, input, hint = "") {
  return h("label.field", h("span.field-label", label), input, hint ? h("span.field-hint", hint) : null);
}
