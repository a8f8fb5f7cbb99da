// page_check_measured.js: two bars for each strategy, as long as their numbers say; whiskers; orders; the table.
(() => {
const bars = () => [...document.querySelectorAll("#chart .row")];
const rowOf = (bar) => rows.find((row) => row.name === bar.dataset.name);
const width = (bar, which) => [...bar.querySelectorAll(`.${which} .segment`)].reduce((a, s) => a + s.getBoundingClientRect().width, 0);
const text = (id) => document.querySelector(`[data-testid="${id}"]`).textContent;

function checkBars() {
    const scale = width(bars()[0], "predicted") / rowOf(bars()[0]).time;
    check("there is something to see", scale > 0);
    for (const bar of bars()) {
        const row = rowOf(bar), [predicted, measured] = [...bar.querySelectorAll(".label")];
        check("predicted is as long as its time", Math.abs(width(bar, "predicted") - row.time * scale) < 1.5, row.name);
        check("measured too, or none", Math.abs(width(bar, "measured") - (row.known ? row.median_ns * scale : 0)) < 1.5, row.name, width(bar, "measured"));
        check("both are labelled", predicted.textContent.includes(format.time(row.time, shortest)) && measured.textContent.includes(row.known ? format.time(row.median_ns, shortest) : "noisy"), bar.textContent);
        check("noisy is no number", row.known || !measured.textContent.includes(format.time(row.median_ns, shortest)));
        const track = bar.querySelector(".measured").getBoundingClientRect(), whisker = bar.querySelector(".whisker").getBoundingClientRect();
        check("the whisker is in its place", Math.abs(whisker.left - track.left - row.p10_ns * scale) < 2.5 && Math.abs(whisker.width - (row.p90_ns - row.p10_ns) * scale) < 3.5, row.name, whisker.left - track.left, row.p10_ns * scale);
        check("labels are right of it", measured.getBoundingClientRect().left >= whisker.right - 3, row.name);
        check("and on the page", [predicted, measured].every((l) => l.getBoundingClientRect().right <= document.documentElement.clientWidth), row.name);
    }
}

const names = () => bars().map((bar) => bar.dataset.name).join();
function checkOrder(by, key, up) {
    document.getElementById(`order-${by}`).click();
    const values = bars().map(rowOf).filter((row) => by === "predicted" || row.known).map(key);
    check(`by ${by}`, values.every((x, i) => i === 0 || (up ? x >= values[i - 1] : x <= values[i - 1])), values);
    check("what has no number comes last", by === "predicted" || bars().map(rowOf).map((row) => row.known).join().match(/^(true,?)*(false,?)*$/));
    check("its button is pressed", document.getElementById(`order-${by}`).getAttribute("aria-pressed") === "true");
}

window.addEventListener("load", () => runChecks(async () => {
    check("a pair for each", bars().length === rows.length && document.querySelectorAll("#chart .pair").length === rows.length);
    checkBars();
    check("in the order run", names() === rows.map((row) => row.name).join());
    checkOrder("predicted", (row) => row.time, true);
    checkOrder("measured", (row) => row.median_ns, true);
    checkOrder("error", (row) => Math.abs(row.error), false);
    checkBars();
    check("the fastest", text("fastest").includes(rows.filter((row) => row.known).reduce((a, b) => (b.median_ns < a.median_ns ? b : a)).name));
    check("the planner's choice", text("chosen").includes("espresso+"));
    check("noisy ones are counted and named", text("noisy").includes(`${rows.filter((row) => row.noisy).length} of ${rows.length}`) && rows.filter((row) => row.noisy).every((row) => text("noisy").includes(row.name)), text("noisy"));
    check("the warning is told", document.querySelector(".warning").textContent.includes(data.replay.warning));
    const table = () => [...document.querySelectorAll("#row-table tbody tr")];
    document.querySelectorAll("#row-table th button")[2].click();
    check("the table sorts by what was measured, noisy last", rows.find((r) => r.name === table()[table().length - 1].dataset.name).noisy);
    check("errors have signs", table().every((tr) => rows.find((r) => r.name === tr.dataset.name).noisy ? tr.cells[5].textContent === "" : /^[+\u2212]/.test(tr.cells[5].textContent)));
    check("names are text", document.querySelector("main b") === null && rows.some((row) => row.name === expectedName));
}));
})();
