// page_check_measured.js: the timeline of a predicted step above the measured one, in which one op is missing.
(() => {
const card = (id) => document.querySelector(`[data-testid="${id}"]`).textContent;
function checkMeasured() {
    const [predicted, measured] = plans;
    check("two plans", plans.length === 2 && predicted.name === "predicted" && measured.name === "measured");
    check("the step, predicted and measured", card("step").includes("predicted \u2192 measured") && card("step").includes(format.time(measured.report.iteration_ns)), card("step"));
    check("the band is as long as the measured step", near(measured.total, measured.report.iteration_ns), measured.total);
    check("the error", card("step").includes("predicted is 10% less"), card("step"));
    check("no bound, no traffic", !document.querySelector('[data-testid="bound"]') && !document.querySelector('[data-testid="inter"]'));
    check("an op is missing", measured.events.filter((op) => op === null).length === 1 && predicted.events.every((op) => op));
    check("a measured op keeps its lanes to its end", measured.events.every((op) => !op || !early(op)));
    check("a row for each unit", document.querySelectorAll("#unit-table tbody tr").length === measured.units.length);
    select(measured.units[0]);
    check("a unit's ops in both", document.querySelectorAll("#selection .chain").length >= 2);
}

runChecks(checkMeasured);
})();
