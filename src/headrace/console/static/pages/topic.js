// One topic: its messages, partitions, settings, and what can be done to it.

import { breakable, fill, h, icon, renew } from "../lib/dom.js";
import { get, post } from "../lib/api.js";
import { chart, rangePicker } from "../lib/chart.js";
import { bytes, count, explained, plural, short } from "../lib/format.js";
import { dialog, empty, field, notice, toast } from "../lib/dialog.js";
import { session } from "../lib/session.js";
import { small } from "./overview.js";
import { messageBrowser } from "./messages.js";
import { produceDialog } from "./produce.js";

export const pages = [{ path: "/topics/:name", render }];

const TABS = { messages: "Messages", partitions: "Partitions", settings: "Settings", groups: "Groups" };

function render(view, place) {
  const name = place.params.name;
  const tabs = h("div.tabs", { role: "tablist" });
  const content = h("div");
  const figures = h("span.figures");
  let tab = null;
  let changed = null;
  view.body.append(tabs, content);

  function head(now, words) {
    view.title(name, {
      trail: [["Topics", "#/topics"]], note: figures, words,
      actions: [session.read_only ? null : h("button.button", { on: { click: () => produceDialog(name) } }, icon("send"), h("span", "Produce")), menu(name)],
    });
  }

  function update(now) {
    const next = TABS[now.query.tab] ? now.query.tab : "messages";
    fill(tabs, Object.entries(TABS).map(([key, label]) => h("button", {
      role: "tab", "aria-selected": String(key === next), on: { click: () => now.change({ tab: key === "messages" ? null : key }) },
    }, label)));
    if (next !== tab) {
      tab = next;
      changed = { messages, partitions, settings, groups }[tab](view, name, content, figures);
    }
    const words = changed(now);
    head(now, words);
  }

  update(place);
  return update;
}

function showFigures(figures, data) {
  fill(figures, [plural(data.partitions.length, "partition"), plural(data.messages, "message"), data.size === null ? null : bytes(data.size), `${short(data.rate)} messages/s`]
    .filter(Boolean).map((text) => h("span", text)));
}

// ---- tabs -----------------------------------------------------------------------------------------------------------

function messages(view, name, content, figures) {
  const browser = messageBrowser(view, name);
  fill(content, browser.node);
  view.load(() => get("topic", { name }), (data) => {
    showFigures(figures, data);
    browser.partitions(data.partitions.length);
  }, () => browser.node.isConnected);
  return (now) => {
    browser.update(now);
    return () => browser.words();
  };
}

function partitions(view, name, content, figures) {
  const rate = chart({ title: "Messages written", unit: "messages/s", colours: [0] });
  const list = h("div");
  const range = h("div");
  fill(content, h("div.toolbar", range), h("div.stack", rate.node, h("section.card.flush", list)));
  return (now) => {
    fill(range, rangePicker(now));
    view.live("topic", { name, range: now.query.range }, (data) => {
      showFigures(figures, data);
      rate.update(data.chart);
      renew(list, small(data.partitions, [
        ["Partition", (row) => row.partition, true],
        ["Leader", (row) => (row.leader === null ? h("span.badge.bad", "none") : row.leader), true],
        ["In sync / replicas", (row) => `${row.in_sync.join(", ")} / ${row.replicas.join(", ")}`, false, "wide-only"],
        ["Start", (row) => count(row.start), true, "wide-only"],
        ["End", (row) => count(row.end), true],
        ["Messages", (row) => count(row.messages), true],
        ["Size", (row) => bytes(row.size), true],
      ], () => empty("No partitions", "")));
    });
    return ["topic", "describe", name];
  };
}

function groups(view, name, content, figures) {
  fill(content);
  return () => {
    view.live("topic", { name }, (data) => {
      showFigures(figures, data);
      renew(content, h("section.card.flush", small(data.groups, [
        ["Group", (row) => h("a.strong.wrap-any", { href: `#/groups/${encodeURIComponent(row.name)}` }, breakable(row.name))],
        ["State", (row) => row.state || "–", false, "wide-only"],
        ["Total lag", (row) => count(row.lag), true],
      ], () => empty("No group reads this topic", "A group is shown when it has committed an offset in this topic."), { clip: false })));
    });
    return ["group", "list"];
  };
}

function settings(view, name, content) {
  const list = h("tbody");
  const filter = h("input", { type: "search", placeholder: "Filter settings", "aria-label": "Filter settings", on: { input: draw } });
  const own = h("input", { type: "checkbox", on: { change: draw } });
  let known = [];
  fill(content, h("div.toolbar", h("label.search-box", icon("search"), filter), h("label.check", own, "Only those set on this topic")),
    h("section.card.flush", h("div.table-frame", h("table.table.settings",
      h("thead", h("tr", h("th", "Setting"), h("th.number", "Value"), h("th.number", "If unset"), h("th", "From"), h("th", ""))), list))));

  function draw() {
    const words = filter.value.toLowerCase();
    const rows = known.filter((each) => (!own.checked || each.own) && `${each.name} ${each.doc}`.toLowerCase().includes(words));
    fill(list, rows.length ? rows.map(row) : h("tr.no-hover", h("td", { colspan: 5 }, empty("No setting", own.checked ? "All settings of this topic come from the broker or are defaults." : "Nothing matches."))));
  }

  function row(each) {
    const meaning = explained(each.name, each.value);
    return h("tr",
      h("td", h("div.mono.strong", each.name), h("div.muted.doc", plainText(each.doc))),
      h("td.number", h("span.mono", each.sensitive ? "(secret)" : each.value || h("span.muted", "empty")), meaning ? h("div.muted", meaning) : null),
      h("td.number.muted.mono", each.own ? each.inherited ?? "–" : ""),
      h("td", each.own ? h("span.badge.accent", "this topic") : h("span.muted", each.from)),
      h("td.number", session.read_only || each.read_only ? null : h("button.icon-button", { "aria-label": `Change ${each.name}`, title: "Change", on: { click: () => change(name, each, load) } }, icon("edit"))));
  }

  function load() {
    return view.load(() => get("topic/settings", { name }), (found) => { known = found.settings; draw(); }, () => list.isConnected);
  }
  load();
  return () => ["topic", "describe", name, "--all"];
}

/** Apache Kafka's documentation of settings has HTML in it. */
function plainText(text) {
  return text.replace(/<[^>]*>/g, "");
}

// ---- changes --------------------------------------------------------------------------------------------------------

function change(name, each, done) {
  const input = h("input.mono", { value: each.value ?? "", autofocus: true, spellcheck: "false", on: { input: tell } });
  const remove = h("input", { type: "checkbox", on: { change: tell } });
  const plan = h("div.plan");
  function describe(value) {
    const meaning = explained(each.name, value);
    return `${value === "" || value === null ? "empty" : value}${meaning ? ` (${meaning})` : ""}`;
  }
  function tell() {
    input.disabled = remove.checked;
    const next = remove.checked ? each.inherited ?? "" : input.value;
    const same = next === (each.value ?? "") && !(remove.checked && each.own);
    fill(plan, same ? h("span.muted", "Nothing changes yet.") : [h("span.mono.old", describe(each.value ?? "")), " → ", h("span.mono.new", describe(next)),
      remove.checked ? h("div.muted", "The topic follows the broker's setting again.") : h("div.muted", "Holds at once, for this topic only.")]);
  }
  tell();
  dialog({
    title: each.name, label: "Change",
    body: [h("p.muted", plainText(each.doc)), field("Value", input), each.own ? h("label.check", remove, "Remove it from this topic, so that the broker's setting holds") : null,
      h("div.field-label", "What changes"), plan],
    submit: async () => {
      await post("topic/alter", remove.checked ? { name, remove: [each.name] } : { name, put: { [each.name]: input.value } });
      toast(`${each.name} was changed`);
      done();
    },
  });
}

function menu(name) {
  if (session.read_only) return null;
  return h("details.menu", h("summary.button", { "aria-label": "More" }, "More", icon("down")), h("div.menu-list",
    h("button", { on: { click: () => grow(name) } }, icon("plus"), "Add partitions"),
    h("button", { on: { click: () => destroy(name, "topic/empty", "Delete all messages", `All messages of ${name} are deleted. The topic, its settings and the offsets of groups stay.`, "Delete messages") } }, icon("trash"), "Delete all messages"),
    h("button.bad", { on: { click: () => destroy(name, "topic/delete", "Delete topic", `${name}, its messages and its settings are deleted. This cannot be undone.`, "Delete topic") } }, icon("trash"), "Delete topic")));
}

function grow(name) {
  const total = h("input", { type: "number", min: 1, required: true, autofocus: true });
  dialog({
    title: "Add partitions", label: "Add",
    body: [field("Partitions in all", total), notice("warning", "Keys move", "From now on many keys go to another partition than before, so the order per key holds only from here on. The number never shrinks.")],
    submit: async () => {
      await post("topic/grow", { name, partitions: Number(total.value) });
      toast("Partitions were added");
      location.hash = `#/topics/${encodeURIComponent(name)}?tab=partitions`;
    },
  });
}

function destroy(name, action, title, text, label) {
  const typed = h("input.mono", { required: true, autofocus: true, autocomplete: "off", spellcheck: "false", placeholder: name, on: { input: () => { shown.button.disabled = typed.value !== name; } } });
  const shown = dialog({
    title, label, danger: true,
    body: [h("p", text), field(`Type the name to confirm`, typed)],
    submit: async () => {
      await post(action, { name, confirm: typed.value });
      toast(action === "topic/delete" ? `Topic ${name} was deleted` : `The messages of ${name} were deleted`);
      location.hash = action === "topic/delete" ? "#/topics" : `#/topics/${encodeURIComponent(name)}?tab=partitions`;
    },
  });
  shown.button.disabled = true;
}
