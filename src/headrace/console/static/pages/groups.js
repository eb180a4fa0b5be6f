// Groups: how far behind they are, who reads what, and where they go on reading.

import { breakable, fill, h, icon, renew } from "../lib/dom.js";
import { get, post } from "../lib/api.js";
import { chart, rangePicker } from "../lib/chart.js";
import { command } from "../lib/command.js";
import { count, plural, short } from "../lib/format.js";
import { dialog, empty, field, notice, toast } from "../lib/dialog.js";
import { following, link, stateBadge } from "../lib/subject.js";
import { searchBox, table } from "../lib/table.js";
import { session } from "../lib/session.js";
import { small } from "./overview.js";

export const pages = [
  { path: "/groups", nav: { label: "Groups", icon: "groups" }, render: renderList },
  { path: "/groups/:name", render: renderGroup },
];

const COLUMNS = [
  { name: "name", title: "Group", class: "grow", cell: (row) => h("a.strong.name", { href: link("groups", row.name), title: row.name }, breakable(row.name)) },
  { name: "state", title: "State", cell: (row) => stateBadge(row.state) },
  { name: "lag", title: "Lag", number: true, cell: (row) => count(row.lag) },
  { name: "rate", title: "Read/s", number: true, cell: (row) => (row.rate ? short(row.rate) : h("span.muted", "0")) },
  { name: "topics", title: "Topics", class: "wide-only", sort: false, cell: (row) => h("div.muted.clip.topics-cell", { title: row.topics.join(", ") }, row.topics.slice(0, 3).join(", ") + (row.topics.length > 3 ? ` and ${row.topics.length - 3} more` : "")) },
  { name: "kind", title: "Protocol", class: "wide-only", cell: (row) => row.kind },
];

function renderList(view, place) {
  const list = table({
    columns: COLUMNS, place,
    onRow: (row) => { location.hash = link("groups", row.name); },
    nothing: () => (place.query.q ? empty("No group has that name", `Nothing matches “${place.query.q}”.`)
      : empty("No groups yet", "A consumer with a group.id makes one. Pipelines on Spark show their positions as groups too.")),
  });
  view.body.append(h("div.toolbar", searchBox(following(place), "Filter groups")), h("section.card.flush", list.node));
  function update(now) {
    Object.assign(place, now);
    view.title("Groups", { words: ["group", "list"] });
    view.live("groups", now.query, list.update);
  }
  update(place);
  return update;
}

function renderGroup(view, place) {
  const name = place.params.name;
  const note = h("span.figures");
  const lag = chart({ title: "Lag", unit: "messages", colours: [3], names: { lag: "lag" } });
  const rate = chart({ title: "Read", unit: "messages/s", colours: [1], names: { read: "read" } });
  const partitions = h("div");
  const members = h("div");
  view.body.append(h("div.grid.two", lag.node, rate.node),
    h("section.card.flush", h("header.card-head", h("h3", "Partitions")), partitions),
    h("section.card.flush", h("header.card-head", h("h3", "Members")), members));
  let data = null;

  function update(now) {
    Object.assign(place, now);
    view.title(name, {
      trail: [["Groups", "#/groups"]], note, words: ["group", "describe", name],
      actions: [rangePicker(now),
        session.read_only ? null : h("button.button", { on: { click: () => resetDialog(name, data) } }, icon("edit"), h("span", "Reset offsets")),
        session.read_only ? null : h("button.button.danger", { on: { click: () => deleteDialog(name) } }, icon("trash"), h("span", "Delete"))],
    });
    view.live("group", { name, range: now.query.range }, show);
  }

  function show(found) {
    data = found;
    fill(note, stateBadge(found.state), h("span", `${count(found.lag)} behind`), h("span", plural(found.members.length, "member")), found.assignor ? h("span.muted", found.assignor) : null);
    lag.update(found.charts.lag);
    rate.update(found.charts.rate);
    renew(partitions, small(found.partitions, [
      ["Topic", (row) => h("a", { href: link("topics", row.topic) }, row.topic)],
      ["Partition", (row) => row.partition, true],
      ["Committed", (row) => count(row.committed), true, "wide-only"],
      ["End", (row) => count(row.end), true, "wide-only"],
      ["Lag", (row) => (row.lag ? h("b", count(row.lag)) : count(row.lag)), true],
      ["Read by", (row) => row.member || h("span.muted", "nobody"), false, "wide-only"],
    ], () => empty("No offsets", "The group has committed nothing and nothing is assigned.")));
    renew(members, small(found.members, [
      ["Client", (row) => h("span.strong", row.client)],
      ["Host", (row) => row.host],
      ["Partitions", (row) => (row.partitions.length ? ranges(row.partitions) : h("span.muted", "none"))],
      ["Member id", (row) => h("div.muted.clip.topics-cell", { title: row.id }, row.instance || row.id), false, "wide-only"],
    ], () => (found.pipeline
      ? empty("No members", "The group shows how far a pipeline is. Spark goes on from its checkpoint and never reads it.", h("a.button", { href: link("pipelines", found.pipeline) }, found.pipeline))
      : empty("No members", "Nobody reads for this group now. Its offsets can be reset.")), { clip: false }));
  }

  update(place);
  return update;
}

/** ["a[0]", "a[1]", "a[2]", "a[7]"] → a 0–2, 7 */
function ranges(partitions) {
  const found = new Map();
  for (const each of partitions) {
    const [, topic, index] = each.match(/^(.*)\[(\d+)\]$/s);
    const runs = found.get(topic) || found.set(topic, []).get(topic);
    if (runs.at(-1)?.[1] === index - 1) runs.at(-1)[1] = Number(index);
    else runs.push([Number(index), Number(index)]);
  }
  return [...found].map(([topic, runs]) => h("div.wrap-any", topic, " ", runs.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ")));
}

// ---- reset: a plan first, then exactly what the plan says -------------------------------------------------------------

function resetDialog(name, data) {
  const topics = [...new Set((data?.partitions || []).map((each) => each.topic))];
  const topic = h("select", { name: "topic" }, topics.length > 1 || !topics.length ? h("option", { value: "" }, "all that it has offsets in") : null, topics.map((each) => h("option", { value: each }, each)));
  const where = h("select", { name: "where" }, h("option", { value: "earliest" }, "the beginning"), h("option", { value: "latest" }, "the end"), h("option", { value: "offset" }, "an offset"), h("option", { value: "back" }, "so many before the end"), h("option", { value: "time" }, "a time"));
  const number = h("input", { type: "number", min: 0, name: "number", placeholder: "42" });
  const moment = h("input", { type: "datetime-local", step: 1, name: "moment" });
  const extra = h("div");
  const plan = h("div.plan");
  let rows = null;

  function place() {
    if (where.value === "offset") return number.value;
    if (where.value === "back") return `-${number.value || 0}`;
    if (where.value === "time") return moment.value ? `@${new Date(moment.value).getTime()}` : "";
    return where.value;
  }
  function words() {
    return ["group", "reset", name, "--to", place(), ...(topic.value ? ["--topic", topic.value] : [])];
  }
  function changed() {
    rows = null;
    const kind = where.value;
    fill(extra, kind === "offset" ? field("Offset", number) : kind === "back" ? field("Messages", number) : kind === "time" ? field("Time", moment, "The first message at or after this time.") : null);
    fill(plan);
    box.button.textContent = "Preview";
  }
  async function look() {
    if (!place()) throw new Error("Say where to.");
    const found = await get("group/reset-plan", { name, topic: topic.value, to: place() });
    rows = found.rows;
    const moved = found.rows.filter((row) => row.from !== row.to);
    fill(plan, found.refusal ? notice("warning", `The group cannot be reset now: ${found.refusal}.`) : null,
      h("p", `Dry run, nothing is changed: ${plural(moved.length, "partition")} of ${found.rows.length} would move.`),
      h("div.plan-rows", small(found.rows, [
        ["Topic", (row) => row.topic],
        ["Partition", (row) => row.partition, true],
        ["From", (row) => count(row.from), true],
        ["To", (row) => h("b", count(row.to)), true],
        ["Lag after", (row) => count(row.lag), true],
      ], () => empty("No partitions", ""))),
      h("code.command", command(words())));
    if (found.refusal) rows = null;
    else box.button.textContent = "Reset to these offsets";
    return false;
  }
  const box = dialog({
    title: `Reset offsets of ${name}`, wide: true, label: "Preview",
    body: [h("div.fields", field("Topic", topic), field("Reset to", where)), extra, plan],
    submit: async () => {
      if (!rows) return look();
      await post("group/reset", { name, offsets: rows.map(({ topic: each, partition, to }) => ({ topic: each, partition, to })) });
      toast(`The offsets of ${name} were reset`);
      return true;
    },
  });
  [topic, where, number, moment].forEach((input) => input.addEventListener("input", () => (input === number || input === moment ? (rows = null, fill(plan), box.button.textContent = "Preview") : changed())));
  changed();
}

function deleteDialog(name) {
  dialog({
    title: `Delete group ${name}?`, label: "Delete", danger: true,
    body: h("p", "Its committed offsets are deleted. Consumers that join again begin where their auto.offset.reset says. A group with members cannot be deleted."),
    submit: async () => {
      await post("group/delete", { name });
      toast(`Group ${name} was deleted`);
      location.hash = "#/groups";
    },
  });
}
