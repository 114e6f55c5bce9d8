/* What the visitor sees and does. */

const PAUSE = 1.5; // s after a goal
const STICK = 60; // px of a finger's way to full speed
const RIVALS = [["a scripted player", CHASER, 1], ["the same at half speed", CHASER, 0.5], ["nobody who moves", STILL, 0]];

class Page {
    constructor(world) {
        Object.assign(this, {world, seed: 1, clock: 0, pause: 0, goals: [0, 0], playing: false, keys: new Set(), stick: null, held: null});
        this.scene = new Scene(world);
        this.steps = new Steps(world.period);
        this.room = new Room();
        for (const [k, [name]] of RIVALS.entries()) $("rival").add(new Option(name, k));
        this.#controls();
        this.#pointer();
        this.#keyboard();
        onDark(() => this.scene.dye());
        $("help").open = innerWidth > 720 && innerHeight > 720;
        this.settle();
        this.begin();
    }

    /** What the sliders say, to the robots and the ball. */
    settle() {
        const {world} = this, share = (id) => Number($(id).value) / 100;
        world.set({friction: share("friction"), mass: share("mass"), kick: share("kick")});
        $("friction-is").value = world.sphere.sliding[0].toFixed(2);
        $("mass-is").value = `${(1000 * world.sphere.mass[0]).toFixed(0)} g`;
        $("kick-is").value = `${world.parameters[0].kick_speed[0].toFixed(1)} m/s`;
        $("source").textContent = "It is told where everything is. The pitch is 4 x 3 m. " +
            `Policy file: sha256 ${world.policy.contract.sha256.slice(0, 16)}.`;
    }

    /** A kickoff. */
    begin() {
        this.world.begin(this.seed++);
        Object.assign(this, {pause: 0, before: this.places()});
        this.scene.trail = [];
    }

    say(text) {
        say("word", text);
        $("word").hidden = !text;
    }

    play() {
        this.playing = !this.playing;
        $("play").setAttribute("aria-pressed", this.playing);
        $("play").textContent = this.playing ? "Stop playing" : "Play it";
        $("rival").disabled = this.playing;
        this.goals = [0, 0];
        this.say("");
        this.begin();
        $("view").focus();
    }

    #controls() {
        $("play").onclick = () => this.play();
        $("reset").onclick = () => {
            for (const id of ["friction", "mass", "kick"]) $(id).value = 100;
            this.goals = [0, 0];
            this.say("");
            this.settle();
            this.begin();
        };
        $("rival").onchange = () => {
            this.goals = [0, 0];
            this.begin();
        };
        for (const id of ["friction", "mass", "kick"]) $(id).oninput = () => this.settle();
        $("panel").onsubmit = (event) => event.preventDefault();
    }

    #pointer() {
        const view = $("view"), at = ({offsetX, offsetY}) => [offsetX, offsetY], {world} = this;
        view.addEventListener("pointerdown", (event) => {
            view.setPointerCapture(event.pointerId);
            const near = Math.max(0.14, 22 / this.scene.map.scale), [x, y] = this.scene.place(at(event));
            this.held = [world.ball, ...world.robots].find((thing) => Math.hypot(thing[0] - x, thing[1] - y) < near) ?? null;
            if (this.held) this.to = [x, y];
            else if (this.playing) this.stick = {from: at(event), now: at(event)};
        });
        view.addEventListener("pointermove", (event) => {
            if (this.stick) this.stick.now = at(event);
            if (this.held) this.to = this.scene.place(at(event));
        });
        for (const kind of ["pointerup", "pointercancel"]) {
            view.addEventListener(kind, () => {
                this.held = this.stick = null;
            });
        }
    }

    #keyboard() {
        const drives = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "w", "a", "s", "d", " "]);
        const named = (key) => (key.length === 1 ? key.toLowerCase() : key);
        addEventListener("keydown", (event) => {
            if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
            const key = named(event.key);
            if (this.playing && drives.has(key) && !(key === " " && /^(BUTTON|SUMMARY)$/.test(event.target.tagName))) this.keys.add(key);
            else if (key === "p") this.play();
            else if (key === "r") $("reset").click();
            else return;
            event.preventDefault();
        });
        addEventListener("keyup", (event) => this.keys.delete(named(event.key)));
        addEventListener("blur", () => this.keys.clear());
    }

    /** What the visitor asks his robot for: a finger points where to go, and what lies ahead then is kicked. */
    #steer() {
        const {keys, stick, world} = this, [, robot] = world.robots, most = world.parameters[1].speed[0];
        const pressed = (...names) => names.some((name) => keys.has(name));
        if (!stick) {
            const ahead = pressed("ArrowUp", "w") - pressed("ArrowDown", "s");
            const turn = pressed("ArrowLeft", "a") - pressed("ArrowRight", "d");
            world.hand.set([most * ahead, 4.5 * turn, pressed(" ") ? 1 : 0]);
            return;
        }
        const [to, from] = [this.scene.place(stick.now), this.scene.place(stick.from)], way = [to[0] - from[0], to[1] - from[1]];
        const pull = Math.min(1, Math.hypot(stick.now[0] - stick.from[0], stick.now[1] - stick.from[1]) / STICK);
        const [px, py, cos, sin] = robot, off = ([x, y]) => Math.atan2(y * cos - x * sin, x * cos + y * sin); // of its heading
        const angle = off(way), kick = Math.abs(off([-FIELD.length - px, -py])) < 0.5;
        const told = [most * pull * Math.max(0, Math.cos(angle)), Math.min(8, Math.max(-8, 6 * angle)), kick ? 1 : 0];
        world.hand.set(pull < 0.15 ? [0, 0, 0] : told);
    }

    /** What a visitor drags follows him, within the pitch. */
    #drag() {
        const {held, to, world: {ball}} = this, edge = held === ball ? 0.06 : 0.1;
        const clip = (x, most) => Math.min(most - edge, Math.max(edge - most, x));
        held[0] = clip(to[0], FIELD.length);
        held[1] = clip(to[1], FIELD.width);
        held.fill(0, held === ball ? 2 : 4, held === ball ? 6 : 7);
    }

    places() {
        const {ball, robots} = this.world;
        return [...robots.map(([x, y, cos, sin, , , , , charge]) => ({x, y, cos, sin, charge})), {x: ball[0], y: ball[1]}];
    }

    /** A control period. */
    step() {
        const {world} = this;
        this.clock += world.period;
        this.before = this.places();
        if (this.pause > 0) {
            this.pause -= world.period;
            if (this.pause <= 0) {
                this.say("");
                this.begin();
            }
            return;
        }
        if (this.playing) this.#steer();
        const [, who, pace] = RIVALS[Number($("rival").value)];
        world.step(this.playing ? HAND : who, pace);
        if (this.held) this.#drag();
        this.scene.mark(this.clock);
        if (!world.scored) return;
        this.goals[world.scored > 0 ? 0 : 1] += 1;
        this.say(world.scored > 0 ? "The policy scores." : this.playing ? "You score!" : "The other one scores.");
        this.pause = PAUSE;
        this.held = null;
    }

    /** Play and draw until `time`, in ms: between the last two control periods. */
    frame(time) {
        this.steps.advance(time, () => this.step());
        const {share} = this.steps, mix = (a, b) => a + share * (b - a);
        const [one, other, ball] = this.places().map((now, k) => {
            const old = this.before[k], far = Math.hypot(now.x - old.x, now.y - old.y) > 0.5; // it was put elsewhere
            return far ? now : Object.fromEntries(Object.keys(now).map((name) => [name, mix(old[name], now[name])]));
        });
        this.scene.draw(this.clock + (share - 1) * this.world.period, this.room.box, this.room.top, [one, other], ball);
        if (this.shown > time - 50) return;
        say("goals", `${this.goals[0]} : ${this.goals[1]}`);
        say("about", this.playing ? "the policy : you" : "the policy : the other");
        this.shown = time;
    }

    /** 100 games against the scripted player. */
    check() {
        return {games: this.world.games(100)};
    }
}

start((policy) => new Page(new World(policy)));
