// measured.js: the page of strategies that were run: for each a predicted and a measured bar, and the numbers below.
const rows = data.replay.runs.map((row, number) => ({
    ...row, number, time: row.predicted.iteration_ns, known: !row.noisy && row.steps > 0 && row.median_ns > 0,
}));
for (const row of rows) row.error = row.known ? row.time / row.median_ns - 1 : NaN;
const known = rows.filter((row) => row.known);
const least = (some, key) => some.reduce((a, b) => (!a || b[key] < a[key] ? b : a), null);
const fastest = least(known, "median_ns");
const chosen = rows.find((row) => row.name === "espresso+") || least(rows, "time");
const base = rows.find((row) => row.name === "fp32");
const shortest = Math.min(...rows.map((row) => row.time), ...known.map((row) => row.median_ns)); // times are told in its unit
const longest = Math.max(...rows.flatMap((row) => [row.time, row.steps ? row.p90_ns : 0, row.known ? row.median_ns : 0]));
const speeds = {
    predicted: (row) => (base ? base.time : row.predicted.fp32_ns) / row.time,
    measured: (row) => (base && base.known && row.known ? base.median_ns / row.median_ns : NaN),
};
const signedPercent = (x) => (Number.isNaN(x) ? "" : `${x < 0 ? "\u2212" : "+"}${format.percent(Math.abs(x))}`);
const speedText = (x) => (Number.isNaN(x) ? "" : format.ratio(x));
const measuredText = (row, ns = row.median_ns) => (row.known ? format.time(ns, shortest) : row.noisy ? "noisy" : "not run");

function chart(order) {
    const share = Math.max(0.3, 1 - 300 / Math.max(1, find("chart").clientWidth - 130)); // the rest of the width is for labels
    const place = (ns) => `${100 * share * ns / longest}%`;
    layChart(order.map((row) => pair(row, place)), longest, shortest, place, []);
}

function label(word, time, speed, error) {
    return element("div", { class: "label" }, element("span", { class: "word" }, word), element("span", { class: "time" }, time),
        element("span", { class: "speed" }, speed), error && element("span", { class: "error" }, error));
}

function pair(row, place) {
    const says = `${row.name}: predicted ${format.time(row.time, shortest)}, measured ${measuredText(row)}`;
    const measured = element("div", { class: "track measured" }, row.known && segments(partsOf(row.median_ns, row.measured), place),
        label("measured", measuredText(row), speedText(speeds.measured(row)), row.known && `error ${signedPercent(row.error)}`));
    if (row.steps) {
        const whisker = placed(element("div", { class: "whisker", title: `10% to 90%: ${format.time(row.p10_ns)} to ${format.time(row.p90_ns)}` }), place(row.p10_ns));
        whisker.style.width = place(row.p90_ns - row.p10_ns);
        measured.append(whisker);
        // the label begins behind the whisker
        measured.querySelector(".label").style.marginLeft = place(Math.max(0, row.p90_ns - (row.known ? row.median_ns : 0)));
    }
    return element("div", { class: row === chosen ? "row ours" : "row", role: "listitem", "data-name": row.name },
        element("div", { class: "name", title: row.summary }, row.name),
        element("div", { class: "pair", role: "img", "aria-label": says },
            element("div", { class: "track predicted" }, segments(partsOf(row.time, row.predicted), place),
                label("predicted", format.time(row.time, shortest), speedText(speeds.predicted(row)))),
            measured));
}

// Rows with no number come last.
const orders = {
    given: (a, b) => a.number - b.number,
    predicted: (a, b) => a.time - b.time,
    measured: (a, b) => b.known - a.known || (a.known ? a.median_ns - b.median_ns : 0),
    error: (a, b) => b.known - a.known || (a.known ? Math.abs(b.error) - Math.abs(a.error) : 0),
};
let order = rows;
function arrange(by) {
    order = rows.slice().sort((a, b) => orders[by](a, b) || a.number - b.number);
    for (const name of Object.keys(orders)) find(`order-${name}`).setAttribute("aria-pressed", String(name === by));
    chart(order);
}

function numbers() {
    const worst = (x) => (Number.isNaN(x) ? Infinity : x);
    const column = (name, title, value, show) => ({ name, title, number: true, value: (row) => worst(value(row)), cell: (row) => show(value(row), row) });
    const time = (ns) => format.time(ns, shortest);
    const both = (key, name, title) => [column(`${name}, predicted`, title, (row) => row.predicted[key], time),
        column("measured", title, (row) => row.measured[key], time)];
    sortedTable(find("row-table"), [
        { name: "Strategy", value: (row) => row.name },
        column("Predicted", "step", (row) => row.time, time),
        column("Measured", "median step of the slowest rank", (row) => (row.known ? row.median_ns : NaN), (ns, row) => measuredText(row)),
        column("10%", "a tenth of the steps is shorter", (row) => row.p10_ns, time),
        column("90%", "a tenth of the steps is longer", (row) => row.p90_ns, time),
        column("Error", "predicted over measured", (row) => row.error, signedPercent),
        column("Speed, predicted", "fp32 = 1.00", speeds.predicted, speedText),
        column("measured", "fp32 = 1.00", speeds.measured, speedText),
        ...both("exposed_communication_ns", "Exposed comm.", "no backward running, and a link busy"),
        ...both("exposed_compression_ns", "Exposed comp.", "only compression runs"),
        column("Inter", "measured bytes by a machine in a step", (row) => row.measured.inter_bytes, format.bytes),
        column("Intra", "measured bytes by a rank in a step", (row) => row.measured.intra_bytes, format.bytes),
        column("Steps", "measured", (row) => row.steps, format.count),
    ], rows, (row) => ({ class: row === chosen ? "ours" : null, "data-name": row.name }));
}

function summary() {
    runHeading("Predicted and measured");
    if (fastest) card("fastest", "Fastest measured", fastest.name, `${format.time(fastest.median_ns)}${base && base.known ? `, ${speedText(speeds.measured(fastest))} the speed of fp32` : ""}`);
    if (chosen) card("chosen", "The planner's choice", chosen.name, !chosen.known ? "too noisy to be judged"
        : chosen === fastest ? "is the fastest measured"
            : chosen.median_ns <= fastest.p90_ns ? `within the spread of the fastest, ${format.percent(chosen.median_ns / fastest.median_ns - 1)} longer`
                : `${format.percent(chosen.median_ns / fastest.median_ns - 1)} longer than the fastest`);
    if (known.length) {
        const errors = known.map((row) => Math.abs(row.error)).sort((a, b) => a - b), middle = errors.length >> 1;
        const median = errors.length % 2 ? errors[middle] : (errors[middle - 1] + errors[middle]) / 2;
        card("error", "Predicted is off by", format.percent(median), `median of ${known.length} strateg${known.length === 1 ? "y" : "ies"}; most: ${format.percent(errors[errors.length - 1])}`);
    }
    const noisy = rows.filter((row) => row.noisy);
    if (noisy.length) card("noisy", "Too noisy for a number", `${noisy.length} of ${rows.length}`, noisy.map((row) => row.name).join(", "));
}

function keys() {
    legend([["backward", "Forward, backward, update"], ["comp", "Exposed compression"], ["exposed", "Exposed communication"], ["block", "Waiting"]]);
    for (const [key, text] of [["pale", "predicted"], ["full", "measured"], ["whisker-key", "10% to 90% of the steps"]])
        find("legend").append(element("li", {}, element("i", { class: `key ${key}` }), text));
}

function sources() {
    const told = rows.filter((row) => row.summary);
    find("sources").hidden = told.length === 0;
    find("source-list").append(...told.map((row) => [element("dt", {}, row.name), element("dd", {}, row.summary)]).flat());
}

summary();
keys();
numbers();
sources();
arrange("given");
for (const name of Object.keys(orders)) find(`order-${name}`).addEventListener("click", () => arrange(name));
new ResizeObserver(() => chart(order)).observe(find("chart").parentElement);
