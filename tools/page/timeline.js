// timeline.js: the timeline page: summary, picture, tooltip, the selected tensor, the table. It shows two plans: fp32
// and the plan, or the predicted and the measured plan. The table is about the second one.
const plans = data.plans.map((raw) => new Plan(raw, data.model.tensors, data.model));
const plan = plans[plans.length - 1], base = plans.length > 1 ? plans[0] : null;
if (!plan.report.fp32_ns) plan.total = Math.max(plan.total, plan.report.iteration_ns); // true if it was measured

function stepCard({ report }) {
    if (!report.fp32_ns) { // true if it was measured
        const error = base.report.iteration_ns / report.iteration_ns - 1;
        return card("step", "Step, predicted \u2192 measured", `${format.time(base.report.iteration_ns, report.iteration_ns)} \u2192 ${format.time(report.iteration_ns)}`,
            `predicted is ${format.percent(Math.abs(error))} ${error < 0 ? "less" : "more"}`);
    }
    return card("step", data.info.inner ? `${data.info.inner} steps, fp32 in each \u2192 a round` : "Step, fp32 \u2192 planned", `${format.time(report.fp32_ns, report.iteration_ns)} \u2192 ${format.time(report.iteration_ns)}`,
        `${format.ratio(report.fp32_ns / report.iteration_ns)} the speed of fp32${certificate(report) && `; ${certificate(report)}`}`);
}

function summary() {
    const { report } = plan;
    heading(data.info.inner ? "Timeline of a round" : "Timeline of a step");
    stepCard(plan);
    find("summary").lastElementChild.classList.add("first");
    if (report.bound_ns) card("bound", "No strategy is faster than", format.time(report.bound_ns));
    if (report.free_compression_ns) card("free", "If compression took no time", format.time(report.free_compression_ns),
        `step is ${format.percent(report.iteration_ns / report.free_compression_ns - 1)} over it`);
    card("compressed", "Tensors compressed", `${format.count(report.compressed)} of ${format.count(report.n_tensors)}`,
        `${format.count(report.n_units)} unit${report.n_units === 1 ? "" : "s"} synchronised`);
    card("memory", "Memory for compression", format.bytes(report.memory_bytes), "residuals and payloads of a rank");
    if (report.plan_ns) card("plan-time", "Planned in", format.time(report.plan_ns));
    sides(report, base && base.report);
}

// Compares the two plans: exposed time, bytes, and how busy each lane is.
function sides(report, other) {
    const of = (key, show) => (r) => show(r[key]);
    const rows = [["exposed-communication", "exposed communication", of("exposed_communication_ns", format.time)],
        ["exposed-compression", "exposed compression", of("exposed_compression_ns", format.time)],
        ...outerLevels([report, other].filter(Boolean)).reverse().map(([k, name]) => [name, `traffic of an uplink, ${name}`, (r) => format.bytes(r.level_bytes[k])]),
        ...(report.fp32_ns ? [["inter", "traffic of a machine, inter", of("inter_bytes", format.bytes)],
            ["intra", "traffic of a rank, intra", of("intra_bytes", format.bytes)]] : []),
        ...view.shown.map((lane) => [`busy-${lanes[lane]}`, `lane ${lanes[lane]}${data.info.cores ? ` (${laneKind(lane)})` : ""} busy`, (r) => format.percent(r.lane_ns[lane] / r.iteration_ns)])];
    const heads = ["", other && base.name, plan.name].filter((head) => typeof head === "string");
    card("sides", "Where the time goes", null, element("table", {}, element("thead", {}, element("tr", {},
        heads.map((head, i) => element("th", { class: i ? "number" : null, scope: "col" }, head)))),
    rows.map(([id, name, show]) => element("tr", { "data-testid": id }, element("td", {}, name),
        other && element("td", { class: "number" }, show(other)), element("td", { class: "number" }, show(report))))));
    find("summary").lastElementChild.classList.add("sides");
}

// ---- the tooltip ------------------------------------------------------------------------------------------------------
function optionText(unit, now = -1) {
    return element("span", { class: "option" }, unit.option.map((step, i) => [
        i ? element("span", { class: "then" }, "\u203a") : null,
        element("span", { class: i === now ? "step now" : "step" }, step.name), " "]));
}

function facts(entries) {
    return element("dl", {}, entries.filter(Boolean).map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

const lanesOf = (op) => laneOrder.filter((lane) => op.lanes >> lane & 1);
// Does an op free a lane before it ends? If so, the tooltip lists how long it occupies each lane.
const early = (op) => lanesOf(op).some((lane) => until(op, lane) < op.end);
const keeps = (op) => lanesOf(op).map((lane) => `${lanes[lane]} ${format.time(kept(op, lane))}`).join(", ");

function tooltip(of, op) {
    const range = of.range(op), steps = op.kind !== kinds.backward && range;
    const title = element("div", { class: "name" }, element("i", { class: "key", color: of.color(op) }), of.opName(op));
    const where = lanesOf(op).map((lane) => lanes[lane]).join(" and ");
    return [title, facts([
        range && op.kind === kinds.backward && ["tensor", of.tensors[op.unit][0]],
        steps && ["tensor", of.unitName(range.unit)],
        range && ["elements", format.count(op.kind === kinds.backward ? of.tensors[op.unit][1] : range.unit.elements)],
        steps && ["codec", range.unit.codec],
        steps && ["option", optionText(range.unit, op.kind === kinds.pack ? -1 : op.step)],
        op.bytes > 0 && ["bytes", `${format.bytes(op.bytes)} (${format.count(op.bytes)})`],
        ["lane", where],
        ["from \u2013 to", [op.start, op.end].map((at) => format.moment(at, of.total, op.end - op.start)).join(" \u2013 ")],
        ["takes", format.time(op.end - op.start)],
        early(op) && ["keeps", keeps(op)],
        early(op) && ["latency", `${format.time(op.end - Math.max(...lanesOf(op).map((lane) => until(op, lane))))}: its lanes are free, its result is not there`],
        steps && ["waited", op.wait ? `${format.time(op.wait)} for the lane` : "no time for the lane"],
    ])];
}

function hover(of, op, x, y) {
    const box = find("tooltip"), stage = find("stage");
    if (box.op !== op) box.replaceChildren(...tooltip(of, op).filter(Boolean));
    box.op = op;
    box.hidden = false;
    const left = x + 18 + box.offsetWidth > stage.clientWidth ? x - 14 - box.offsetWidth : x + 18;
    box.style.left = `${Math.max(0, left)}px`;
    box.style.top = `${y + 20}px`;
}

// ---- selecting --------------------------------------------------------------------------------------------------------
let selected = null; // a unit of the plan, or null

function select(unit, { reveal = false, scroll = false } = {}) {
    for (const row of table.rows.values()) row.removeAttribute("aria-selected");
    selected = unit;
    view.select(unit && { first: unit.first, n: unit.n });
    const panel = find("selection");
    panel.hidden = !unit;
    panel.replaceChildren();
    if (!unit) return;
    panel.append(element("div", { class: "bar" }, element("h2", {}, plan.unitName(unit)),
        element("span", { class: "buttons" }, element("button", { onclick: () => select(null) }, "Deselect"))),
    element("div", { class: "chains" }, plans.map((of) => element("div", {}, relatives(of, unit)))));
    const row = table.rows.get(unit);
    row.setAttribute("aria-selected", "true");
    if (scroll && !row.hidden) {
        const box = row.closest(".scroll");
        box.scrollTop = row.offsetTop - box.clientHeight / 2;
    }
    if (reveal && unit.ops.length) view.reveal(unit.ops[0].start, unit.done);
}

// Shows the units of a strategy that share tensors with a unit: the first twelve, and how many more there are.
function relatives(of, unit) {
    const own = of.units.filter((u) => u.first < unit.first + unit.n && unit.first < u.first + u.n);
    const more = own.length > 12 ? element("p", { class: "muted" }, `and ${own.length - 12} more`) : null;
    return [own.slice(0, 12).map((u) => chain(of, u)), more];
}

// Makes a table of a unit's ops.
function chain(of, unit) {
    const cells = (op) => [of.opName(op), early(op) ? keeps(op) : lanesOf(op).map((lane) => lanes[lane]).join(" and "), format.bytes(op.bytes),
        format.time(op.start - unit.ready), format.time(op.wait), format.time(op.end - op.start)];
    const heads = ["op", "lane", "bytes", "starts after ready", "waits for the lane", "takes"];
    const align = (i) => ({ class: i > 1 ? "number" : null });
    return [element("h3", {}, `${of.name}: ${of.unitName(unit)}, ${format.count(unit.elements)} elements, `,
        `${unit.codec === "none" ? "not compressed" : `codec ${unit.codec}`}, done ${format.time(unit.done - unit.ready)} after its gradient was ready`),
    element("div", { class: "chain" }, element("table", {}, element("tr", {}, heads.map((head, i) => element("th", { ...align(i), scope: "col" }, head))),
        unit.ops.map((op) => element("tr", {}, cells(op).map((cell, i) => element("td", align(i),
            i ? cell : [element("i", { class: "key", color: of.color(op) }), " ", cell]))))))];
}

// Selects the previous or next unit of the plan, for the arrow keys up and down.
function step(by) {
    const at = selected ? selected.number + by : by > 0 ? 0 : plan.units.length - 1;
    if (plan.units[at]) select(plan.units[at], { reveal: true, scroll: true });
}

// ---- the page ---------------------------------------------------------------------------------------------------------
function unitTable() {
    return sortedTable(find("unit-table"), [
        { name: "#", number: true, value: (u) => u.number },
        { name: "Tensor", style: "name", value: (u) => plan.unitName(u) },
        { name: "Elements", number: true, value: (u) => u.elements, cell: (u) => format.count(u.elements) },
        { name: "Codec", style: "codec", value: (u) => u.codec },
        { name: "Option", style: "option", value: (u) => u.text, cell: (u) => optionText(u) },
        { name: "Ready", number: true, title: "its gradient is there", value: (u) => u.ready, cell: (u) => format.time(u.ready, plan.total) },
        { name: "Done", number: true, title: "its mean is there", value: (u) => u.done, cell: (u) => format.time(u.done, plan.total) },
        { name: "Ops take", number: true, title: "sum of its ops", value: (u) => u.busy, cell: (u) => format.time(u.busy) },
        { name: "Waits", number: true, title: "for lanes, from ready to done", value: (u) => u.done - u.ready - u.busy,
            cell: (u) => format.time(Math.max(0, u.done - u.ready - u.busy)) },
    ], plan.units, (u) => ({ "data-unit": u.number, onclick: () => select(selected === u ? null : u, { reveal: true }) }));
}

function filter() {
    const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (u) => {
        const names = [];
        for (let i = u.first; i < u.first + u.n; i++) names.push(plan.tensors[i][0]);
        return `${names.join(" ")} ${u.codec} ${u.text}`.toLowerCase();
    };
    const shown = table.show((u) => words.every((word) => text(u).includes(word)));
    find("unit-count").textContent = shown === plan.units.length ? `${format.count(shown)} units` : `${format.count(shown)} of ${format.count(plan.units.length)} units`;
}

const view = new Lanes(find("lanes"), plans, {
    hover,
    leave: () => { find("tooltip").hidden = true; },
    select: (of, op) => select(op && of.range(op) ? plan.units.find((u) => touchesUnit(u, of.range(op))) : null, { scroll: true }),
    step,
    view: (from, to) => { find("range").textContent = `${format.time(from, to)} to ${format.time(to)}`; },
});
// Does a click on an op with this range select the unit? An op of the plan selects its own unit. An op of the other
// plan selects the first unit that shares a tensor with it.
function touchesUnit(unit, range) {
    return plan.units.includes(range.unit) ? unit === range.unit : unit.first < range.first + range.n && range.first < unit.first + unit.n;
}

legend([["backward", data.info.inner ? "Inner step" : "Backward"], ["raw", "Collective"], ["payload", "Collective of payloads"], ["comp", "Comp; exposed compression"],
    ["decomp", "Decomp"],
    ...[["copy", "Copy to or from the host"], ["pack", "Pack, unpack"], ["block", "Forward, update"]].filter(([color]) =>
        plans.some((p) => p.ops.some((op) => p.color(op) === color))),
    ...(plans.some((p) => p.latencies.some((late) => late.length)) ? [["light", "The lane is free, the result not there yet"]] : []),
    ["hatch", "Bubble"], ["exposed", "Exposed communication"]]);
find("filter").addEventListener("input", filter);
find("zoom-in").addEventListener("click", () => view.zoom(1.5));
find("zoom-out").addEventListener("click", () => view.zoom(1 / 1.5));
find("zoom-tail").addEventListener("click", () => view.tail());
find("zoom-reset").addEventListener("click", () => view.reset());
const table = unitTable();
summary();
find("lanes").setAttribute("aria-label", plans.map((p) => `${p.name}: ${data.info.inner ? "it" : "a step"} takes ${format.time(data.info.inner ? p.report.iteration_ns : p.total)}, exposed communication ` +
    `${format.time(p.report.exposed_communication_ns)}`).join("; ") + ". The table below lists every tensor.");
filter();
view.reset();
