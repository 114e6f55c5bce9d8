/* A policy in closed loop with a quadrotor, both in its module; see world.c. */

const FLOOR = 0.02; // m, the height of a vehicle that stands
const GRAVITY = 9.81; // m/s^2
const CLOSE = 0.3; // m from the target: held
const FLIGHT = 5, JUDGED = 1; // s of a throw, and of its end that is judged

export class World {
    constructor(policy) {
        const {exports, contract} = policy;
        const floats = (start, count) => new Float32Array(exports.memory.buffer, start, count);
        const body = exports.body(), parameters = exports.parameters(), target = exports.target();
        this.policy = policy;
        this.exports = exports;
        this.airframes = contract.airframes;
        this.position = floats(body, 3);
        this.quaternion = floats(body + 12, 4);
        this.velocity = floats(body + 28, 3);
        this.rate = floats(body + 40, 3);
        this.rotors = floats(body + 52, 4);
        this.parameters = Object.fromEntries(
            contract.parameters.map(({name, offset, size}) => [name, floats(parameters + offset, size)]));
        this.target = floats(target, 3);
        this.aim = floats(exports.aim(), 3);
        this.aim.set([0, 0, 1.5]);
        this.choose(0);
        this.begin();
    }

    /** Another vehicle, as it is: `load` and wind begin anew. */
    choose(index) {
        this.chosen = index;
        this.exports.airframe(index);
        this.mass = this.parameters.mass[0];
    }

    /** Carry so many times its own mass; the wind blows (m/s, world); commands come so much later (s). */
    set({load = 0, wind = [0, 0, 0], latency = 0}) {
        this.parameters.mass[0] = this.mass * (1 + load);
        this.parameters.wind.set(wind);
        this.exports.derive();
        this.exports.latency(latency);
    }

    begin() {
        this.exports.begin();
    }

    toss(seed) {
        this.exports.toss(seed);
    }

    get thrustToWeight() {
        const [a, b, c] = this.parameters.thrust_curve;
        return (4 * (a + b + c)) / (this.parameters.mass[0] * GRAVITY);
    }

    get distance() {
        return Math.hypot(...this.position.map((p, k) => p - this.target[k]));
    }

    /** Whether the wind acts on this vehicle: of some, the drag was never measured. */
    get feelsWind() {
        return this.parameters.drag.some((d) => d > 0);
    }

    /** Whether its upper side points down. */
    get inverted() {
        const [, b, c] = this.quaternion;
        return b * b + c * c > 0.5;
    }

    /** A control period; false when the policy could not. Who meets the floor stays on it. */
    step() {
        if (!this.exports.loop()) return false;
        if (this.position[2] < FLOOR) {
            this.position[2] = FLOOR;
            this.velocity.set([0.9 * this.velocity[0], 0.9 * this.velocity[1], Math.max(0, this.velocity[2])]);
            this.rate.set(this.rate.map((w) => 0.8 * w));
        }
        return true;
    }

    /** Throw `count` times, vehicle after vehicle of these; how many were held to the end, and the largest distance. */
    throws(count, vehicles = this.airframes.map((_, k) => k)) {
        const steps = Math.round(FLIGHT * this.policy.rate_hz), judged = Math.round(JUDGED * this.policy.rate_hz);
        let held = 0, worst = 0;
        for (let n = 0; n < count; ++n) {
            this.choose(vehicles[n % vehicles.length]);
            this.set({});
            this.toss(n + 1);
            let farthest = 0;
            for (let k = 0; k < steps; ++k) {
                const far = this.step() ? this.distance : Infinity;
                if (k >= steps - judged) farthest = Math.max(farthest, far);
            }
            held += farthest < CLOSE;
            worst = Math.max(worst, farthest);
        }
        return {count, held, worst};
    }
}
