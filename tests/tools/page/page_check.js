"use strict";
// page_check.js: checks inside an open page. They write their result into the element "result", where the test reads
// it. This part comes before the page's own script.
const checks = { passed: 0, failures: [] };
const pageErrors = [];
window.addEventListener("error", (event) => pageErrors.push(event.message));
const blocked = [];
document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));

function check(what, holds, ...seen) {
    if (holds) checks.passed++;
    else checks.failures.push(`${what}${seen.length ? `: ${seen.map((x) => JSON.stringify(x)).join(", ")}` : ""}`);
}
const near = (a, b, part = 1e-9) => Math.abs(a - b) <= part * Math.max(1, Math.abs(a), Math.abs(b));

async function runChecks(body) {
    try {
        await body();
        check("no errors on the page", pageErrors.length === 0, pageErrors);
        check("nothing was fetched", performance.getEntriesByType("resource").length === 0);
        check("the page breaks no rule of its own", blocked.length === 0, blocked);
        const image = new Image();
        image.src = "http://127.0.0.1:9/x.png";
        fetch("http://127.0.0.1:9/x").catch(() => {});
        await new Promise((done) => setTimeout(done, 200));
        check("the page may fetch nothing", blocked.includes("img-src") && blocked.includes("connect-src"), blocked);
        check("every button and input has a name", [...document.querySelectorAll("button, input")].every((b) =>
            b.getAttribute("aria-label") || b.textContent.trim()));
    } catch (error) {
        checks.failures.push(`exception: ${error.stack}`);
    }
    const result = document.createElement("pre");
    result.id = "result";
    result.textContent = `${checks.failures.length ? "FAILED" : "PASSED"} ${checks.passed}\n${checks.failures.join("\n")}`;
    document.body.append(result);
}
