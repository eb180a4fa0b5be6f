// Tables whose rows, order and pages come from the server.

import { fill, h, icon, renew } from "./dom.js";
import { count } from "./format.js";
import { empty } from "./dialog.js";

/**
 * columns: [{name, title, cell(row), number, sort: false, class}]
 * place: the router's; sort, page and q live in its address, so that a link shows the same table.
 */
export function table({ columns, place, onRow, nothing, sortable = true }) {
  const head = h("tr");
  const body = h("tbody");
  const foot = h("div.pager");
  const frame = h("div.table-frame", h("table.table", h("thead", head), body));
  const node = h("div", frame, foot);
  let page = 1;

  function update(data) {
    const order = data.sort || "";
    page = data.page;
    renew(head, columns.map((column) => title(column, order)));
    if (!data.rows.length) {
      fill(body, h("tr.no-hover", h("td", { colspan: columns.length }, nothing ? nothing() : empty("Nothing here", ""))));
    } else {
      renew(body, data.rows.map(row));
      data.rows.forEach((each, index) => { body.rows[index].shown = each; });
    }
    renew(foot, pager(data));
  }

  function title(column, order) {
    const own = order.replace(/^-/, "") === column.name;
    const direction = own ? (order.startsWith("-") ? "descending" : "ascending") : "none";
    const can = sortable && column.sort !== false;
    return h("th", { class: `${column.number ? "number" : ""} ${column.class || ""}`, "aria-sort": can ? direction : null, scope: "col" },
      can ? h("button.sort", { on: { click: () => sort(column, order) } }, h("span", column.title),
        own ? h("span.arrow", order.startsWith("-") ? "↓" : "↑") : null) : column.title);
  }

  function sort(column, order) {
    const first = column.number ? `-${column.name}` : column.name;
    const second = column.number ? column.name : `-${column.name}`;
    place.change({ sort: order === first ? second : first, page: null });
  }

  function row(data) {
    const node = h("tr", { on: onRow ? { click: (event) => { if (!event.target.closest("a,button,input")) onRow(event.currentTarget.shown); } } : {}, class: onRow ? "link" : "" },
      columns.map((column) => h("td", { class: `${column.number ? "number" : ""} ${column.class || ""}` }, column.cell(data))));
    return node;
  }

  function pager(data) {
    if (data.pages === undefined || (data.pages <= 1 && !data.total)) return null;
    return [
      h("span.muted", data.pages > 1 ? `Page ${count(data.page)} of ${count(data.pages)} · ${count(data.total)} in all` : `${count(data.total)} in all`),
      data.pages > 1 ? h("span.row",
        h("button.button.small", { disabled: data.page <= 1, on: { click: () => place.change({ page: page - 1 }) } }, "Previous"),
        h("button.button.small", { disabled: data.page >= data.pages, on: { click: () => place.change({ page: page + 1 }) } }, "Next")) : null,
    ];
  }

  return { node, update };
}

/** A box that filters a table; the address follows a moment after the last key. */
export function searchBox(place, placeholder) {
  let timer = null;
  const input = h("input", {
    type: "search", placeholder, value: place.query.q || "", "aria-label": placeholder,
    on: {
      input: () => {
        clearTimeout(timer);
        timer = setTimeout(() => place.change({ q: input.value || null, page: null }, { replace: true }), 150);
      },
    },
  });
  function follow() {  // Back and links change what is searched for, too
    if (!input.isConnected) removeEventListener("hashchange", follow);
    else if (document.activeElement !== input) input.value = place.query.q || "";
  }
  addEventListener("hashchange", follow);
  return h("label.search-box", icon("search"), input);
}
