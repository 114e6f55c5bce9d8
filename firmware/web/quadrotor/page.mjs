/* What the visitor sees and does. */

const QUICKEST = 5; // m/s, of a vehicle that is let go
const LOST = 8; // m from the target
const STUCK = 1.5; // s on its back, or lost, before it begins anew
const HISTORY = 8; // s of the plot
const BOX = [[-2.4, 2.4], [-2.4, 2.4], [0.35, 3]]; // m, where the target may be put

class Page {
    constructor(world) {
        Object.assign(this, {world, scene: new Scene($("moving"), world), held: null, seed: 1, clock: 0, bad: 0});
        this.steps = new Steps(1 / world.policy.rate_hz);
        this.room = new Room();
        this.sheet = new Sheet($("plot"));
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
        onDark(() => this.scene.dye());
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
        this.rest();
    }

    rest() {
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
            this.rest();
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

    /** As many control periods as have passed at `time`, in ms; s since the last frame. */
    advance(time) {
        const {world, steps: {period}} = this;
        const dt = this.steps.advance(time, () => {
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
            this.history.push(Math.sqrt(world.distance / 2));
        });
        this.history.splice(0, this.history.length - Math.round(HISTORY * world.policy.rate_hz));
        $("word").hidden = !this.bad;
        $("word").textContent = this.bad ? "It did not come back. It begins anew ..." : "";
        if (this.bad > STUCK) this.rest();
        return dt;
    }

    tell() {
        const far = this.world.distance;
        const [number, unit] = far < 1 ? [(100 * far).toFixed(1), "cm"] : [Math.min(far, 99).toFixed(2), "m"];
        say("distance", `${number} ${unit}`);
    }

    /** Fly and draw until `time`, in ms. */
    frame(time) {
        const dt = this.advance(time), {colour} = this.scene;
        this.scene.draw(this.clock, dt, this.room.box, this.world.feelsWind ? this.wind : [0, 0, 0]);
        if (this.shown > time - 50) return;
        plot(this.sheet, this.history, HISTORY * this.world.policy.rate_hz, colour.accent, colour.line);
        this.tell();
        this.shown = time;
    }

    begin() {
        this.throw();
    }

    /** 100 throws. */
    check() {
        const throws = this.world.throws(100);
        this.choose(0);
        return {throws};
    }
}

start((policy) => new Page(new World(policy)));
