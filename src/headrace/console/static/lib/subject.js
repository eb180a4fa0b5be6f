// What pages of groups, queues, captures and pipelines have in common: states, figures, and forgetting what is gone.

import { h } from "./dom.js";
import { post } from "./api.js";
import { ago, time } from "./format.js";
import { dialog, notice, toast } from "./dialog.js";
import { session } from "./session.js";

const GOOD = new Set(["running", "stable", "done", "ok", "ready"]);
const WARN = new Set(["waiting", "trying again", "starting", "preparingrebalance", "completingrebalance", "reconciling", "assigning", "unacknowledged"]);
const BAD = new Set(["failed", "lost", "dead"]);

export function stateBadge(state) {
  const word = String(state || "unknown");
  const known = word.toLowerCase();
  const kind = GOOD.has(known) ? ".good" : WARN.has(known) ? ".warn" : BAD.has(known) ? ".bad" : "";
  return h(`span.badge.state${kind}`, word);
}

export function link(page, name) {
  return `#/${page}/${encodeURIComponent(name)}`;
}

export function figure(label, value, unit = "", note = "") {
  return h("section.card.tile", h("div.tile-label", label),
    h("div.tile-figure", value, unit ? h("small", unit) : null), note ? h("div.tile-note", note) : null);
}

/** Since when, and which process; for the line below the title. */
export function lifeLine(data) {
  const since = data.alive ? `since ${time(data.since_ms).slice(0, 19)}` : `last heard of ${ago(data.at_ms)}`;
  return [stateBadge(data.state), h("span.muted", since), h("span.muted", data.process)];
}

export function troubles(data) {
  const found = [];
  if (data.state === "lost") found.push(notice("warning", data.error, "Start it again, or forget it if it is not coming back."));
  else if (data.error) found.push(notice("error", data.error));
  return found;
}

/** A button for something that does not run any more; nothing for what does. */
export function forgetButton(kind, data, back) {
  if (session.read_only || data.alive) return null;
  return h("button.button", {
    on: {
      click: () => dialog({
        title: `Forget ${kind} ${data.name}?`, label: "Forget", danger: true,
        body: h("p", "Its record is removed and it is no longer shown here. Nothing that it wrote is deleted; when it runs again, it is back."),
        submit: async () => {
          await post(`${kind}/forget`, { name: data.name });
          toast(`${data.name} was forgotten`);
          location.hash = back;
        },
      }),
    },
  }, "Forget");
}

/** The router's place, whatever it is by the time it is asked. */
export function following(place) {
  return { get query() { return place.query; }, change: (...given) => place.change(...given) };
}
