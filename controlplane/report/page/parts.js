"use strict";
// Elements and formats that every part of the page uses.

/** Make an element; `attributes` with a value of null or false are left out, children may be strings. */
function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === false || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
}

const dash = "–";
const known = (value) => value !== null && value !== undefined;
const number = (value, digits = 1) => (known(value) ? value.toFixed(digits) : dash);
const share = (value) => `${Number(value.toFixed(2))} %`;
const rate = (value) => (known(value) ? String(Number(value.toFixed(value < 10 ? 2 : 0))) : dash);
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

const palette = ["#9ecae9", "#ffbf79", "#a7d98f", "#eaa9a3", "#c9b3e0", "#e3d07a", "#9fd8cf", "#d9b99b"];

/** Return the colour of each model, in the order of their names. */
function coloursOf(models) {
  const names = [...new Set(models)].sort();
  return new Map(names.map((name, index) => [name, palette[index % palette.length]]));
}

function section(id, title, ...children) {
  return el("section", { "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title`, tabindex: "-1" }, title), children);
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => known(value) && value !== dash);
  return el("dl", { class: "facts" }, shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** Whether any GPU type has a price. */
const priced = (prices) => Object.values(prices).some((price) => price > 0);

/** The prices per hour of GPU types, in words. */
function priceWords(prices) {
  return Object.entries(prices).map(([type, price]) => `${type} ${price > 0 ? number(price, 2) : "unknown"}`).join(", ");
}

/** A table with plain cells; `columns` are {title, number, wide, cell(row)}; the first one is the row's header. */
function plainTable(caption, columns, rows, classOf = () => null) {
  const cellClass = (column) => [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;
  return el(
    "table", {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: cellClass(c) }, c.title)))),
    el("tbody", {}, rows.map((row) => el("tr", { class: classOf(row) }, columns.map((column, index) =>
      el(index ? "td" : "th", { scope: index ? null : "row", class: cellClass(column) }, column.cell(row)))))),
  );
}

function scrolling(label, ...children) {
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, children);
}
