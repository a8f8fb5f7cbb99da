"use strict";
// common.js: the page's data, numbers as text, small elements.
const data = JSON.parse(document.getElementById("data").textContent);
const { lanes } = data; // names; lane k + 2 is level k, the last is the core that runs collectives
const isCore = (lane) => lane < 2 || lane === lanes.length - 1;
const laneOrder = [0, 1, lanes.length - 1, ...lanes.keys()].filter((lane, i, all) => all.indexOf(lane) === i); // cores before links
// Returns the kind of a lane. Assumes that training runs on the host's cores.
function laneKind(lane) {
    const { cores } = data.info;
    if (!isCore(lane)) return "link";
    return cores === 1 ? (lane ? "same core" : "core") : cores ? `core ${1 + laneOrder.indexOf(lane)} of ${cores}` : "";
}

function timeUnit(ns) {
    const size = Math.abs(ns);
    return size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
}

const format = {
    // Formats a number with as many decimals as `scale` needs for four digits.
    digits(x, scale = x) {
        const size = Math.abs(scale), n = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
        return x.toLocaleString("en", { minimumFractionDigits: n, maximumFractionDigits: n });
    },
    // Formats nanoseconds, in the unit that suits `scale`.
    time(ns, scale = ns) {
        const [by, unit] = timeUnit(scale);
        return by === 1 ? `${Math.round(ns)} ns` : `${format.digits(ns / by, scale / by)} ${unit}`;
    },
    // Formats a point in time in the unit that suits `end`, so that points can be told apart within `length`.
    moment(ns, end, length) {
        const [by, unit] = timeUnit(end), n = Math.max(0, Math.min(6, Math.ceil(2 - Math.log10(Math.max(length, 1) / by))));
        return `${(ns / by).toLocaleString("en", { minimumFractionDigits: n, maximumFractionDigits: n })} ${unit}`;
    },
    bytes(n) {
        const [by, unit] = n >= 1e9 ? [1e9, "GB"] : n >= 1e6 ? [1e6, "MB"] : n >= 1e3 ? [1e3, "kB"] : [1, "B"];
        return by === 1 ? `${n} B` : `${format.digits(n / by)} ${unit}`;
    },
    count(n) { return n.toLocaleString("en"); },
    percent(share) {
        const x = 100 * share, size = Math.abs(x);
        return `${x.toFixed(size >= 9.95 ? 0 : size >= 0.095 || x === 0 ? 1 : 2)}%`;
    },
    ratio(x) { return `${x.toFixed(2)}\u00d7`; },
};

// Makes an element with attributes and children. Children that are text are never parsed as HTML.
function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
        else if (name === "color") made.style.background = `var(--${value})`;
        else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
    }
    made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return made;
}

const find = (id) => document.getElementById(id);

function card(id, name, value, ...notes) {
    find("summary").append(element("div", { class: "card", "data-testid": id },
        element("div", { class: "name" }, name), value && element("div", { class: "value" }, value),
        notes.flat().filter(Boolean).map((note) => element("div", { class: "note" }, note))));
}

// entries: pairs of colour and text.
function legend(entries) {
    for (const [color, text] of entries) {
        const key = element("i", { class: "key", color });
        if (color === "light") [key.style.background, key.style.opacity, key.style.height] = ["var(--raw)", 0.4, "6px"];
        if (color === "hatch") key.style.background = "repeating-linear-gradient(135deg,var(--hatch) 0 1.5px,transparent 1.5px 4px)";
        find("legend").append(element("li", {}, key, text));
    }
}

// Shows model, codec, system and ranks in one line, and the command that has made the page.
function heading(title) {
    const { model, codec, system, racks, machines, ranks, command } = data.info;
    const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
    const where = machines ? [racks && many(racks, "rack"), many(machines, "machine"), many(ranks, "rank")].filter(Boolean).join(" \u00d7 ") : "";
    find("title").textContent = model ? `${title}: ${model}` : title;
    document.title = find("title").textContent;
    find("subtitle").textContent = [codec && `codec ${codec}`, system && `system ${system}`, where].filter(Boolean).join(" \u00b7 ");
    find("footer").textContent = command ? `Made by: ${command}` : "";
    warn("noisy-inputs", data.info.warning && `Noisy: ${data.info.warning}`);
}

// Shows the warning below the page's title.
function warn(id, text) {
    if (text && !find(id)) find("subtitle").after(element("p", { id, class: "warning" }, text));
}

// Returns the levels outside of machines over which a report moves bytes, as [index in level_bytes, name].
function outerLevels(reports) {
    return lanes.slice(2).map((name, k) => [k, name]).filter(([k]) => k > 1 && reports.some((report) => report.level_bytes[k] > 0));
}

// Says how far a plan can be from the optimum, or "" if there is no bound.
function certificate(report) {
    if (!report.bound_ns) return "";
    const gap = Math.max(0, report.iteration_ns / report.bound_ns - 1);
    return gap < 5e-5 ? "the optimum" : `at most ${format.percent(gap)} above the optimum`;
}

// Makes a table that is sorted when the user clicks a column's head. A column is {name, number, value(row), cell(row)}:
// rows are sorted by value, and show cell if there is one. Returns {rows: Map from row to tr, show(accepts)}.
function sortedTable(table, columns, rows, attributes = () => ({})) {
    const body = element("tbody");
    const made = new Map(rows.map((row) => [row, element("tr", attributes(row), columns.map((column) =>
        element("td", { class: [column.number ? "number" : "", column.style || ""].join(" ").trim() || null },
            column.cell ? column.cell(row) : String(column.value(row)))))]));
    let order = rows.slice(), sorted = null, direction = 1;
    const heads = columns.map((column) => element("th", { class: column.number ? "number" : null, scope: "col", "aria-sort": "none" },
        element("button", { onclick: () => sort(column), title: column.title }, column.name)));
    const fill = () => body.replaceChildren(...order.map((row) => made.get(row)));

    function sort(column) {
        const compare = column.number ? (a, b) => a - b : (a, b) => a.localeCompare(b, "en", { numeric: true });
        direction = sorted === column ? -direction : 1;
        sorted = column;
        order = rows.slice().sort((a, b) => direction * compare(column.value(a), column.value(b)));
        heads.forEach((head, i) => head.setAttribute("aria-sort",
            columns[i] !== column ? "none" : direction > 0 ? "ascending" : "descending"));
        fill();
    }
    table.append(element("thead", {}, element("tr", {}, heads)), body);
    fill();
    return {
        rows: made,
        show(accepts) {
            let shown = 0;
            for (const [row, tr] of made) {
                tr.hidden = !accepts(row);
                shown += !tr.hidden;
            }
            return shown;
        },
    };
}
