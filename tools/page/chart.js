// chart.js: elements of a bar chart: the segments of a bar, ticks of the axis, lines. Must not know the page.
// Divides a step into segments. Their times add up to the step time.
function partsOf(time, report) {
    const { exposed_communication_ns: communication, exposed_compression_ns: compression } = report;
    const compute = Math.min(data.base_ns || time - communication - compression, time);
    return [["backward", "Forward, backward, update", compute], ["comp", "Exposed compression", compression],
        ["exposed", "Exposed communication", communication],
        ["block", "Waiting", Math.max(0, time - compute - communication - compression)]];
}

// Returns about six ticks, at round numbers, for an axis from 0 to `end`.
function axisSteps(end) {
    const power = 10 ** Math.floor(Math.log10(end / 6));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => end / s <= 7);
    return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step);
}

function placed(made, left) {
    made.style.left = left;
    return made;
}

// Places the bars, the axis below them, its ticks' lines behind them, and the lines of bounds in front of them.
function layChart(bars, longest, shortest, place, over) {
    const steps = axisSteps(longest), [by, unit] = timeUnit(shortest);
    const decimals = steps.length > 1 ? Math.max(0, Math.ceil(-Math.log10(steps[1] / by) - 1e-9)) : 0;
    const axis = element("div", { class: "axis", "aria-hidden": "true" }, steps.map((ns) =>
        placed(element("span", {}, ns ? `${(ns / by).toLocaleString("en", { minimumFractionDigits: decimals })} ${unit}` : "0"), place(ns))));
    const ticks = element("div", { class: "lines" }, steps.map((ns) => placed(element("i", { class: "tick" }), place(ns))));
    const lines = element("div", { class: "lines over" }, over);
    find("chart").replaceChildren(ticks, ...bars, element("div"), axis, lines);
    for (const layer of [ticks, lines]) {
        layer.style.left = `${axis.offsetLeft}px`;
        layer.style.width = `${axis.offsetWidth}px`;
    }
}

function segments(parts, place) {
    return parts.map(([color, name, ns]) => {
        const segment = element("div", { class: "segment", color, title: `${name}: ${format.time(ns)}` });
        segment.style.width = place(ns);
        return segment;
    });
}
