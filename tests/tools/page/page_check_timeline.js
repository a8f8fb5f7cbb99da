// page_check_timeline.js: uses the timeline page as a reader does, by mouse and key events.
(() => {
const canvas = document.getElementById("lanes");
function fire(type, x, y, more = {}) {
    const box = canvas.getBoundingClientRect(), Kind = type === "wheel" ? WheelEvent : PointerEvent;
    canvas.dispatchEvent(new Kind(type, { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, button: 0, ...more }));
}
const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const length = () => view.view.to - view.view.from;
const shown = (id) => !document.getElementById(id).hidden;
const card = (id) => document.querySelector(`[data-testid="${id}"]`).textContent;
const cells = (column) => [...document.querySelectorAll("#unit-table tbody tr:not([hidden])")].map((tr) => tr.cells[column].textContent);
function pixel(x, y) {
    view.paint();
    const scale = window.devicePixelRatio || 1;
    return [...canvas.getContext("2d").getImageData(Math.round(x * scale), Math.round(y * scale), 1, 1).data.slice(0, 3)].join();
}
function painted(color) { // the RGB values of a colour name
    const pen = document.createElement("canvas").getContext("2d");
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${color}`).trim();
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)].join();
}

function checkNumbers() {
    for (const p of plans) {
        const sum = (kind) => p.exposed.filter((e) => e.kind === kind).reduce((a, e) => a + e.end - e.start, 0);
        check(`${p.name}: the step's length`, near(p.total, p.report.iteration_ns), p.total, p.report.iteration_ns);
        if (p.tensors.length <= 500) {
            check(`${p.name}: exposed communication`, near(sum("communication"), p.report.exposed_communication_ns), sum("communication"), p.report.exposed_communication_ns);
            check(`${p.name}: exposed compression`, near(sum("compression"), p.report.exposed_compression_ns), sum("compression"), p.report.exposed_compression_ns);
        }
        p.lanes.forEach((ops, lane) => {
            const own = ops.filter((op) => op.kind <= 5);
            if (!own.length) return;
            const busy = own.reduce((a, op) => a + until(op, lane) - op.start, 0), idle = p.bubbles[lane].reduce((a, b) => a + b.end - b.start, 0);
            check(`${p.name}: busy and bubbles fill lane ${lane}`, near(busy + idle, until(own[own.length - 1], lane) - own[0].start));
            check(`${p.name}: lane ${lane} is as busy as the report says`, near(busy, p.report.lane_ns[lane]), busy, p.report.lane_ns[lane]);
            check(`${p.name}: no two ops at once on lane ${lane}`, own.every((op, i) => i === 0 || op.start >= until(own[i - 1], lane)));
        });
    }
    const used = laneOrder.filter((lane) => plans.some((p) => p.ops.some((op) => op.lanes >> lane & 1)));
    check("a row for each lane that is used", view.shown.join() === used.join(), view.shown, used);
    for (const lane of used) check(`lane ${lanes[lane]} has a name and its share`, card("sides").includes(`lane ${lanes[lane]}${data.info.cores ? ` (${laneKind(lane)})` : ""} busy`), card("sides"));
    for (const lane of used.filter((l) => l > 3 && !isCore(l)))
        check(`the bytes of level ${lanes[lane]}`, card(lanes[lane]).includes(format.bytes(plan.report.level_bytes[lane - 2])), card(lanes[lane]));
    check("the step's time is in the summary", card("step").includes(format.time(plan.report.iteration_ns)));
    check("what is noisy is said", !data.info.warning ? !document.querySelector(".warning") : document.querySelector(".warning").textContent.includes(data.info.warning));
    check("how far from the optimum", card("step").includes(`at most ${format.percent(plan.report.iteration_ns / plan.report.bound_ns - 1)} above the optimum`), card("step"));
    check("the bound", card("bound").includes(format.time(plan.report.bound_ns)));
    check("compressed tensors", card("compressed").includes(`${plan.report.compressed} of ${plan.tensors.length}`.replace(/\B(?=(\d{3})+\b)/g, ",")), card("compressed"));
    check("a row for each unit", document.querySelectorAll("#unit-table tbody tr").length === plan.units.length);
    check("the picture has a name", canvas.getAttribute("aria-label").includes(format.time(plan.total)));
    check("names are text, not markup", document.querySelector("main b") === null);
    check("names come through whole", plan.tensors[0][0] === expectedName && cells(1)[0].startsWith(expectedName), cells(1)[0]);
}

// A collective occupies its core and its link for a part of its time. Each row shows that part, and the link's row also
// the latency.
function checkCores() {
    const core = lanes.length - 1, link = 3;
    const op = plan.lanes[link].find((o) => o.lanes >> core & 1 && plan.lanes[link].every((x) => x === o || x.start >= o.end || until(x, link) <= o.start));
    check("an op on a core and a link", op && op.core < op.link && op.link < op.end - op.start, op);
    check("cores come first", view.shown.indexOf(core) < view.shown.indexOf(link), view.shown);
    const long = (op.end - op.start) * view.span / 600, at = (op.start + op.end) / 2;
    view.show(at - long / 2, at + long / 2);
    const row = (lane) => view.rows.find((r) => r.plan === plan && r.lane === lane).y;
    const inside = (from, to) => view.x(from + 0.5 * (to - from)), full = painted(plan.color(op));
    check("solid while the link is kept", pixel(inside(op.start, until(op, link)), row(link) + 22) === full);
    const light = pixel(inside(until(op, link), op.end), row(link) + 22);
    check("light until the result is there", light !== full && light !== painted("lane"), light, full);
    check("low, too", pixel(inside(until(op, link), op.end), row(link) + 8) !== light);
    check("solid while the core is kept", pixel(inside(op.start, until(op, core)), row(core) + 4) === full);
    check("then the core is free", pixel(inside(until(op, core), op.end), row(core) + 4) !== full);
    fire("pointermove", inside(until(op, link), op.end), row(link) + 20);
    const tip = document.getElementById("tooltip").textContent;
    for (const said of [`${lanes[core]} ${format.time(op.core)}`, `${lanes[link]} ${format.time(op.link)}`, format.time(op.end - until(op, link)), plan.opName(op)])
        check("the light part has a tooltip, which says what is kept", tip.includes(said), said, tip);
    fire("pointerleave", 0, 0);
    check("the legend has it", document.getElementById("legend").textContent.includes("the result not there yet"));
}

// Zooms in on an op until it is at least `pixels` wide.
function approach(of, op, pixels) {
    const long = (op.end - op.start) * view.span / pixels, middle = (op.start + op.end) / 2;
    view.show(middle - long / 2, middle + long / 2);
    const box = view.box(of, op);
    return [box.x + box.width / 2, box.y + box.height / 2, box];
}

function checkHover() {
    const unit = plan.units.find((u) => u.ops.some((op) => op.kind === kinds.comp && op.lanes === 1));
    const op = unit.ops.find((o) => o.kind === kinds.comp);
    const [x, y, box] = approach(plan, op, 400);
    check("the op is where it says", box.width > 300 && box.x > 0, box);
    check("Comp has its colour", pixel(x, y + 10) === painted("comp"), pixel(x, y + 10), painted("comp"));
    fire("pointermove", x, y);
    const tip = document.getElementById("tooltip");
    check("the tooltip is shown", shown("tooltip"));
    for (const said of ["comp@gpu", plan.unitName(unit), unit.codec, format.bytes(op.bytes), format.moment(op.start, plan.total, op.end - op.start), format.time(op.end - op.start), format.count(unit.elements)])
        check("the tooltip says it", tip.textContent.includes(said), said, tip.textContent);
    const steps = [...tip.querySelectorAll(".step")];
    check("the option is whole", steps.map((s) => s.textContent).join(" > ") === unit.text);
    check("its step is marked, no other", steps.filter((s) => s.classList.contains("now")).length === 1 && steps[op.step].classList.contains("now"));
    const inside = tip.getBoundingClientRect();
    check("the tooltip is on the page", inside.left >= 0 && inside.right <= document.documentElement.clientWidth, inside);
    fire("pointermove", 5, 5);
    check("and hidden again", !shown("tooltip"));
    const back = plan.lanes[0].find((o) => o.kind === kinds.backward && o.unit === unit.first);
    fire("pointermove", ...approach(plan, back, 200));
    check("backward has a tooltip", tip.textContent.includes("Backward") && tip.textContent.includes(plan.tensors[back.unit][0]));
    fire("pointerleave", 0, 0);
    return [unit, op];
}

function checkSelect([unit, op]) {
    const other = plan.lanes[3].find((o) => o.kind === kinds.collective && !touches(plan, o, unit));
    const [ox, oy] = approach(plan, other, 300);
    const bright = pixel(ox, oy + 11);
    const [x, y] = approach(plan, op, 300);
    fire("pointerdown", x, y);
    fire("pointerup", x, y);
    const row = document.querySelector('#unit-table tr[aria-selected="true"]');
    check("a click selects the unit's row", row && Number(row.dataset.unit) === unit.number);
    check("one row", document.querySelectorAll('#unit-table tr[aria-selected="true"]').length === 1);
    const panel = document.getElementById("selection");
    check("the panel tells its ops", shown("selection") && panel.textContent.includes(plan.unitName(unit)));
    check("in both strategies", plans.every((p) => [...panel.querySelectorAll("h3")].some((h) => h.textContent.startsWith(`${p.name}: `))));
    check("op by op", panel.querySelectorAll("td:first-child").length >= Math.min(unit.ops.length, 12));
    for (const p of plans)
        check(`${p.name}: its ops are marked, others not`, p.ops.every((o) => touches(p, o, view.selected) === (o.unit >= 0 &&
            (o.kind === kinds.backward ? [o.unit] : p.tensors.map((_, i) => i).slice(p.units[o.unit].first, p.units[o.unit].first + p.units[o.unit].n)).some((tensor) =>
                tensor >= unit.first && tensor < unit.first + unit.n))));
    const [ax, ay] = approach(plan, other, 300);
    check("others are dimmed", pixel(ax, ay + 11) !== bright);
    press("Escape");
    check("Escape deselects", !shown("selection") && !document.querySelector('[aria-selected="true"]'));
    check("and undims", pixel(ax, ay + 11) === bright);
    press("ArrowDown");
    check("down selects the first", Number(document.querySelector('[aria-selected="true"]').dataset.unit) === 0);
    press("ArrowDown");
    press("ArrowUp");
    check("up goes back", Number(document.querySelector('[aria-selected="true"]').dataset.unit) === 0);
    press("Escape");
}

function checkZoom() {
    press("0");
    check("0 shows the whole step", view.view.from === 0 && near(length(), view.total));
    const range = document.getElementById("range").textContent, x = 500, before = view.time(x), whole = length();
    fire("wheel", x, 100, { deltaY: -200 });
    check("the wheel zooms in", length() < whole * 0.7);
    check("about the pointer", Math.abs(view.x(before) - x) < 1.5); // events are at whole pixels
    check("and the page says so", document.getElementById("range").textContent !== range);
    const from = view.view.from, zoomed = length();
    fire("pointerdown", 600, 100);
    fire("pointermove", 500, 100);
    fire("pointerup", 500, 100);
    check("dragging moves", Math.abs((view.view.from - from) / zoomed * view.span - 100) < 1.5 && near(length(), zoomed));
    check("and selects nothing", !shown("selection"));
    const at = view.view.from;
    press("ArrowLeft");
    check("left moves", view.view.from < at);
    press("+");
    check("+ zooms in", length() < zoomed);
    press("-");
    check("- zooms out", near(length(), zoomed, 1e-6));
    for (let i = 0; i < 200; i++) press("+");
    check("not without end", length() > 0 && Number.isFinite(view.view.from));
    for (let i = 0; i < 200; i++) press("-");
    check("nor beyond the step", view.view.from === 0 && near(view.view.to, view.total));
    document.getElementById("zoom-tail").click();
    check("End shows what follows backward", view.view.from > 0 && near(view.view.to, view.total) && view.view.from < plan.backwardEnd);
    document.getElementById("zoom-reset").click();
    check("the button resets", view.view.from === 0 && near(length(), view.total));
}

function checkTable() {
    const head = (name) => [...document.querySelectorAll("#unit-table th")].find((th) => th.textContent === name);
    const numbers = () => cells(2).map((text) => Number(text.replace(/,/g, "")));
    head("Elements").querySelector("button").click();
    check("sorted up", numbers().every((x, i, all) => i === 0 || x >= all[i - 1]) && head("Elements").getAttribute("aria-sort") === "ascending");
    head("Elements").querySelector("button").click();
    check("sorted down", numbers().every((x, i, all) => i === 0 || x <= all[i - 1]) && head("Elements").getAttribute("aria-sort") === "descending");
    const input = document.getElementById("filter");
    input.value = "comp@gpu DENSE";
    input.dispatchEvent(new Event("input"));
    const expected = plan.units.filter((u) => u.text.includes("comp@gpu") &&
        plan.tensors.slice(u.first, u.first + u.n).some(([name]) => name.includes("dense"))).length;
    check("the filter takes all words", cells(0).length === expected && expected < plan.units.length, cells(0).length, expected);
    input.value = "";
    input.dispatchEvent(new Event("input"));
    check("and lets all come back", cells(0).length === plan.units.length);
    const row = document.querySelectorAll("#unit-table tbody tr")[0];
    row.click();
    check("a row selects", row.getAttribute("aria-selected") === "true" && view.selected.first === plan.units[Number(row.dataset.unit)].first);
    row.click();
    check("and deselects", view.selected === null);
}

window.addEventListener("load", () => runChecks(async () => {
    checkNumbers();
    if (data.info.cores) checkCores();
    if (plan.units.some((u) => u.codec !== "none")) checkSelect(checkHover());
    checkZoom();
    checkTable();
}));
})();
