/* The policy in closed loop with a car on a track, both in its module, and a car of the visitor's; see world.c. */

const HALF = 0.8; // m from the centreline to a wall
const ROLLING = 3; // m/s at most, with which laps of a test begin, and
const ASIDE = 0.25; // m off the centreline, as in training
const PATIENCE = 60; // s of a lap of a test
const MOST_BARRELS = 16;

/** A car as its module holds it. */
class Racer {
    constructor(exports, k) {
        const {buffer} = exports.memory, body = exports.body(k), place = exports.place(k);
        this.body = new Float32Array(buffer, body, 11);
        this.nearest = new Int32Array(buffer, place, 1);
        this.place = new Float32Array(buffer, place + 4, 4);
        this.forget();
    }

    forget() {
        Object.assign(this, {lap: null, best: null, last: null, laps: 0, touches: 0, time: 0, rubbing: false});
    }

    get position() {
        return this.body.subarray(0, 2);
    }

    get speed() {
        return Math.hypot(this.body[4], this.body[5]);
    }

    get steering() {
        return this.body[7];
    }

    get touched() {
        return this.body[9] > 0;
    }

    /** m along the centreline since it began. */
    get driven() {
        return this.place[3];
    }

    /** After a control period: laps, their times, and touches. */
    count(length, period) {
        this.time += period;
        if (this.touched && !this.rubbing) this.touches += 1;
        this.rubbing = this.touched;
        if (this.driven < length * (this.laps + 1)) return;
        // When within the period it crossed the line.
        const over = (this.driven - length * (this.laps + 1)) / Math.max(1e-6, this.place[2]);
        const now = this.time - Math.min(1, over) * period;
        this.last = now - (this.lap ?? 0);
        this.best = Math.min(this.best ?? Infinity, this.last);
        this.lap = now;
        this.laps += 1;
    }
}

export class World {
    constructor(policy) {
        const {exports, contract} = policy, {buffer} = exports.memory;
        this.policy = policy;
        this.exports = exports;
        this.cars = contract.cars;
        this.period = 1 / policy.rate_hz;
        this.lines = new Float64Array(buffer, exports.line(), 2 * 1024);
        this.wide = new Float64Array(buffer, exports.wide(), 2 * 1024);
        this.barrel = new Float32Array(buffer, exports.barrels(), 3 * MOST_BARRELS);
        this.parameters = Object.fromEntries(contract.parameters.map(
            ({name, offset, size}) => [name, new Float32Array(buffer, exports.parameters() + offset, size)]));
        this.racers = [new Racer(exports, 0), new Racer(exports, 1)];
        this.barrels = [];
        const at = (name) => contract.outputs.find((output) => output.name === name);
        this.limits = {steering: at("steering").high, speed: at("speed").high};
        this.choose(0);
    }

    /** Another car, as it is. */
    choose(index) {
        this.chosen = index;
        this.exports.car(index);
        this.nominal = Object.fromEntries(Object.entries(this.parameters).map(([name, value]) => [name, value[0]]));
    }

    /** Times the friction and the mass that it has; commands come so much later (s). */
    set({friction = 1, mass = 1, latency = 0}) {
        const {parameters, nominal} = this;
        parameters.friction[0] = friction * nominal.friction;
        for (const name of ["mass", "yaw_inertia"]) parameters[name][0] = mass * nominal[name];
        this.exports.derive();
        this.exports.latency(latency);
    }

    /** Lay a track along these points (m, all as far apart), with walls so far from them to the left and to the right. */
    lay(points, left = points.map(() => HALF), right = left) {
        for (const [k, p] of points.entries()) {
            this.lines.set(p, 2 * k);
            this.wide.set([left[k], right[k]], 2 * k);
        }
        if (points.length > 1024 || !this.exports.lay(points.length)) throw new Error("That track is too large.");
        Object.assign(this, {points, barrels: [], length: this.exports.length()});
    }

    /** Barrels (x, y, radius in m) on the track. */
    stand(barrels) {
        this.barrels = barrels.slice(0, MOST_BARRELS);
        this.barrel.set(this.barrels.flat());
        this.exports.stand(this.barrels.length);
    }

    /** m to the nearest wall or barrel. */
    clearance([x, y]) {
        return this.exports.clearance(x, y);
    }

    begin(k = 0, point = 0, aside = 0, speed = 0) {
        this.exports.begin(k, point, aside, speed);
        this.racers[k].forget();
    }

    /** A control period; false when the policy could not. `hand`: the visitor's steering and speed, if he drives. */
    step(hand = null) {
        const done = this.exports.loop();
        if (done) this.racers[0].count(this.length, this.period);
        if (hand) {
            this.exports.drive(1, ...hand);
            this.racers[1].count(this.length, this.period);
        }
        return done;
    }

    /** From where it is to the end of its lap or the first touch: whether it was a lap, and its control steps. */
    lap() {
        const [car] = this.racers, most = Math.round(PATIENCE / this.period);
        for (let k = 1; k <= most; ++k) {
            if (!this.step() || car.touched) return {done: false, steps: k};
            if (car.driven >= this.length) return {done: true, steps: k};
        }
        return {done: false, steps: most};
    }

    /** A lap on each of these tracks, begun like those of training: how many were driven, and the mean time (s). */
    laps(tracks) {
        let [done, time] = [0, 0];
        for (const [k, points] of tracks.entries()) {
            this.lay(points);
            const share = (n) => (((k + 1) * n) % 101) / 101; // spread out
            this.begin(0, Math.floor(points.length * share(17)), ASIDE * (2 * share(29) - 1), ROLLING * share(43));
            const lap = this.lap();
            done += lap.done;
            time += lap.done ? lap.steps * this.period : 0;
        }
        return {count: tracks.length, done, time: time / Math.max(1, done)};
    }
}
