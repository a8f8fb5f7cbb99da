// replay.js: what the timeline page adds for strategies that were run: predicted above measured, one strategy at a time, and marks
// on ops whose prediction is wrong.
const replay = data.replay || null;
const much = 0.2; // off by more than this part is marked
const replayHides = ["Ready", "Done", "Ops take", "Waits"];
let run = null; // the one that is shown

// The two plans of a run, predicted and measured. op.twin is the same op in the other plan.
function replayPlans(which) {
    run = replay.runs[which];
    const [predicted, measured] = [0, 1].map((k) => new Plan(data.plans[2 * which + k], data.model.tensors, data.model));
    if (run.steps && !run.noisy) measured.total = Math.max(measured.end, run.median_ns);
    predicted.events.forEach((op, i) => {
        const was = measured.events[i];
        if (!op || !was) return;
        [op.twin, was.twin] = [was, op];
        op.off = was.off = isOff(op, was, predicted);
    });
    return [predicted, measured];
}

// Is an op's start or duration off by a fifth of the prediction, and by at least a thousandth of the step, so that it is visible?
function isOff(op, was, { total, forward }) {
    const takes = Math.abs(was.end - was.start - (op.end - op.start)), starts = Math.abs(was.start - op.start);
    return (takes > much * (op.end - op.start) && takes > total / 1000) ||
        (starts > much * Math.max(op.start - forward, 0) && starts > total / 1000);
}

const signed = (text, x) => (x > 0 ? `+${text}` : text.replace("-", "\u2212"));
const difference = (ns) => signed(format.time(ns), ns);
const over = (measured, predicted) => (predicted > 0 ? signed(format.percent(measured / predicted - 1), measured - predicted) : "");

// For the tooltip: the same op as predicted and as measured.
function twinFacts(of, op) {
    const [was, is] = of === plans[0] ? [op, op.twin] : [op.twin, op], least = Math.min(was.end - was.start, is.end - is.start);
    const row = (name, a, b, by) => element("tr", {}, [name, a, b, by].map((cell, i) => element(i ? "td" : "th", { class: i ? "number" : null }, cell)));
    const at = (ns) => format.moment(ns, plans[0].total, least || 1);
    return element("table", { class: "twins", "data-testid": "twins" }, row("", "predicted", "measured", "difference"),
        row("from", at(was.start), at(is.start), difference(is.start - was.start)),
        row("takes", format.time(was.end - was.start), format.time(is.end - is.start),
            `${difference(is.end - is.start - (was.end - was.start))} ${over(is.end - is.start, was.end - was.start)}`));
}

function replayColumns() {
    const predicted = (u) => plans[0].units[u.number], offs = (u) => u.ops.filter((op) => op.off).length;
    const column = (name, title, value, show = (ns) => format.time(ns, plan.total)) => ({ name, title, number: true, value, cell: (u) => show(value(u)) });
    return [
        column("Done, predicted", "its mean is there", (u) => predicted(u).done),
        column("measured", "its mean is there", (u) => u.done),
        column("difference", "measured later than predicted", (u) => u.done - predicted(u).done, difference),
        column("Ops take, predicted", "sum of its ops", (u) => predicted(u).busy, (ns) => format.time(ns)),
        column("measured", "sum of its ops", (u) => u.busy, (ns) => format.time(ns)),
        column("difference", "measured longer than predicted", (u) => u.busy - predicted(u).busy, difference),
        column("Off", `ops that start or take over ${100 * much}% more or less`, offs, format.count),
    ];
}

function replaySummary() {
    const [predicted, measured] = plans, seen = predicted.events.filter((op) => op && op.twin);
    runHeading("Predicted and measured");
    const error = run.median_ns ? predicted.report.iteration_ns / run.median_ns - 1 : 0;
    card("step", "Step, predicted \u2192 measured",
        `${format.time(predicted.report.iteration_ns)} \u2192 ${run.noisy ? "noisy" : run.steps ? format.time(run.median_ns) : "not run"}`,
        run.steps && `${run.noisy ? "" : `predicted is ${format.percent(Math.abs(error))} ${error < 0 ? "less" : "more"}; `}` +
            `10% to 90% of ${format.count(run.steps)} steps: ${format.time(run.p10_ns)} to ${format.time(run.p90_ns)}`);
    find("summary").lastElementChild.classList.add("first");
    card("ops", "Ops measured", `${format.count(seen.length)} of ${format.count(predicted.events.length)}`, "medians over steps");
    card("off", `Off by over ${100 * much}%`, format.count(seen.filter((op) => op.off).length), "start or length, by 0.1% of the step or more");
    largest(seen, predicted);
    card("compressed", "Tensors compressed", `${format.count(predicted.report.compressed)} of ${format.count(predicted.report.n_tensors)}`,
        `${format.count(predicted.report.n_units)} unit${predicted.report.n_units === 1 ? "" : "s"} synchronised`);
    find("summary").lastElementChild.classList.add("wide");
    sides(measured.report, predicted.report);
}

// Shows the op whose duration differs most from the prediction.
function largest(seen, predicted) {
    const off = (op) => op.twin.end - op.twin.start - (op.end - op.start);
    const most = seen.reduce((a, b) => (a && Math.abs(off(a)) >= Math.abs(off(b)) ? a : b), null);
    if (!most) return;
    card("largest", "Largest difference of an op", difference(off(most)), `${predicted.opName(most)} of ` +
        `${most.kind === kinds.backward ? predicted.tensors[most.unit][0] : predicted.unitName(predicted.units[most.unit])}`);
    find("summary").lastElementChild.classList.add("wide");
}

// Controls to choose a strategy, and to mark wrong predictions.
function replayControls() {
    document.body.classList.add("runs");
    const bar = find("timeline").querySelector(".bar"), buttons = bar.querySelector(".buttons");
    const mark = element("button", { id: "mark-off", "aria-pressed": "false", title: "Ops that start or take a fifth more or less than predicted" },
        `Mark what is off by over ${100 * much}%`);
    mark.addEventListener("click", () => {
        mark.setAttribute("aria-pressed", String(!view.marks));
        view.mark(!view.marks);
    });
    buttons.prepend(mark);
    if (replay.runs.length < 2) return;
    const choice = element("select", { id: "strategy", "aria-label": "Strategy" }, replay.runs.map((r, i) =>
        element("option", { value: i, selected: i === replay.shown }, r.noisy ? `${r.name} (noisy)` : r.name)));
    choice.addEventListener("change", () => {
        select(null);
        take(replayPlans(Number(choice.value)));
        view.take(plans);
        show();
        view.resize();
        view.reset();
    });
    bar.querySelector("h2").after(choice);
}
