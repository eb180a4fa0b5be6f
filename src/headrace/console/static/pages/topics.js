// All topics, and making one.

import { breakable, h, icon } from "../lib/dom.js";
import { post } from "../lib/api.js";
import { bytes, count, plural, short } from "../lib/format.js";
import { dialog, empty, field, toast } from "../lib/dialog.js";
import { searchBox, table } from "../lib/table.js";
import { session } from "../lib/session.js";

export const pages = [{ path: "/topics", nav: { label: "Topics", icon: "topics" }, render }];

const COLUMNS = [
  { name: "name", title: "Topic", cell: nameCell, class: "grow" },
  { name: "partitions", title: "Partitions", number: true, cell: (row) => count(row.partitions), class: "wide-only" },
  { name: "replicas", title: "Replicas", number: true, cell: (row) => count(row.replicas), class: "wide-only" },
  { name: "messages", title: "Messages", number: true, cell: (row) => count(row.messages) },
  { name: "size", title: "Size", number: true, class: "wide-only", cell: (row) => bytes(row.size) },
  { name: "rate", title: "Messages/s", number: true, cell: (row) => (row.rate ? short(row.rate) : h("span.muted", "0")) },
];

function render(view, place) {
  const list = table({
    columns: COLUMNS, place,
    onRow: (row) => { location.hash = `#/topics/${encodeURIComponent(row.name)}`; },
    nothing: () => (place.query.q
      ? empty("No topic has that name", `Nothing matches “${place.query.q}”.`)
      : empty("No topics yet", "Producers make them when they write. Or make one here.", createButton())),
  });
  const internal = h("input", { type: "checkbox", on: { change: () => place.change({ internal: internal.checked ? 1 : null, page: null }) } });
  const hidden = h("span");
  view.body.append(
    h("div.toolbar", searchBox(proxy(), "Filter topics"), h("label.check", internal, "Internal topics", hidden)),
    h("section.card.flush", list.node));

  function proxy() {
    return { get query() { return place.query; }, change: (...given) => place.change(...given) };
  }

  function update(now) {
    Object.assign(place, now);
    internal.checked = Boolean(now.query.internal);
    view.title("Topics", { actions: [createButton()], words: ["topic", "list", ...(now.query.internal ? ["--internal"] : [])] });
    view.live("topics", now.query, (data) => {
      if (!data.sampled) return;
      hidden.textContent = data.hidden ? ` (${data.hidden})` : "";
      list.update(data);
    });
  }

  update(place);
  return update;
}

function nameCell(row) {
  return h("span.row", h("a.strong.name", { href: `#/topics/${encodeURIComponent(row.name)}`, title: row.name }, breakable(row.name)),
    row.internal ? h("span.badge.wide-only", "internal") : null,
    row.leaderless ? h("span.badge.bad", `${plural(row.leaderless, "partition")} without a leader`) : null,
    row.behind && !row.leaderless ? h("span.badge.warn", "replicas behind") : null);
}

function createButton() {
  if (session.read_only) return null;
  return h("button.button.primary", { on: { click: create } }, icon("plus"), "Create topic");
}

function create() {
  const name = h("input", { required: true, autofocus: true, pattern: "[A-Za-z0-9._\\-]+", maxlength: 249, placeholder: "orders", spellcheck: "false" });
  const partitions = h("input", { type: "number", min: 1, placeholder: "the broker's default" });
  const replicas = h("input", { type: "number", min: 1, placeholder: "the broker's default" });
  const policy = h("select", h("option", { value: "" }, "the broker's default"), h("option", { value: "delete" }, "delete: by age and size"), h("option", { value: "compact" }, "compact: the newest value of each key"), h("option", { value: "compact,delete" }, "compact and delete"));
  const retention = h("input", { type: "number", min: -1, placeholder: "the broker's default" });
  dialog({
    title: "Create topic", label: "Create",
    body: [field("Name", name, "Letters, digits, dots, hyphens and underscores."),
      h("div.fields", field("Partitions", partitions), field("Replication factor", replicas)),
      h("div.fields", field("Clean-up", policy), field("Retention in ms", retention, "-1 keeps everything."))],
    submit: async () => {
      const settings = {};
      if (policy.value) settings["cleanup.policy"] = policy.value;
      if (retention.value) settings["retention.ms"] = retention.value;
      const body = { name: name.value, settings };
      if (partitions.value) body.partitions = Number(partitions.value);
      if (replicas.value) body.replicas = Number(replicas.value);
      await post("topic/create", body);
      toast(`Topic ${name.value} was created`);
      location.hash = `#/topics/${encodeURIComponent(name.value)}`;
    },
  });
}
