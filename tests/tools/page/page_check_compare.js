// page_check_compare.js: the lengths of bars, the places of lines, both orders, the table.
(() => {
const bars = () => [...document.querySelectorAll("#chart .row")];
const width = (bar) => [...bar.querySelectorAll(".segment")].reduce((a, s) => a + s.getBoundingClientRect().width, 0);
const timeOf = (bar) => rows.find((row) => row.name === bar.dataset.name).time;

function checkBars() {
    const scale = width(bars()[0]) / timeOf(bars()[0]);
    for (const bar of bars()) {
        check("a bar is as long as its time", Math.abs(width(bar) - timeOf(bar) * scale) < 1, bar.dataset.name, width(bar), timeOf(bar) * scale);
        check("and is labelled", bar.textContent.includes(format.time(timeOf(bar), shortest)), bar.textContent);
        check("on one line with its label", bar.querySelector(".label").getBoundingClientRect().right <= document.documentElement.clientWidth);
    }
    check("fp32 is 1.00", bars().find((b) => b.dataset.name === "fp32").textContent.includes("1.00\u00d7"));
    const left = bars()[0].querySelector(".segment").getBoundingClientRect().left;
    const line = document.querySelector('[data-line="accent"]').getBoundingClientRect();
    check("the bound's line is in its place", Math.abs(line.left - left - data.bounds.bound_ns * scale) < 2.5, line.left - left, data.bounds.bound_ns * scale);
    check("the lines are named", document.getElementById("legend").textContent.includes(format.time(data.bounds.free_compression_ns)));
}

window.addEventListener("load", () => runChecks(async () => {
    check("a bar for each", bars().length === rows.length);
    checkBars();
    check("in the order given", bars().map((b) => b.dataset.name).join() === rows.map((r) => r.name).join());
    document.getElementById("order-time").click();
    check("by time", bars().every((b, i, all) => i === 0 || timeOf(b) >= timeOf(all[i - 1])));
    checkBars();
    check("the fastest is in the summary", document.querySelector('[data-testid="best"]').textContent.includes("espresso+"));
    const names = () => [...document.querySelectorAll("#row-table tbody tr")].map((tr) => tr.dataset.name);
    document.querySelectorAll("#row-table th button")[1].click();
    check("the table sorts", names().join() === rows.slice().sort((a, b) => a.time - b.time).map((r) => r.name).join());
    const outer = [...document.querySelectorAll("#row-table th")].findIndex((th) => th.textContent === "Outer");
    check("traffic between racks has a column", outer > 0 && document.querySelector('#row-table tr[data-name="hipress"]').cells[outer].textContent === format.bytes(rows.find((r) => r.name === "hipress").report.level_bytes[2]));
    check("a level without traffic has none", ![...document.querySelectorAll("#row-table th")].some((th) => th.textContent === "Top"));
    check("each is explained", [...document.querySelectorAll("#source-list dt")].map((dt) => dt.textContent).join() === rows.map((r) => r.name).join());
    check("names are text", document.querySelector("main b") === null && names().includes("<b>odd</b>"));
}));
})();
