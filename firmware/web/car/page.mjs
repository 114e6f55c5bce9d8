/* What the visitor sees and does. */

const HISTORY = 8; // s of the plot
const STUCK = 2; // s without moving, until it begins anew
const BARREL = 0.16; // m
const BRAKE = -1; // m/s that is asked for by who brakes
const STICK = 70; // px of a finger's way to full lock

class Page {
    constructor(world) {
        Object.assign(this, {world, seed: 1, clock: 0, still: 0, mode: "", line: [], history: [], keys: new Set()});
        Object.assign(this, {stick: null, waits: false});
        world.lay(randomTrack(this.seed));
        this.scene = new Scene(world);
        this.steps = new Steps(world.period);
        this.room = new Room();
        this.sheet = new Sheet($("plot"));
        const {robot} = world.policy.contract;
        for (const [k, {name}] of world.cars.entries()) {
            $("car").add(new Option(name.replaceAll("_", " ") + (robot === name ? "" : " (not made for it)"), k));
        }
        this.#controls();
        this.#pointer();
        this.#keyboard();
        onDark(() => this.scene.dye());
        $("help").open = innerWidth > 720 && innerHeight > 860;
        this.settle();
        this.begin();
    }

    /** What the sliders say, to the cars. */
    settle() {
        const {world} = this, value = (id) => Number($(id).value);
        world.set({friction: value("friction") / 100, mass: value("mass") / 100, latency: value("latency") / 1000});
        const {friction, mass} = world.parameters;
        $("friction-is").value = friction[0].toFixed(2);
        $("mass-is").value = `${mass[0].toFixed(2)} kg`;
        $("latency-is").value = `${$("latency").value} ms`;
        $("source").textContent = `Its numbers: ${world.cars[world.chosen].source}. Sensors are exact. ` +
            `Policy file: sha256 ${world.policy.contract.sha256.slice(0, 16)}.`;
    }

    choose(index) {
        if (index >= this.world.cars.length) return;
        this.world.choose(index);
        $("car").value = index;
        this.settle();
        this.begin();
    }

    /** Everybody to the line. */
    begin() {
        const racing = this.mode === "race";
        this.world.begin(0, 0, racing ? -0.4 : 0);
        this.world.begin(1, 0, 0.4);
        this.scene.trails = [[], []];
        this.still = 0;
        this.waits = racing;
        this.before = this.poses();
        this.hand = [0, 0];
        this.say(racing ? "Arrow keys or W A S D, or hold and drag. It starts when you do." : "");
    }

    say(text, seconds = Infinity) {
        this.until = this.clock + seconds;
        say("word", text);
        $("word").hidden = !text;
    }

    lay(points) {
        this.world.lay(points);
        this.begin();
    }

    /** Race, draw, or neither. */
    become(mode) {
        this.mode = this.mode === mode ? "" : mode;
        for (const id of ["race", "draw"]) $(id).setAttribute("aria-pressed", this.mode === id);
        $("view").classList.toggle("draws", this.mode === "draw");
        this.line = [];
        this.begin();
        if (this.mode === "draw") this.say("Draw a closed line.");
    }

    #controls() {
        $("track").onclick = () => this.lay(randomTrack(++this.seed));
        $("race").onclick = () => this.become("race");
        $("draw").onclick = () => this.become("draw");
        $("reset").onclick = () => {
            Object.assign($("friction"), {value: 100});
            Object.assign($("mass"), {value: 100});
            Object.assign($("latency"), {value: 0});
            this.world.stand([]);
            this.settle();
            this.begin();
        };
        $("car").onchange = (event) => this.choose(Number(event.target.value));
        for (const id of ["friction", "mass", "latency"]) $(id).oninput = () => this.settle();
        $("panel").onsubmit = (event) => event.preventDefault();
    }

    /** The barrel near a place, as an index; -1: none. */
    #barrel([x, y]) {
        const near = Math.max(0.4, 16 / this.scene.map.scale);
        return this.world.barrels.findIndex(([u, v]) => Math.hypot(u - x, v - y) < near);
    }

    #free(place) {
        return this.world.racers.every(({position: [x, y]}) => Math.hypot(x - place[0], y - place[1]) > 0.7);
    }

    #pointer() {
        const view = $("view"), at = ({offsetX, offsetY}) => [offsetX, offsetY];
        view.addEventListener("pointerdown", (event) => {
            view.setPointerCapture(event.pointerId);
            if (this.mode === "draw") this.line = [at(event)];
            else if (this.mode === "race") this.stick = {from: at(event), now: at(event)};
            else this.held = {index: this.#barrel(this.scene.place(at(event))), from: at(event), moved: false};
        });
        view.addEventListener("pointermove", (event) => {
            const now = at(event), place = this.scene.place(now), {held} = this;
            if (this.mode === "draw" && this.line.length) this.line.push(now);
            if (this.stick) this.stick.now = now;
            if (!held) return;
            held.moved ||= Math.hypot(now[0] - held.from[0], now[1] - held.from[1]) > 6;
            if (held.moved && held.index >= 0 && this.#free(place)) {
                this.world.stand(this.world.barrels.map((b, k) => (k === held.index ? [...place, BARREL] : b)));
            }
        });
        view.addEventListener("pointerup", (event) => {
            const {held} = this;
            if (this.mode === "draw") this.#close();
            else if (held && !held.moved) this.#tap(this.scene.place(at(event)), held.index);
            this.held = this.stick = null;
        });
        view.addEventListener("pointercancel", () => {
            this.held = this.stick = null;
            this.line = [];
        });
    }

    /** A barrel more, or one less. */
    #tap(place, index) {
        const {world} = this;
        if (index >= 0) world.stand(world.barrels.filter((_, k) => k !== index));
        else if (world.clearance(place) > -0.1 && this.#free(place)) {
            world.stand([...world.barrels, [...place, BARREL]].slice(-MOST_BARRELS));
        }
    }

    /** A track of what was drawn. */
    #close() {
        const line = this.line.map((p) => this.scene.place(p));
        this.line = [];
        try {
            const points = drawn(line);
            this.become("");
            this.lay(points);
        } catch (error) {
            this.say(error.message, 4);
        }
    }

    #keyboard() {
        const drives = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "w", "a", "s", "d"]);
        const named = (key) => (key.length === 1 ? key.toLowerCase() : key);
        addEventListener("keydown", (event) => {
            if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
            const key = named(event.key);
            if (this.mode === "race" && drives.has(key)) this.keys.add(key);
            else if (key === "t") $("track").click();
            else if (key === "r") $("reset").click();
            else if (key === "m") $("race").click();
            else if (key === "d") $("draw").click();
            else if (/^[1-9]$/.test(key)) this.choose(Number(key) - 1);
            else return;
            event.preventDefault();
        });
        addEventListener("keyup", (event) => this.keys.delete(named(event.key)));
        addEventListener("blur", () => this.keys.clear());
    }

    /** Steering and speed that the visitor asks for; keys turn the wheel little by little, less the faster it is. */
    wheel() {
        const {keys, stick, world: {limits, period, racers: [, mine], parameters}} = this;
        const pressed = (...names) => names.some((name) => keys.has(name));
        const lock = Math.min(limits.steering, parameters.steering_limit[0]), most = limits.speed;
        if (stick) {
            const clip = (x) => Math.min(1, Math.max(-1, x / STICK)), [x, y] = [0, 1].map((i) => clip(stick.now[i] - stick.from[i]));
            const told = y < 0 ? -y * most : y > 0.3 ? BRAKE : 0.9 * mine.speed;
            return (this.hand = [-x * lock, told]);
        }
        const turn = pressed("ArrowLeft", "a") - pressed("ArrowRight", "d");
        const goal = (turn * lock) / (1 + 0.12 * mine.speed), step = (turn ? 2.5 : 4) * period;
        const steering = this.hand[0] + Math.min(step, Math.max(-step, goal - this.hand[0]));
        const speed = pressed("ArrowUp", "w") ? most : pressed("ArrowDown", "s") ? BRAKE : 0.92 * mine.body[4];
        return (this.hand = [steering, speed]);
    }

    poses() {
        const racers = this.world.racers.slice(0, this.mode === "race" ? 2 : 1);
        return racers.map(({body: [x, y, cos, sin], steering}) => ({x, y, cos, sin, steering}));
    }

    /** A control period of all. */
    step() {
        const {world, clock} = this, racing = this.mode === "race";
        if (this.waits && (this.keys.size || this.stick)) {
            this.waits = false;
            this.say("Go!", 1);
        }
        if (clock > this.until) this.say("");
        this.clock += world.period;
        this.before = this.poses();
        this.ranges = world.policy.signals.lidar ? [...world.policy.signals.lidar] : [];
        if (this.waits || this.mode === "draw") {
            world.exports.sense();
            return;
        }
        const moved = world.step(racing ? this.wheel() : null), [car] = world.racers;
        world.exports.sense(); // what it sees from where it is now
        this.poses().forEach((_, k) => this.scene.mark(k, this.clock));
        this.history.push(car.speed / 8);
        this.history.splice(0, this.history.length - Math.round(HISTORY / world.period));
        this.still = !moved || car.speed < 0.15 ? this.still + world.period : 0;
        if (this.still > STUCK) {
            world.begin(0, car.nearest[0]);
            this.scene.trails[0] = [];
            this.still = 0;
            this.before = this.poses();
            this.say("It was stuck. It begins anew.", 2);
        }
    }

    tell() {
        const [car, mine] = this.world.racers, time = (t) => (t === null ? "\u2013" : `${t.toFixed(2)} s`);
        const {larger} = this.scene, long = `${(100 * this.world.parameters.length[0]).toFixed(0)} cm long`;
        say("size", larger > 1.05 ? `${long}, drawn ${larger.toFixed(1)} times` : long);
        say("lap", `${car.speed.toFixed(1)} m/s`);
        const count = `${car.touches} touch${car.touches === 1 ? "" : "es"}`;
        const ahead = mine.driven - car.driven;
        const race = ` You: best ${time(mine.best)}, ${Math.abs(ahead).toFixed(1)} m ${ahead < 0 ? "behind" : "ahead"}.`;
        say("about", `lap ${time(car.last)}, best ${time(car.best)}, ${count}.${this.mode === "race" ? race : ""}`);
    }

    /** Drive and draw until `time`, in ms: between the last two control periods. */
    frame(time) {
        this.steps.advance(time, () => this.step());
        const {share} = this.steps, {colour} = this.scene, mix = (a, b) => a + share * (b - a);
        const now = this.poses(), seen = this.world.policy.signals.lidar ?? [];
        const poses = now.map((pose, k) => {
            const old = this.before[k] ?? pose, made = Object.fromEntries(Object.keys(pose).map((n) => [n, mix(old[n], pose[n])]));
            const size = Math.hypot(made.cos, made.sin) || 1;
            return {...made, cos: made.cos / size, sin: made.sin / size};
        });
        this.ranges ??= [...seen];
        const ranges = this.ranges.map((range, k) => mix(range, seen[k]));
        this.scene.draw(this.clock + (share - 1) * this.world.period, this.room.box, this.room.top, poses, ranges, this.line);
        if (this.shown > time - 50) return;
        plot(this.sheet, this.history, HISTORY / this.world.period, colour.accent, colour.line);
        this.tell();
        this.shown = time;
    }

    /** A lap on each of 20 tracks. */
    check() {
        const laps = this.world.laps(Array.from({length: 20}, (_, k) => randomTrack(100 + k)));
        this.lay(randomTrack(this.seed));
        return {laps};
    }
}

start((policy) => new Page(new World(policy)));
