// lanes.js: the picture of lanes: one plan above the other, a row for each lane, the same time scale. Handles zoom, pan
// and the pointer. Must not know the tables and tooltips: it calls back for an op that is pointed at or selected.
const shape = { gutter: 92, right: 14, axis: 30, title: 26, lane: 26, low: 15, gap: 5, strip: 13, between: 20 };

class Lanes {
    // callbacks in `on`: hover(plan, op, x, y), leave(), select(plan, op), view(from, to)
    constructor(canvas, plans, on) {
        Object.assign(this, { canvas, on, plans, selected: null, hovered: null, drag: null });
        this.total = Math.max(...plans.map((plan) => plan.total)) || 1;
        this.shown = laneOrder.filter((lane) => plans.some((plan) => plan.lanes[lane].length));
        this.view = { from: 0, to: this.total };
        this.layout();
        new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colors = null; this.draw(); });
        this.listen();
        this.resize();
    }

    layout() {
        let y = shape.axis;
        this.rows = [];
        this.bands = this.plans.map((plan) => {
            const title = y;
            y += shape.title;
            const top = y;
            for (const lane of this.shown) {
                this.rows.push({ plan, lane, y });
                y += shape.lane + shape.gap;
            }
            const strip = y;
            y += shape.strip;
            const band = { plan, title, top, strip, bottom: y };
            y += shape.between;
            return band;
        });
        this.height = y - shape.between + 6;
    }

    resize() {
        const scale = window.devicePixelRatio || 1;
        this.width = Math.max(320, this.canvas.parentElement.clientWidth);
        this.canvas.width = Math.round(this.width * scale);
        this.canvas.height = Math.round(this.height * scale);
        this.canvas.style.height = `${this.height}px`;
        this.canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
        this.paint();
    }

    get span() { return this.width - shape.gutter - shape.right; }
    x(time) { return shape.gutter + (time - this.view.from) / (this.view.to - this.view.from) * this.span; }
    time(x) { return this.view.from + (x - shape.gutter) / this.span * (this.view.to - this.view.from); }

    // ---- zoom and pan -----------------------------------------------------------------------------------------------
    show(from, to) {
        const least = Math.min(this.total, Math.max(100, this.total / 1e6));
        const length = Math.min(this.total, Math.max(least, to - from));
        const start = Math.max(0, Math.min(this.total - length, from));
        this.view = { from: start, to: start + length };
        this.on.view(this.view.from, this.view.to);
        this.draw();
    }
    zoom(factor, at = (this.view.from + this.view.to) / 2) {
        const length = Math.min(this.total, (this.view.to - this.view.from) / factor);
        const part = (at - this.view.from) / (this.view.to - this.view.from);
        this.show(at - part * length, at - part * length + length);
    }
    pan(part) {
        const by = part * (this.view.to - this.view.from);
        this.show(this.view.from + by, this.view.to + by);
    }
    reset() { this.show(0, this.total); }
    tail() {
        const from = Math.min(...this.plans.map((plan) => plan.backwardEnd)), to = this.total;
        this.show(from - 0.08 * (to - from), to);
    }
    reveal(start, end) {
        if (end > this.view.from && start < this.view.to) return;
        const length = this.view.to - this.view.from;
        this.show(start - length / 3, start + length * 2 / 3);
    }

    // ---- the pointer and keys ---------------------------------------------------------------------------------------
    listen() {
        const { canvas } = this;
        const point = (event) => {
            const box = canvas.getBoundingClientRect();
            return [event.clientX - box.left, event.clientY - box.top];
        };
        canvas.addEventListener("wheel", (event) => {
            event.preventDefault();
            const [x] = point(event);
            if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
            else this.zoom(Math.exp(-event.deltaY / 400), this.time(Math.max(x, shape.gutter)));
        }, { passive: false });
        canvas.addEventListener("pointerdown", (event) => {
            if (event.button !== 0) return;
            this.drag = { x: point(event)[0], view: { ...this.view }, moved: false };
            if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
        });
        canvas.addEventListener("pointermove", (event) => {
            const [x, y] = point(event);
            if (!this.drag) return this.hover(x, y);
            if (Math.abs(x - this.drag.x) > 3) this.drag.moved = true;
            if (!this.drag.moved) return;
            canvas.classList.add("dragged");
            this.leave();
            const by = (this.drag.x - x) / this.span * (this.drag.view.to - this.drag.view.from);
            this.show(this.drag.view.from + by, this.drag.view.to + by);
        });
        canvas.addEventListener("pointerup", (event) => {
            const drag = this.drag;
            this.drag = null;
            canvas.classList.remove("dragged");
            if (!drag || drag.moved) return;
            const hit = this.at(...point(event));
            this.on.select(hit && hit.plan, hit && hit.op);
        });
        canvas.addEventListener("pointercancel", () => { this.drag = null; });
        canvas.addEventListener("pointerleave", () => this.leave());
        canvas.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const keys = {
            "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
            ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), 0: () => this.reset(), e: () => this.tail(),
            Home: () => this.pan(-1e9), End: () => this.pan(1e9),
            ArrowUp: () => this.on.step(-1), ArrowDown: () => this.on.step(1), Escape: () => this.on.select(null, null),
        };
        if (!keys[event.key]) return;
        event.preventDefault();
        this.leave();
        keys[event.key]();
    }

    hover(x, y) {
        const hit = this.at(x, y);
        this.canvas.classList.toggle("over", Boolean(hit));
        if (!hit) return this.leave();
        const changed = !this.hovered || this.hovered.op !== hit.op || this.hovered.plan !== hit.plan;
        this.hovered = hit;
        this.on.hover(hit.plan, hit.op, x, y);
        if (changed) this.draw();
    }
    leave() {
        if (this.hovered) this.draw();
        this.hovered = null;
        this.on.leave();
    }

    // Returns the op at a point, or the closest one within three pixels.
    at(x, y) {
        const row = this.rows.find((r) => y >= r.y && y < r.y + shape.lane);
        if (!row || x < shape.gutter) return null;
        const ops = row.plan.lanes[row.lane], time = this.time(x);
        const i = firstFrom(ops, time, (op) => until(op, row.lane));
        let best = null, least = 3;
        for (const op of [ops[i - 1], ops[i], ops[i + 1]]) {
            if (!op) continue;
            const off = Math.max(this.x(op.start) - x, x - this.x(until(op, row.lane)), 0);
            if (off <= least && (!best || off < least)) [best, least] = [op, off];
        }
        // if the lane is free, the last op whose result is still on its way
        if (least > 0) best = row.plan.latencies[row.lane].filter((l) => l.start <= time && time < l.end).map((l) => l.op).pop() || best;
        return best && { plan: row.plan, op: best };
    }

    // Returns the rectangle of an op as {x, y, width, height}, in pixels of the canvas.
    box(plan, op) {
        const lane = this.shown.find((l) => plan.lanes[l].includes(op));
        const row = this.rows.find((r) => r.plan === plan && r.lane === lane);
        return { x: this.x(op.start), y: row.y, width: this.x(until(op, lane)) - this.x(op.start), height: shape.lane };
    }

    select(range) {
        this.selected = range;
        this.draw();
    }

    draw() {
        if (this.waiting) return;
        this.waiting = true;
        requestAnimationFrame(() => {
            this.waiting = false;
            this.paint();
        });
    }
}

// Returns the index of the first op of a sorted lane that ends after `time`.
function firstFrom(ops, time, end = (op) => op.end) {
    let low = 0, high = ops.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (end(ops[middle]) <= time) low = middle + 1;
        else high = middle;
    }
    return low;
}
