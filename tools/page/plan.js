// plan.js: one plan as the page needs it: named ops, sorted lanes, idle times, exposed time. Draws nothing.
const kinds = { backward: 0, collective: 1, comp: 2, decomp: 3, copy: 4, pack: 5, forward: 6, update: 7 };

// Splits a text such as "comp@gpu > inter.alltoall > ..." into steps, and marks those that move payloads.
function parseOption(text) {
    let payload = false;
    return text.split(" > ").map((name) => {
        if (name.startsWith("comp")) payload = true;
        else if (name.startsWith("decomp")) payload = false;
        return { name, payload };
    });
}

// An op occupies a core for its core time, and links for its gap, which may end before the op does. These return how
// long it occupies a lane, and until when.
const kept = (op, lane) => (isCore(lane) ? op.core : op.link);
const until = (op, lane) => op.start + kept(op, lane);
const linkLanes = lanes.reduce((bits, _, lane) => (isCore(lane) ? bits : bits | 1 << lane), 0);

// Returns the times from when an op frees the lane until the op ends: on its links or, if it has none, on its core.
// `reach` is the latest end so far, for a binary search.
function findLatencies(ops, lane) {
    let reach = 0;
    return ops.filter((op) => op.end > until(op, lane) && !(isCore(lane) && op.lanes & linkLanes)).map((op) => {
        reach = Math.max(reach, op.end);
        return { op, start: until(op, lane), end: op.end, reach };
    });
}

class Plan {
    // tensors: [name, elements, compute time in ns] each; raw: an element of data.plans
    constructor(raw, tensors, model) {
        this.name = raw.name;
        this.report = raw.report;
        this.tensors = tensors;
        this.units = raw.units.map(([first, n, begin, elements, codec, text], number) => ({
            number, first, n, begin, elements, codec, text, option: parseOption(text), ops: [], chunk: 0, chunks: 1,
        }));
        this.numberChunks();
        this.readOps(raw.events, model);
        this.readExposed();
    }

    numberChunks() {
        const chunks = new Map();
        for (const unit of this.units) {
            if (unit.n !== 1) continue;
            if (!chunks.has(unit.first)) chunks.set(unit.first, []);
            unit.chunk = chunks.get(unit.first).push(unit) - 1;
        }
        for (const unit of this.units) if (unit.n === 1) unit.chunks = chunks.get(unit.first).length;
    }

    // An event is nine numbers: unit, step, kind, lanes, bytes, start, duration, and how long it occupies its core
    // and its links. Time 0 is the start of the step.
    readOps(events, model) {
        this.ops = [];
        this.events = []; // in the order of the data; null if an event was not measured
        this.forward = model.forward;
        if (model.forward > 0) this.ops.push({ kind: kinds.forward, unit: -1, step: 0, lanes: 1, bytes: 0, start: 0, end: model.forward, core: model.forward, link: 0 });
        let last = 0;
        for (let i = 0; i < events.length; i += 9) {
            if (events[i + 5] < 0) {
                this.events.push(null);
                continue;
            }
            const start = model.forward + events[i + 5];
            const op = { kind: events[i + 2], unit: events[i], step: events[i + 1], lanes: events[i + 3], bytes: events[i + 4], start, end: start + events[i + 6],
                core: events[i + 7], link: events[i + 8] };
            this.ops.push(op);
            this.events.push(op);
            if (op.kind !== kinds.backward) this.units[op.unit].ops.push(op);
            last = Math.max(last, op.end);
        }
        this.end = last;
        if (model.update > 0) this.ops.push({ kind: kinds.update, unit: -1, step: 0, lanes: 1, bytes: 0, start: last, end: last + model.update, core: model.update, link: 0 });
        this.total = Math.max(last, model.forward) + model.update;
        this.ops.forEach((op, i) => { op.number = i; });
        this.lanes = lanes.map((_, lane) => this.ops.filter((op) => op.lanes >> lane & 1 && (kept(op, lane) > 0 || op.end === op.start)).sort((a, b) => a.start - b.start));
        this.bubbles = this.lanes.map((ops, lane) => {
            const own = ops.filter((op) => op.kind < kinds.forward), idle = [];
            for (let i = 1; i < own.length; i++)
                if (own[i].start > until(own[i - 1], lane)) idle.push({ start: until(own[i - 1], lane), end: own[i].start });
            return idle;
        });
        this.latencies = this.lanes.map((ops, lane) => findLatencies(ops, lane));
        this.backwardEnd = model.forward;
        this.ready = this.tensors.map(() => model.forward);
        for (const op of this.ops) {
            if (op.kind !== kinds.backward) continue;
            this.ready[op.unit] = op.end;
            this.backwardEnd = Math.max(this.backwardEnd, op.end);
        }
        for (const unit of this.units) this.readUnit(unit);
    }

    readUnit(unit) {
        unit.ops.sort((a, b) => a.start - b.start || a.end - b.end);
        unit.ready = this.ready[unit.first + unit.n - 1];
        unit.done = unit.ops.length ? Math.max(...unit.ops.map((op) => op.end)) : unit.ready;
        unit.busy = 0;
        let free = unit.ready;
        unit.ops.forEach((op, i) => {
            op.wait = Math.max(0, op.start - free); // it was ready, but its lane was busy
            op.first = i === 0;
            op.up = unit.ops.slice(0, i).some((before) => before.step === op.step && before.kind < kinds.copy);
            free = op.end;
            unit.busy += op.end - op.start;
        });
    }

    // Finds exposed time: intervals in which backward does not run, and a link is busy or only compression runs.
    readExposed() {
        const points = [];
        for (const op of this.ops) {
            if (op.kind >= kinds.forward || op.end === op.start) continue;
            const what = op.kind === kinds.backward ? 0 : op.lanes & linkLanes ? 1 : 2;
            points.push([op.start, what, 1], [op.end, what, -1]);
        }
        points.sort((a, b) => a[0] - b[0]);
        this.exposed = [];
        const open = [0, 0, 0];
        for (let i = 0; i < points.length; i++) {
            const [at, what, change] = points[i];
            open[what] += change;
            const next = i + 1 < points.length ? points[i + 1][0] : at;
            if (next === at || open[0]) continue;
            const kind = open[1] ? "communication" : open[2] ? "compression" : "idle";
            const before = this.exposed[this.exposed.length - 1];
            if (before && before.end === at && before.kind === kind) before.end = next;
            else this.exposed.push({ start: at, end: next, kind });
        }
    }

    unitName(unit) {
        const first = this.tensors[unit.first][0];
        if (unit.n > 1) return `${first} \u2026 ${this.tensors[unit.first + unit.n - 1][0]} (${unit.n} tensors)`;
        return unit.chunks > 1 ? `${first} (chunk ${unit.chunk + 1} of ${unit.chunks})` : first;
    }

    // Returns the range of tensors that an op belongs to.
    range(op) {
        if (op.unit < 0) return null;
        if (op.kind === kinds.backward) return { first: op.unit, n: 1, unit: this.units.find((u) => op.unit >= u.first && op.unit < u.first + u.n) };
        const unit = this.units[op.unit];
        return { first: unit.first, n: unit.n, unit };
    }

    opName(op) {
        switch (op.kind) {
        case kinds.forward: return "Forward";
        case kinds.update: return "Update";
        case kinds.backward: return data.info.inner ? this.tensors[op.unit][0] : "Backward";
        case kinds.copy: return op.up ? "Copy from the host" : "Copy to the host";
        case kinds.pack: return op.first ? "Pack the group" : "Unpack the group";
        default: {
            const step = this.units[op.unit].option[op.step];
            return step ? `${step.name}${op.kind === kinds.collective && step.payload ? " of payloads" : ""}` : "op";
        }
        }
    }

    // Returns the name of an op's colour.
    color(op) {
        if (op.kind === kinds.collective) {
            const step = this.units[op.unit].option[op.step];
            return step && step.payload ? "payload" : "raw";
        }
        return ["backward", "raw", "comp", "decomp", "copy", "pack", "block", "block"][op.kind];
    }
}
