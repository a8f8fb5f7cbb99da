// compare.js: the comparison page: a bar for each strategy, lines for the bounds, and the numbers in a table.
const rows = data.rows.map((row, number) => ({ ...row, number, time: row.report.iteration_ns }));
const base = rows.find((row) => row.name === "fp32");
const fp32_ns = base ? base.time : rows.length ? rows[0].report.fp32_ns : 0;
const best = rows.reduce((a, b) => (b.time < a.time ? b : a), rows[0]);
const lines = [
    ["accent", "Lower bound", data.bounds.bound_ns],
    ["payload", "Best where compression takes no time", data.bounds.free_compression_ns],
].filter((line) => line[2] > 0);
const shortest = Math.min(...rows.map((row) => row.time)); // its unit is used for all times
const longest = Math.max(...rows.map((row) => row.time), ...lines.map((line) => line[2]));

const parts = (row) => partsOf(row.time, row.report);

// Draws the bars and the lines of the bounds.
function chart(order) {
    const share = 0.78; // fraction of the width; labels need the remaining part
    const place = (ns) => `${100 * share * ns / longest}%`;
    layChart(order.map((row) => bar(row, place)), longest, shortest, place, lines.map(([color, name, ns]) => {
        const line = placed(element("i", { "data-line": color, title: name }), place(ns));
        line.style.borderColor = `var(--${color})`;
        return line;
    }));
}

function bar(row, place) {
    const time = format.time(row.time, shortest), speed = format.ratio(fp32_ns / row.time);
    return element("div", { class: row.ours ? "row ours" : "row", role: "listitem", "data-name": row.name },
        element("div", { class: "name", title: row.summary }, row.name),
        element("div", { class: "track", role: "img", "aria-label": `${row.name}: ${time}, ${speed} the speed of fp32` },
            segments(parts(row), place), element("div", { class: "label" }, time, element("span", { class: "speed" }, speed))));
}

let order = rows;
function arrange(byTime) {
    order = byTime ? rows.slice().sort((a, b) => a.time - b.time || a.number - b.number) : rows;
    find("order-given").setAttribute("aria-pressed", String(!byTime));
    find("order-time").setAttribute("aria-pressed", String(byTime));
    chart(order);
}

function numbers() {
    const cost = (name, key, show, title) => ({ name, title, number: true, value: (row) => row.report[key], cell: (row) => show(row.report[key]) });
    const gap = data.bounds.bound_ns;
    sortedTable(find("row-table"), [
        { name: "Strategy", value: (row) => row.name },
        { name: "Step", number: true, value: (row) => row.time, cell: (row) => format.time(row.time, shortest) },
        { name: "Speed", number: true, title: "fp32 = 1.00", value: (row) => fp32_ns / row.time, cell: (row) => format.ratio(fp32_ns / row.time) },
        ...(gap ? [{ name: "Over the bound", number: true, value: (row) => row.time / gap, cell: (row) => format.percent(Math.max(0, row.time / gap - 1)) }] : []),
        cost("Exposed comm.", "exposed_communication_ns", (ns) => format.time(ns, shortest), "time with no backward running and a link busy"),
        cost("Exposed comp.", "exposed_compression_ns", (ns) => format.time(ns, shortest), "time in which only compression runs"),
        cost("Compressed", "compressed", format.count, "tensors"),
        cost("Units", "n_units", format.count, "what is synchronised as one: a tensor, a chunk, a group"),
        ...outerLevels(rows.map((row) => row.report)).reverse().map(([k, name]) => ({ name: `${name[0].toUpperCase()}${name.slice(1)}`, title: "bytes by an uplink", number: true,
            value: (row) => row.report.level_bytes[k], cell: (row) => format.bytes(row.report.level_bytes[k]) })),
        cost("Inter", "inter_bytes", format.bytes, "bytes by a machine"),
        cost("Intra", "intra_bytes", format.bytes, "bytes by a rank"),
        cost("Memory", "memory_bytes", format.bytes, "residuals and payload buffers of a rank"),
    ], rows, (row) => ({ class: row.ours ? "ours" : null, "data-name": row.name }));
}

// Describes each strategy, and names where it comes from.
function sources() {
    const told = rows.filter((row) => row.summary || row.source);
    find("sources").hidden = told.length === 0;
    find("source-list").append(...told.map((row) => [element("dt", {}, row.name),
        element("dd", {}, row.summary, row.source && element("span", { class: "muted" }, `${row.summary ? " \u2013 " : ""}${row.source}`))]).flat());
}

function summary() {
    heading("Strategies side by side");
    if (!rows.length) return;
    card("best", "Fastest", best.name, `${format.time(best.time)}, ${format.ratio(fp32_ns / best.time)} the speed of fp32`);
    const others = rows.filter((row) => !row.ours);
    if (others.length) {
        const rival = others.reduce((a, b) => (b.time < a.time ? b : a));
        card("rival", "Fastest of the others", rival.name, `${format.time(rival.time)}, ${format.ratio(fp32_ns / rival.time)}`);
    }
    const { bound_ns, free_compression_ns } = data.bounds;
    if (bound_ns) card("bound", "No strategy is faster than", format.time(bound_ns), `${best.name} is ${certificate({ bound_ns, iteration_ns: best.time })}`);
    if (free_compression_ns) card("free", "If compression took no time", format.time(free_compression_ns),
        `${best.name} is ${format.percent(best.time / free_compression_ns - 1)} over it`);
}

summary();
legend([["backward", "Forward, backward, update"], ["comp", "Exposed compression"], ["exposed", "Exposed communication"],
    ...(rows.some((row) => parts(row)[3][2] > row.time / 1e6) ? [["block", "Waiting"]] : []),
    ...lines.map(([color, name, ns]) => [`line-${color}`, `${name}: ${format.time(ns)}`])]);
numbers();
sources();
arrange(false);
find("order-given").addEventListener("click", () => arrange(false));
find("order-time").addEventListener("click", () => arrange(true));
new ResizeObserver(() => chart(order)).observe(find("chart").parentElement);
