// paint.js: paints the picture of lanes, and changes nothing else.
const colorNames = ["panel", "text", "muted", "rule", "lane", "accent", "hatch", "backward", "block", "raw", "payload", "comp",
    "decomp", "copy", "pack", "exposed", "on-op", "on-light"];
// Colours of text on ops: dark on light colours, in dark mode too.
const textColor = { comp: "on-light", decomp: "on-light", copy: "on-light", backward: "on-light", pack: "on-light", block: "text" };
const exposedColor = { communication: "exposed", compression: "comp", idle: "hatch" };

Object.assign(Lanes.prototype, {
    readColors(context) {
        const style = getComputedStyle(document.documentElement);
        this.colors = Object.fromEntries(colorNames.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
        const tile = document.createElement("canvas");
        tile.width = tile.height = 6;
        const pen = tile.getContext("2d");
        pen.strokeStyle = this.colors.hatch;
        pen.beginPath();
        for (const off of [-6, 0, 6]) { pen.moveTo(off, 6); pen.lineTo(off + 6, 0); }
        pen.stroke();
        this.colors.hatching = context.createPattern(tile, "repeat");
    },

    paint() {
        const pen = this.canvas.getContext("2d");
        if (!this.colors) this.readColors(pen);
        pen.fillStyle = this.colors.panel;
        pen.fillRect(0, 0, this.width, this.height);
        pen.textBaseline = "middle";
        this.paintAxis(pen);
        for (const band of this.bands) this.paintFrame(pen, band);
        pen.save();
        pen.beginPath();
        pen.rect(shape.gutter, 0, this.span, this.height);
        pen.clip();
        for (const band of this.bands) this.paintShade(pen, band);
        for (const row of this.rows) this.paintLane(pen, row);
        for (const band of this.bands) this.paintBand(pen, band);
        if (this.hovered) this.outline(pen, this.hovered, this.colors.text);
        pen.restore();
        for (const band of this.bands) this.paintEnd(pen, band);
    },

    font(pen, size, weight = 400) { pen.font = `${weight} ${size}px system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif`; },

    paintAxis(pen) {
        const length = this.view.to - this.view.from;
        const raw = length / Math.max(2, this.span / 110);
        const power = 10 ** Math.floor(Math.log10(raw));
        const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
        const [by, unit] = timeUnit(length);
        const decimals = Math.max(0, Math.ceil(-Math.log10(step / by) - 1e-9));
        this.font(pen, 12);
        pen.textAlign = "center";
        for (let i = Math.ceil(this.view.from / step); i * step <= this.view.to; i++) {
            const x = this.x(i * step);
            pen.fillStyle = this.colors.rule;
            pen.fillRect(Math.round(x), shape.axis - 8, 1, this.height - shape.axis + 2);
            pen.fillStyle = this.colors.muted;
            if (x < this.width - 24) pen.fillText((i * step / by).toFixed(decimals), x, shape.axis - 17);
        }
        pen.textAlign = "left";
        pen.fillText(`time, ${unit}`, 0, shape.axis - 17);
    },

    paintFrame(pen, band) {
        const { colors } = this;
        pen.textAlign = "left";
        this.font(pen, 13, 650);
        pen.fillStyle = colors.text;
        pen.fillText(band.plan.name, 0, band.title + 14);
        this.font(pen, 12);
        pen.fillStyle = colors.muted;
        for (const row of this.rows.filter((r) => r.plan === band.plan)) {
            const kind = data.info.cores ? laneKind(row.lane) : "";
            pen.fillText(lanes[row.lane], 8, row.y + shape.lane / 2 - (kind ? 6 : 0));
            this.font(pen, 10);
            pen.fillText(kind, 8, row.y + shape.lane / 2 + 7);
            this.font(pen, 12);
            pen.fillStyle = colors.lane;
            pen.fillRect(shape.gutter, row.y, this.span, shape.lane);
            pen.fillStyle = colors.muted;
        }
        pen.fillText("exposed", 8, band.strip + shape.strip / 2);
    },

    // Paints the visible ops of a lane, at most one for each pixel.
    paintLane(pen, { plan, lane, y }) {
        const { colors, selected } = this;
        this.paintBubbles(pen, plan, lane, y);
        this.paintLatencies(pen, plan, lane, y);
        const ops = plan.lanes[lane];
        let painted = -Infinity;
        for (let i = firstFrom(ops, this.view.from, (op) => until(op, lane)); i < ops.length && ops[i].start < this.view.to; i++) {
            const op = ops[i], left = this.x(op.start), width = this.x(until(op, lane)) - left;
            const own = selected && touches(plan, op, selected);
            if (left + width < painted && !own) continue;
            const drawn = Math.max(1, width > 3 ? width - 1 : width);
            painted = Math.floor(left) + 1;
            pen.globalAlpha = selected && !own ? 0.22 : 1;
            const name = plan.color(op);
            pen.fillStyle = colors[name];
            pen.fillRect(left, y, own ? Math.max(drawn, 2) : drawn, shape.lane);
            if (width > 34) this.paintText(pen, plan, op, left, width, y, name);
            pen.globalAlpha = 1;
            if (own) this.outlineBox(pen, left, y, Math.max(drawn, 2), colors.text);
        }
    },

    paintText(pen, plan, op, left, width, y, color) {
        const from = Math.max(left, shape.gutter), to = Math.min(left + width, shape.gutter + this.span);
        if (to - from < 34) return;
        const text = op.unit < 0 ? plan.opName(op) : op.kind === kinds.backward ? plan.tensors[op.unit][0] : plan.unitName(plan.units[op.unit]);
        pen.fillStyle = this.colors[textColor[color] || "on-op"];
        this.font(pen, 11.5);
        pen.textAlign = "left";
        const fits = fit(pen, text, to - from - 9);
        if (fits) pen.fillText(fits, from + 4, y + shape.lane / 2 + 0.5);
    },

    // Paints in light colours the times when a lane is free again, but an op's result is still on its way.
    paintLatencies(pen, plan, lane, y) {
        const late = plan.latencies[lane], { colors, selected } = this;
        let painted = -Infinity;
        for (let i = firstFrom(late, this.view.from, (l) => l.reach); i < late.length && late[i].start < this.view.to; i++) {
            const { op, start, end } = late[i], left = this.x(start), right = this.x(end);
            if (right < painted + 1) continue;
            pen.globalAlpha = selected && !touches(plan, op, selected) ? 0.1 : 0.4;
            pen.fillStyle = colors[plan.color(op)];
            const from = Math.max(left, painted); // latencies may overlap: does not paint twice
            pen.fillRect(from, y + shape.low, Math.max(right - from, 1), shape.lane - shape.low);
            painted = Math.max(painted, right);
        }
        pen.globalAlpha = 1;
    },

    paintBubbles(pen, plan, lane, y) {
        pen.fillStyle = this.colors.hatching;
        const idle = plan.bubbles[lane];
        for (let i = firstFrom(idle, this.view.from); i < idle.length && idle[i].start < this.view.to; i++) {
            const left = this.x(idle[i].start), width = this.x(idle[i].end) - left;
            if (width >= 2) pen.fillRect(left, y, width, shape.lane);
        }
    },

    // Paints exposed time as a shade behind the lanes, and a strip below them with its kind and length.
    exposedSeen(pen, plan, each) {
        const { exposed } = plan;
        for (let i = firstFrom(exposed, this.view.from); i < exposed.length && exposed[i].start < this.view.to; i++) {
            const left = this.x(exposed[i].start);
            pen.fillStyle = this.colors[exposedColor[exposed[i].kind]];
            each(exposed[i], left, Math.max(this.x(exposed[i].end) - left, 0.5));
        }
    },
    paintShade(pen, { plan, top, strip }) {
        pen.globalAlpha = 0.16;
        this.exposedSeen(pen, plan, ({ kind }, left, width) => {
            if (kind !== "idle") pen.fillRect(left, top, width, strip - top - shape.gap);
        });
        pen.globalAlpha = 1;
    },
    paintBand(pen, band) {
        const { plan } = band;
        this.exposedSeen(pen, plan, ({ start, end, kind }, left, width) => {
            pen.fillRect(left, band.strip, width, shape.strip);
            const from = Math.max(left, shape.gutter), room = Math.min(left + width, shape.gutter + this.span) - from - 8;
            if (room < 30) return;
            this.font(pen, 10.5, 600);
            pen.fillStyle = this.colors[kind === "idle" ? "text" : "on-light"];
            pen.textAlign = "left";
            const text = fit(pen, `${kind} ${format.time(end - start)}`, room);
            if (text) pen.fillText(text, from + 4, band.strip + shape.strip / 2 + 0.5);
        });
        const x = this.x(plan.backwardEnd);
        pen.strokeStyle = this.colors.muted;
        pen.setLineDash([3, 3]);
        pen.beginPath();
        pen.moveTo(x, band.title + 5);
        pen.lineTo(x, band.bottom);
        pen.stroke();
        pen.setLineDash([]);
    },

    // Paints lines at the end of backward and at the end of the step.
    paintEnd(pen, { plan, title, bottom }) {
        if (data.info.inner) return; // a round shows the begin of the next one
        this.font(pen, 12, 600);
        const label = `step ${format.time(plan.total)}`, x = this.x(plan.total);
        const wide = pen.measureText(label).width;
        let free = shape.gutter + this.span;
        if (x >= shape.gutter && x <= free + 1) {
            pen.fillStyle = this.colors.text;
            pen.fillRect(x - 1, title + 4, 2, bottom - title - 4);
            pen.textAlign = "left";
            const at = x + 7 + wide < this.width ? x + 7 : x - 7 - wide;
            pen.fillText(label, at, title + 13);
            free = at;
        }
        const end = this.x(plan.backwardEnd);
        this.font(pen, 12);
        const says = "backward ends";
        if (end < shape.gutter + 70 || end > shape.gutter + this.span) return;
        const room = pen.measureText(says).width;
        const at = end < free && end + 6 + room < free - 8 ? end + 6 : Math.min(end - 6, free - 12) - room;
        pen.fillStyle = this.colors.muted;
        pen.fillText(says, at, title + 13);
    },

    outline(pen, { plan, op }, color) {
        for (const row of this.rows)
            if (row.plan === plan && op.lanes >> row.lane & 1) {
                this.outlineBox(pen, this.x(op.start), row.y, Math.max(this.x(until(op, row.lane)) - this.x(op.start), 2), color);
                const late = plan.latencies[row.lane].find((l) => l.op === op);
                if (late) this.outlineBox(pen, this.x(late.start), row.y + shape.low, this.x(late.end) - this.x(late.start), color, shape.lane - shape.low);
            }
    },
    outlineBox(pen, left, y, width, color, height = shape.lane) {
        pen.strokeStyle = color;
        pen.lineWidth = 1.5;
        pen.strokeRect(left - 0.5, y - 0.5, width + 1, height + 1);
        pen.lineWidth = 1;
    },
});

// Does an op synchronize one of these tensors?
function touches(plan, op, { first, n }) {
    if (op.unit < 0) return false;
    if (op.kind === kinds.backward) return op.unit >= first && op.unit < first + n;
    const unit = plan.units[op.unit];
    return unit.first < first + n && first < unit.first + unit.n;
}

// Cuts a text to a width in pixels.
function fit(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let n = Math.floor(text.length * width / pen.measureText(text).width);
    while (n > 1 && pen.measureText(`${text.slice(0, n)}\u2026`).width > width) n--;
    return n > 2 ? `${text.slice(0, n)}\u2026` : "";
}
