// page_check_replay.js: the timeline of strategies that were run: predicted above measured, what is off, another strategy.
(() => {
const canvas = document.getElementById("lanes");
const card = (id) => document.querySelector(`[data-testid="${id}"]`).textContent;
const same = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b));
function pixel(x, y) {
    view.paint();
    const scale = window.devicePixelRatio || 1;
    return [...canvas.getContext("2d").getImageData(Math.round(x * scale), Math.round(y * scale), 1, 1).data.slice(0, 3)].join();
}
function hover(x, y) {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
}
// Zooms in on an op until it can be hit; the place of its middle.
function approach(of, op) {
    const long = (op.end - op.start) * view.span / 300, middle = (op.start + op.end) / 2;
    view.show(middle - long / 2, middle + long / 2);
    const box = view.box(of, op);
    return [box.x + box.width / 2, box.y + 8];
}

// The page's own pairs, found again from its data.
function checkPairs(which) {
    const [predicted, measured] = plans, raw = [0, 1].map((k) => data.plans[2 * which + k].events);
    check("two plans", plans.length === 2 && predicted.name === "predicted" && measured.name === "measured");
    check("one op for another", raw[0].length === raw[1].length);
    let off = 0, seen = 0;
    for (let i = 0; i < raw[0].length; i += 9) {
        const was = raw[0].slice(i, i + 9), is = raw[1].slice(i, i + 9), op = predicted.events[i / 9];
        if (is[5] < 0) {
            check("what was not measured has no other", op && !op.twin && measured.events[i / 9] === null);
            continue;
        }
        seen++;
        if (!op.twin || !same(op.start - predicted.forward, was[5]) || !same(op.twin.start - measured.forward, is[5]) || !same(op.twin.end - op.twin.start, is[6]))
            check("an op's other is the same op", false, i / 9);
        check("a measured op keeps its lanes to its end", early(op.twin) === false);
        const takes = Math.abs(is[6] - was[6]), starts = Math.abs(is[5] - was[5]), least = predicted.total / 1000;
        const expected = (takes > 0.2 * was[6] && takes > least) || (starts > 0.2 * was[5] && starts > least);
        if (Boolean(op.off) !== expected) check("what is off is marked, no other", false, i / 9, op.off, expected);
        off += expected;
    }
    check("how many were measured", card("ops").includes(`${format.count(seen)} of ${format.count(raw[0].length / 9)}`), card("ops"));
    check("how many are off", card("off").includes(format.count(off)), card("off"), off);
    check("some are missing and some are off", seen < raw[0].length / 9 && off > 0, seen, off);
    const run = data.replay.runs[which];
    check("both steps are told", card("step").includes(format.time(predicted.report.iteration_ns)) &&
        card("step").includes(run.noisy ? "noisy" : format.time(run.median_ns)), card("step"));
    check("no number where it is noisy", !run.noisy || !card("step").includes(format.time(run.median_ns)));
    check("and their spread", card("step").includes(format.time(run.p10_ns)) && card("step").includes(format.time(run.p90_ns)));
    check("a row for each unit", document.querySelectorAll("#unit-table tbody tr").length === plan.units.length);
    check("one head", document.querySelectorAll("#unit-table thead").length === 1);
}

function checkHover() {
    const op = plans[0].events.find((o) => o && o.off);
    for (const of of plans) {
        hover(...approach(of, of === plans[0] ? op : op.twin));
        const tip = document.getElementById("tooltip");
        check("the tooltip is shown", !tip.hidden);
        const says = tip.querySelector('[data-testid="twins"]').textContent;
        for (const text of ["predicted", "measured", "difference", format.time(op.end - op.start), format.time(op.twin.end - op.twin.start), difference(op.twin.start - op.start)])
            check(`it compares both (${of.name})`, says.includes(text), text, says);
        const inside = tip.getBoundingClientRect();
        check("it is on the page", inside.left >= 0 && inside.right <= document.documentElement.clientWidth, inside);
    }
    view.leave();
}

function checkMark() {
    const button = document.getElementById("mark-off"), right = plans[0].lanes[0].find((op) => op.twin && !op.off && op.kind === kinds.backward && op.end > op.start);
    const off = plans[1].events.find((op) => op && op.off);
    const at = approach(plans[0], right), before = pixel(...at);
    button.click();
    check("the button is pressed", button.getAttribute("aria-pressed") === "true");
    check("what is right fades", pixel(...at) !== before);
    const marked = pixel(...approach(plans[1], off));
    button.click();
    check("what is off does not", pixel(...approach(plans[1], off)) === marked);
    check("and back", pixel(...approach(plans[0], right)) === before && button.getAttribute("aria-pressed") === "false");
    view.reset();
}

function checkTable() {
    const heads = [...document.querySelectorAll("#unit-table th")].map((th) => th.textContent);
    check("predicted beside measured", heads.includes("Done, predicted") && heads.includes("Ops take, predicted") && !heads.includes("Waits"), heads);
    const last = heads.length - 1, cells = () => [...document.querySelectorAll("#unit-table tbody tr")].map((tr) => Number(tr.cells[last].textContent.replace(/,/g, "")));
    document.querySelectorAll("#unit-table th button")[last].click();
    document.querySelectorAll("#unit-table th button")[last].click();
    check("the worst come first", cells().every((x, i, all) => i === 0 || x <= all[i - 1]) && cells()[0] > 0);
    document.querySelector("#unit-table tbody tr").click();
    const panel = document.getElementById("selection");
    check("a click shows both chains", !panel.hidden && [...panel.querySelectorAll("h3")].map((h) => h.textContent.split(":")[0]).join() === "predicted,measured",
        panel.textContent);
}

function checkChoice() {
    const choice = document.getElementById("strategy");
    check("each strategy can be chosen", [...choice.options].map((o) => o.textContent.replace(" (noisy)", "")).join() === data.replay.runs.map((r) => r.name).join());
    check("the planner's choice is shown first", data.replay.runs[choice.selectedIndex].name === "espresso+" && choice.selectedIndex === data.replay.shown);
    for (let i = 0; i < choice.options.length; i++) {
        choice.selectedIndex = i;
        choice.dispatchEvent(new Event("change"));
        check("nothing is selected then", document.getElementById("selection").hidden);
        checkPairs(i);
        check("the whole step is shown", view.view.from === 0 && same(view.view.to, Math.max(...plans.map((p) => p.total))) && view.plans === plans);
    }
    const legends = document.querySelectorAll("#legend li").length;
    choice.dispatchEvent(new Event("change"));
    check("the legend does not grow", document.querySelectorAll("#legend li").length === legends);
    check("nor does the heading", document.getElementById("subtitle").textContent.split(data.replay.how).length === 2);
    check("the warning is there once", document.querySelectorAll(".warning").length === 1 && document.querySelector(".warning").textContent.includes(data.replay.warning));
}

window.addEventListener("load", () => runChecks(async () => {
    await new Promise((done) => setTimeout(done, 100));
    checkPairs(data.replay.shown);
    checkHover();
    checkMark();
    checkTable();
    checkChoice();
    check("names are text", document.querySelector("main b") === null && data.replay.runs.some((r) => r.name === expectedName));
}));
})();
