/* The policy in closed loop with a match of one against one, both in its module; see world.c. */

const LONGEST = 20; // s of a game of a test, as in training
const BALL = ["radius", "mass", "sliding", "rolling", "wall_bounce", "inertia"];
const FIELD = {length: 2, width: 1.5, goal: 0.5, depth: 0.25, circle: 0.5}; // m, halves
const STILL = 0, CHASER = 1, HAND = 2; // who plays against it

export class World {
    constructor(policy) {
        const {exports, contract} = policy, {buffer} = exports.memory, match = exports.match();
        this.policy = policy;
        this.exports = exports;
        this.period = 1 / policy.rate_hz;
        this.match = new Float32Array(buffer, match, 27);
        this.ball = this.match.subarray(0, 7);
        this.robots = [this.match.subarray(7, 17), this.match.subarray(17, 27)];
        this.told = new Float32Array(buffer, exports.told(), 8);
        this.hand = new Float32Array(buffer, exports.hand(), 3);
        const size = contract.parameters.reduce((sum, p) => sum + 4 * p.size, 0);
        const at = (k) => Object.fromEntries(contract.parameters.map(
            (p) => [p.name, new Float32Array(buffer, exports.kinds() + k * size + p.offset, p.size)]));
        this.parameters = [at(0), at(1)];
        this.sphere = Object.fromEntries(BALL.map((name, k) => [name, new Float32Array(buffer, exports.ball() + 4 * k, 1)]));
        this.set({});
        this.begin(1);
    }

    /** Times the friction of the ball and its mass, and the robots' kicks, that they have. */
    set({friction = 1, mass = 1, kick = 1}) {
        this.exports.nominal();
        for (const name of ["sliding", "rolling"]) this.sphere[name][0] *= friction;
        this.sphere.mass[0] *= mass;
        for (const {kick_speed} of this.parameters) kick_speed[0] *= kick;
    }

    begin(seed) {
        this.exports.begin(seed);
    }

    /** 1: the policy has scored; -1: the other one has; 0. */
    get scored() {
        return this.ball[6];
    }

    /** A control period; false when the policy could not. */
    step(who = CHASER, pace = 1) {
        return Boolean(this.exports.loop(who, pace));
    }

    /** To the first goal, or to the end: who has scored, and its control steps. */
    game(who = CHASER, pace = 1, seconds = LONGEST) {
        const most = Math.round(seconds / this.period);
        for (let k = 1; k <= most; ++k) {
            if (!this.step(who, pace)) return {scored: -1, steps: k};
            if (this.scored) return {scored: this.scored, steps: k};
        }
        return {scored: 0, steps: most};
    }

    /** So many games from kickoffs: how they ended. */
    games(count) {
        const ends = {count, won: 0, lost: 0, open: 0};
        for (let k = 1; k <= count; ++k) {
            this.begin(k);
            const {scored} = this.game();
            ends[scored > 0 ? "won" : scored < 0 ? "lost" : "open"] += 1;
        }
        return ends;
    }
}
