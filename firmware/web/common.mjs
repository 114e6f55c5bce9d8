/* What all pages share. The address may end in #check: then the page tests itself and reports. */

const $ = (id) => document.getElementById(id);

/** Pixels of a canvas per pixel of the page. */
const density = () => Math.min(2, devicePixelRatio || 1);

/** A canvas as large as it is shown, and its pen in pixels of the page; `fresh` when that has changed and emptied it. */
class Sheet {
    constructor(canvas) {
        Object.assign(this, {canvas, pen: canvas.getContext("2d"), width: 0, height: 0, fresh: true});
        new ResizeObserver(() => this.fit()).observe(canvas);
        this.fit();
    }

    fit() {
        const {canvas, pen} = this, ratio = density(), [w, h] = [canvas.clientWidth, canvas.clientHeight];
        const [width, height] = [Math.round(w * ratio), Math.round(h * ratio)];
        if (canvas.width === width && canvas.height === height && this.width === w) return;
        Object.assign(canvas, {width, height});
        pen.setTransform(ratio, 0, 0, ratio, 0, 0);
        Object.assign(this, {width: w, height: h, fresh: true});
    }

    clear() {
        this.pen.clearRect(0, 0, this.width, this.height);
    }

    stroke(points, colour, width, alpha = 1, close = false, dash = [], cap = "round") {
        const {pen} = this;
        path(pen, points, close);
        pen.setLineDash(dash);
        Object.assign(pen, {strokeStyle: colour, lineWidth: width, globalAlpha: alpha, lineCap: cap, lineJoin: "round"});
        pen.stroke();
    }

    fill(points, colour, alpha = 1) {
        const {pen} = this;
        path(pen, points, true);
        Object.assign(pen, {fillStyle: colour, globalAlpha: alpha});
        pen.fill();
    }
}

function path(pen, points, close) {
    pen.beginPath();
    for (const p of points) pen.lineTo(p[0], p[1]);
    if (close) pen.closePath();
}

const PAD = 12, SPARE = 48; // px around what moves, and of the canvas around that

/** What moves: a canvas only as large as what is drawn, because without a graphics card each of its pixels costs.
 *
 * Strokes and fills (pixels of the page) are kept until `show`. */
class Moving extends Sheet {
    constructor(canvas) {
        super(canvas);
        Object.assign(this, {drawn: [], box: [0, 0, 0, 0], need: [Infinity, Infinity, -Infinity, -Infinity]});
    }

    fit() {} // see show

    #keep(...call) {
        const {need} = this;
        this.drawn.push(call);
        for (const [x, y] of call[1]) {
            if (x < need[0]) need[0] = x;
            if (y < need[1]) need[1] = y;
            if (x > need[2]) need[2] = x;
            if (y > need[3]) need[3] = y;
        }
    }

    stroke(...how) {
        this.#keep(super.stroke, ...how);
    }

    fill(...how) {
        this.#keep(super.fill, ...how);
    }

    /** Show what was drawn since the last time. */
    show() {
        const {canvas, pen, need, drawn} = this, ratio = density(), [w, h] = [innerWidth, innerHeight];
        const cut = (x, most) => Math.min(most, Math.max(0, x));
        const [x0, y0] = [cut(need[0] - PAD, w), cut(need[1] - PAD, h)];
        const [x1, y1] = [cut(need[2] + PAD, w), cut(need[3] + PAD, h)];
        const [a, b, c, d] = this.box, size = (c - a) * (d - b), within = a <= x0 && b <= y0 && c >= x1 && d >= y1;
        if (!within || size > 3 * (x1 - x0 + 2 * SPARE) * (y1 - y0 + 2 * SPARE) || this.ratio !== ratio) {
            const corner = (x, most) => Math.round(cut(x, most));
            this.box = [corner(x0 - SPARE, w), corner(y0 - SPARE, h), corner(x1 + SPARE, w), corner(y1 + SPARE, h)];
            const [left, top, right, bottom] = this.box;
            Object.assign(canvas, {width: Math.ceil((right - left) * ratio), height: Math.ceil((bottom - top) * ratio)});
            Object.assign(canvas.style, {width: `${right - left}px`, height: `${bottom - top}px`});
            canvas.style.transform = `translate(${left}px, ${top}px)`;
            this.ratio = ratio;
        } else pen.clearRect(a, b, c - a, d - b);
        pen.setTransform(ratio, 0, 0, ratio, -ratio * this.box[0], -ratio * this.box[1]);
        for (const [how, ...call] of drawn) how.apply(this, call);
        this.drawn = [];
        this.need = [Infinity, Infinity, -Infinity, -Infinity];
    }
}

/** A picture of a world from above, x to the right and y up, or turned by a quarter: what is still, and what moves.
 *
 * `map`: pixels per metre, whether it is turned, and the pixels of the origin. */
class Plan {
    constructor(world) {
        Object.assign(this, {world, map: null, sheet: new Moving($("moving")), ground: new Sheet($("ground"))});
    }

    /** Pixels of a place. */
    see([x, y]) {
        const {scale, turned, x: px, y: py} = this.map;
        return turned ? [px - scale * y, py - scale * x] : [px + scale * x, py - scale * y];
    }

    /** The place under a pixel. */
    place([px, py]) {
        const {scale, turned, x, y} = this.map;
        return turned ? [(y - py) / scale, (x - px) / scale] : [(px - x) / scale, (y - py) / scale];
    }
}

/** A fading line in a few parts, as a line for each of its points would be slow: shade (1 to `shades`) -> points.
 *
 * `trail`: [when, pixels], the newest last; it fades within `tail` s. */
function fading(trail, now, tail, shades) {
    const parts = new Map();
    for (const [k, [when, seen]] of trail.entries()) {
        const shade = Math.ceil(shades * (1 - (now - when) / tail));
        if (k && shade > 0) parts.set(shade, parts.get(shade) ?? [trail[k - 1][1]]).get(shade).push(seen);
    }
    return parts;
}

/** The colours of the style sheet, which follow the system's. */
function colours(...names) {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(names.map((n) => [n, style.getPropertyValue(`--${n}`).trim()]));
}

/** Call when the system turns dark or light. */
function onDark(dye) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dye);
}

/** What the panel and the caption leave free, measured when the window changes only: x, y, width, height in pixels. */
class Room {
    constructor() {
        this.measure();
        for (const element of [$("panel"), document.querySelector("header"), document.body]) {
            new ResizeObserver(() => this.measure()).observe(element);
        }
    }

    measure() {
        const panel = $("panel").getBoundingClientRect(), top = document.querySelector("header").offsetHeight;
        const below = panel.width > 0.7 * innerWidth;
        this.box = below ? [0, top, innerWidth, panel.top - top] : [0, 0, panel.left, innerHeight];
        this.top = top;
    }
}

/** Text of an element that is touched only when it changes. */
function say(id, text) {
    const element = $(id);
    if (element.said !== text) element.textContent = element.said = text;
}

/** A line of numbers 0 to 1, the last `most` of them, on a sheet. */
function plot(sheet, values, most, colour, frame) {
    const {pen, width: w, height: h} = sheet;
    if (!w) return;
    pen.globalAlpha = 1;
    pen.clearRect(0, 0, w, h);
    sheet.stroke([[0, h - 0.5], [w, h - 0.5]], frame, 1, 0.18);
    const stride = Math.max(1, Math.floor(most / 200)), points = [];
    for (let k = values.length % stride; k < values.length; k += stride) {
        points.push([w * (1 + (k - values.length) / most), h - 2 - (h - 6) * Math.min(1, values[k])]);
    }
    sheet.stroke(points, colour, 1.6);
}

/** Fixed steps of `period` s for the time that passes; a page that was away does not catch up. */
class Steps {
    constructor(period) {
        Object.assign(this, {period, owed: 0, last: null});
    }

    /** At `time` (ms, of a frame): call `step` as often as is due; s since the last frame. */
    advance(time, step) {
        const dt = Math.min(0.1, Math.max(0, (time - (this.last ?? time)) / 1000));
        this.last = time;
        this.owed += dt;
        for (; this.owed >= this.period; this.owed -= this.period) step();
        return dt;
    }

    /** How far the present moment is from the last step to the next one, 0 to 1. */
    get share() {
        return this.owed / this.period;
    }
}

/** Microseconds that a step of the policy takes here, at best. */
function stepTime({exports}) {
    let best = Infinity;
    for (let steps = 8, round = 0; round < 16; ++round) {
        const began = performance.now();
        exports.idle(steps);
        const spent = performance.now() - began; // clocks of browsers are coarse
        if (spent < 2) steps *= 2;
        else best = Math.min(best, (1000 * spent) / steps);
    }
    return best;
}

/** Share of a canvas that is painted. */
function painted(canvas) {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let k = 3; k < data.length; k += 4) count += data[k] > 0;
    return (4 * count) / data.length;
}

/** The caption's last line. */
function told(policy) {
    const time = stepTime(policy), speed = Number.isFinite(time) ? ` ${time.toFixed(1)} \u00b5s a step here.` : "";
    $("test").textContent = `Self-test passed: ${policy.contract.steps} recorded steps, the worst off by ` +
        `${(100 * policy.used).toFixed(1)} % of what is tolerated.${speed}`;
    $("test").className = "good";
    return time;
}

/** Open the page that `make` makes of a policy; it has `begin`, `frame` (until a time, ms) and `check` (its scores). */
async function open(make) {
    const text = JSON.parse($("module").textContent);
    const policy = await load(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
    const page = make(policy);
    told(policy);
    if (location.hash === "#check") {
        const scores = page.check(), began = performance.now();
        page.begin();
        for (let k = 0; k < 60; ++k) page.frame(began + 16 * k);
        const frame = (performance.now() - began) / 60;
        const shown = {painted: painted($("moving")), ground: painted($("ground"))};
        $("report").value = JSON.stringify({used: policy.used, time: told(policy), ...scores, frame, ...shown});
        return;
    }
    page.begin();
    requestAnimationFrame(function again(time) {
        page.frame(time);
        requestAnimationFrame(again);
    });
    setTimeout(() => told(policy), 3000); // by then the browser has compiled it well
}

/** The same; what goes wrong is said. */
function start(make) {
    open(make).catch((error) => {
        $("test").textContent = `This page does not work: ${error.message}`;
        $("test").className = "bad";
    });
}
