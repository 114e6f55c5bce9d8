/* What the visitor sees and does. The address may end in #check: then the page tests itself and reports. */

const $ = (id) => document.getElementById(id);
const QUICKEST = 5; // m/s, of a vehicle that is let go
const LOST = 8; // m from the target
const STUCK = 1.5; // s on its back, or lost, before it begins anew
const HISTORY = 8; // s of the plot
const BOX = [[-2.4, 2.4], [-2.4, 2.4], [0.35, 3]]; // m, where the target may be put

class Page {
    constructor(world) {
        Object.assign(this, {world, scene: new Scene($("view"), world), held: null, seed: 1, clock: 0, owed: 0, bad: 0});
        this.history = [];
        this.pointers = new Map();
        const {robot} = world.policy.contract;
        for (const [k, {name}] of world.airframes.entries()) {
            const strange = robot !== "any" && robot !== name ? " (not made for it)" : "";
            $("airframe").add(new Option(name.replaceAll("_", " ") + strange, k));
        }
        this.#controls();
        this.#pointer();
        this.#keys();
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.scene.dye());
        $("help").open = innerWidth > 720 && innerHeight > 720;
        this.settle();
    }

    /** What the sliders say, to the vehicle. */
    settle() {
        const {world} = this, load = $("load").value / 100, speed = Number($("wind").value);
        world.load = load;
        this.wind = [0.8 * speed, 0.6 * speed, 0];
        world.set({load, wind: this.wind, latency: $("latency").value / 1000});
        $("load-is").value = `${$("load").value} %`;
        $("lift").value = `thrust / weight ${world.thrustToWeight.toFixed(2)}`;
        $("wind").disabled = !world.feelsWind;
        $("wind-is").value = world.feelsWind ? `${speed.toFixed(1)} m/s` : "drag not known";
        $("latency-is").value = `${$("latency").value} ms`;
        const size = this.scene.magnified;
        $("source").textContent = `${size > 1.05 ? `Drawn ${size.toFixed(1)} times its size. ` : ""}` +
            `Its numbers: ${world.airframes[world.chosen].source}. Policy file: sha256 ${world.policy.contract.sha256.slice(0, 16)}.`;
    }

    choose(index) {
        if (index >= this.world.airframes.length) return;
        this.world.choose(index);
        $("airframe").value = index;
        this.settle();
        this.begin();
    }

    begin() {
        this.world.begin();
        this.scene.trail = [];
        this.bad = 0;
    }

    throw() {
        this.world.toss(this.seed++);
        this.scene.trail = [];
        this.bad = 0;
    }

    #controls() {
        $("throw").onclick = () => this.throw();
        $("reset").onclick = () => {
            for (const id of ["load", "wind", "latency"]) $(id).value = 0;
            this.world.aim.set([0, 0, 1.5]);
            this.scene.camera.reset();
            this.settle();
            this.begin();
        };
        $("airframe").onchange = (event) => this.choose(Number(event.target.value));
        for (const id of ["load", "wind", "latency"]) $(id).oninput = () => this.settle();
        $("panel").onsubmit = (event) => event.preventDefault();
    }

    put(place) {
        this.world.aim.set(place.map((p, k) => Math.min(BOX[k][1], Math.max(BOX[k][0], p))));
    }

    #pointer() {
        const view = $("view"), {pointers} = this;
        view.addEventListener("pointerdown", (event) => {
            view.setPointerCapture(event.pointerId);
            pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
            view.classList.add("busy");
            this.held = pointers.size > 1 ? {what: "pinch"} : this.#grasp(event);
        });
        view.addEventListener("pointermove", (event) => {
            const before = pointers.get(event.pointerId);
            if (before) this.#drag(event, before);
        });
        for (const kind of ["pointerup", "pointercancel"]) {
            view.addEventListener(kind, (event) => {
                pointers.delete(event.pointerId);
                view.classList.remove("busy");
                this.#release(event);
            });
        }
        view.addEventListener("wheel", (event) => {
            event.preventDefault();
            this.scene.camera.zoom(Math.exp(0.001 * event.deltaY));
        }, {passive: false});
    }

    /** What a finger or the mouse has hold of. */
    #grasp({offsetX: x, offsetY: y, timeStamp}) {
        const {scene, world} = this, {camera} = scene;
        const far = (p) => {
            const [px, py] = camera.see(p);
            return Math.hypot(px - x, py - y);
        };
        const began = {x, y, timeStamp};
        if (far(world.position) < scene.touched) {
            return {...began, what: "vehicle", place: [...world.position], velocity: [0, 0, 0], last: timeStamp};
        }
        const ring = (RING * camera.focal) / camera.see(world.aim)[2];
        if (far(world.aim) < ring + 16) {
            const under = camera.place(x, y, world.aim);
            return {...began, what: "target", from: [...world.aim].map((a, k) => a - under[k])};
        }
        return {...began, what: "room"};
    }

    #drag(event, before) {
        const {held, scene, world, pointers} = this, {camera} = scene, now = [event.offsetX, event.offsetY];
        if (held?.what === "pinch" && pointers.size === 2) {
            const spread = () => {
                const [a, b] = [...pointers.values()];
                return Math.max(20, Math.hypot(a[0] - b[0], a[1] - b[1]));
            };
            const old = spread();
            pointers.set(event.pointerId, now);
            camera.zoom(old / spread());
            return;
        }
        pointers.set(event.pointerId, now);
        if (held?.what === "target") this.put(camera.place(...now, world.aim).map((p, k) => p + held.from[k]));
        if (held?.what === "room") camera.orbit(now[0] - before[0], now[1] - before[1]);
        if (held?.what === "vehicle") {
            const place = camera.place(...now, held.place), dt = Math.max(4, event.timeStamp - held.last) / 1000;
            place[2] = Math.max(0.1, place[2]);
            const keep = Math.exp(-dt / 0.05); // jumps of a finger are smoothed over 50 ms
            held.velocity = held.velocity.map((v, k) => keep * v + ((1 - keep) * (place[k] - held.place[k])) / dt);
            Object.assign(held, {place, last: event.timeStamp});
        }
    }

    #release({offsetX: x, offsetY: y, timeStamp, type}) {
        const {held, world, scene} = this;
        this.held = null;
        const still = held && Math.hypot(x - held.x, y - held.y) < 6 && timeStamp - held.timeStamp < 400;
        if (held?.what === "room" && still && type === "pointerup") this.put(scene.camera.place(x, y, world.aim));
        if (held?.what !== "vehicle" || still) return;
        const rested = timeStamp - held.last > 120, speed = Math.hypot(...held.velocity);
        const share = rested ? 0 : Math.min(1, QUICKEST / Math.max(speed, 1e-9));
        world.velocity.set(held.velocity.map((v) => share * v));
        world.rate.set([-world.velocity[1], world.velocity[0], 0]); // it tumbles the way it flies
        scene.trail = [];
    }

    #keys() {
        const along = {ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0]};
        const height = {PageUp: 0.1, PageDown: -0.1};
        addEventListener("keydown", (event) => {
            if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
            const key = event.key, {aim} = this.world, {right, forward} = this.scene.camera;
            const level = Math.hypot(forward[0], forward[1]);
            if (key in along) {
                const [x, y] = along[key].map((a) => 0.1 * a);
                this.put([0, 1].map((k) => aim[k] + x * right[k] + (y * forward[k]) / level).concat(aim[2]));
            } else if (key in height) this.put([aim[0], aim[1], aim[2] + height[key]]);
            else if (key === " " && !/^(BUTTON|SUMMARY)$/.test(event.target.tagName)) this.throw();
            else if (key === "r" || key === "R") $("reset").click();
            else if (/^[1-9]$/.test(key)) this.choose(Number(key) - 1);
            else return;
            event.preventDefault();
        });
    }

    /** What the panel and the caption leave free: x, y, width, height in pixels. */
    free() {
        const panel = $("panel").getBoundingClientRect(), top = document.querySelector("header").offsetHeight;
        const below = panel.width > 0.7 * innerWidth;
        return below ? [0, top, innerWidth, panel.top - top] : [0, 0, panel.left, innerHeight];
    }

    /** As many control periods as have passed. */
    advance(seconds) {
        const {world} = this, period = 1 / world.policy.rate_hz;
        this.owed = Math.min(this.owed + seconds, 0.1); // a page that was away does not catch up
        for (; this.owed >= period; this.owed -= period) {
            const flown = world.step();
            if (this.held?.what === "vehicle") {
                world.position.set(this.held.place);
                world.velocity.fill(0);
                world.rate.fill(0);
            }
            const lying = world.inverted && world.position[2] < 0.05;
            this.bad = !flown || lying || !(world.distance < LOST) ? this.bad + period : 0;
            this.clock += period;
            this.scene.mark(this.clock);
            this.history.push(world.distance);
        }
        this.history.splice(0, this.history.length - Math.round(HISTORY * world.policy.rate_hz));
        $("word").hidden = !this.bad;
        $("word").textContent = this.bad ? "It did not come back. It begins anew ..." : "";
        if (this.bad > STUCK) this.begin();
    }

    plot() {
        const canvas = $("plot"), pen = canvas.getContext("2d"), {history} = this, {colour} = this.scene;
        const ratio = Math.min(2, devicePixelRatio || 1), [w, h] = [canvas.clientWidth, canvas.clientHeight];
        if (!w) return;
        Object.assign(canvas, {width: Math.round(w * ratio), height: Math.round(h * ratio)});
        pen.scale(ratio, ratio);
        Object.assign(pen, {strokeStyle: colour.line, globalAlpha: 0.18});
        pen.strokeRect(-1, -1, w + 2, h + 0.5);
        Object.assign(pen, {strokeStyle: colour.accent, globalAlpha: 1, lineWidth: 1.6, lineJoin: "round"});
        pen.beginPath();
        const most = HISTORY * this.world.policy.rate_hz, stride = Math.max(1, Math.floor(most / 300));
        for (let k = history.length % stride; k < history.length; k += stride) {
            pen.lineTo(w * (1 + (k - history.length) / most), h - 2 - (h - 6) * Math.min(1, Math.sqrt(history[k] / 2)));
        }
        pen.stroke();
    }

    tell() {
        const far = this.world.distance;
        const [number, unit] = far < 1 ? [(100 * far).toFixed(1), "cm"] : [Math.min(far, 99).toFixed(2), "m"];
        const bold = document.createElement("b");
        bold.textContent = `${number} ${unit}`;
        $("distance").replaceChildren(bold, " from the target");
    }

    /** Fly and draw until `time`, in ms. */
    frame(time) {
        const dt = Math.min(0.1, Math.max(0, (time - (this.last ?? time)) / 1000));
        this.last = time;
        this.advance(dt);
        this.scene.draw(this.clock, dt, this.free(), this.world.feelsWind ? this.wind : [0, 0, 0]);
        if (!(this.shown > time - 50)) {
            this.plot();
            this.tell();
            this.shown = time;
        }
    }

    run() {
        requestAnimationFrame((time) => {
            this.frame(time);
            this.run();
        });
    }
}

/** Microseconds that a step of the policy takes here, at best. */
function stepTime({exports}) {
    let best = Infinity;
    for (let steps = 256, round = 0; round < 8; ++round) {
        const began = performance.now();
        exports.idle(steps);
        const spent = performance.now() - began; // clocks of browsers are coarse
        if (spent < 2) steps *= 2;
        else best = Math.min(best, (1000 * spent) / steps);
    }
    return best;
}

/** Share of the canvas that is painted. */
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

/** 100 throws, then 60 frames: the numbers, as JSON, in the hidden element `report`. */
function check(page, policy) {
    const throws = page.world.throws(100);
    page.choose(0);
    page.throw();
    const began = performance.now();
    for (let k = 0; k < 60; ++k) page.frame(began + 16 * k);
    const frame = (performance.now() - began) / 60;
    const report = {used: policy.used, time: told(policy), throws, frame, painted: painted($("view"))};
    $("report").value = JSON.stringify(report);
}

async function open() {
    const text = JSON.parse($("module").textContent);
    const policy = await load(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
    const page = new Page(new World(policy));
    told(policy);
    if (location.hash === "#check") return check(page, policy);
    page.throw();
    page.run();
    setTimeout(() => told(policy), 3000); // by then the browser has compiled it well
}

open().catch((error) => {
    $("test").textContent = `This page does not fly: ${error.message}`;
    $("test").className = "bad";
});
