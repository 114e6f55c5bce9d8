/* The picture: a floor, a quadrotor, its target and its trail, projected onto a plain canvas. Metres, z up. */

const ROOM = 3; // m, half the side of the floor
const RING = 0.4; // m, the target's radius
const SPOKES = 28; // of what is round
const SEEN = 0.27; // m: smaller vehicles are drawn this large
const STREAKS = 70; // of wind
const TAIL = 2.5, SHADES = 8; // s of the trail, and steps in which it fades

/** The rotation matrix, row by row, of a quaternion wxyz. */
function rotation([a, b, c, d]) {
    return [
        1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c),
        2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b),
        2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c),
    ];
}

const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];

class Camera {
    constructor() {
        this.reset();
    }

    reset() {
        Object.assign(this, {turn: -0.9, lift: 0.4, distance: 4.6, centre: [0, 0, 1.2]});
    }

    /** Look from where `turn`, `lift` (rad) and `distance` say, onto the middle (x, y) of a free area (pixels). */
    look(x, y, width, height) {
        const [ct, st, cl, sl] = [Math.cos(this.turn), Math.sin(this.turn), Math.cos(this.lift), Math.sin(this.lift)];
        this.forward = [-cl * ct, -cl * st, -sl];
        this.right = [-st, ct, 0];
        this.up = [-sl * ct, -sl * st, cl];
        this.eye = this.centre.map((c, k) => c - this.distance * this.forward[k]);
        this.focal = 1.25 * Math.min(width * 1.3, height);
        Object.assign(this, {x, y});
    }

    /** Pixels right and down, and the metres in front of the camera. */
    see(p) {
        const v = [p[0] - this.eye[0], p[1] - this.eye[1], p[2] - this.eye[2]];
        const depth = Math.max(0.05, dot(v, this.forward)), scale = this.focal / depth;
        return [this.x + scale * dot(v, this.right), this.y - scale * dot(v, this.up), depth];
    }

    /** The place under a pixel in the plane through `p` that faces the camera. */
    place(px, py, p) {
        const depth = this.see(p)[2], scale = depth / this.focal;
        return this.eye.map((e, k) =>
            e + depth * this.forward[k] + scale * ((px - this.x) * this.right[k] - (py - this.y) * this.up[k]));
    }

    orbit(dx, dy) {
        this.turn -= 0.006 * dx;
        this.lift = Math.min(1.35, Math.max(0.04, this.lift + 0.005 * dy));
    }

    zoom(factor) {
        this.distance = Math.min(12, Math.max(1.6, this.distance * factor));
    }
}

class Scene {
    constructor(canvas, world) {
        Object.assign(this, {world, camera: new Camera(), trail: [], spin: 0});
        this.sheet = new Moving(canvas);
        this.ground = new Sheet($("ground"));
        const wide = () => 2 * ROOM * (Math.random() - 0.5);
        this.streaks = Array.from({length: STREAKS}, () => [wide(), wide(), 3 * Math.random()]);
        this.dye();
    }

    dye() {
        this.colour = colours("ink", "soft", "line", "shade", "accent", "target");
        this.ground.fresh = true;
    }

    /** How many times its size the vehicle is drawn. */
    get magnified() {
        const {rotor_position: arms, propeller_radius: radius} = this.world.parameters;
        return Math.max(1, SEEN / (Math.hypot(arms[0], arms[1]) + radius[0]));
    }

    /** How far around its middle the vehicle is touched, in pixels. */
    get touched() {
        return Math.max(26, (1.1 * SEEN * this.camera.focal) / this.camera.see(this.world.position)[2]);
    }

    #seen(points) {
        return points.map((p) => this.camera.see(p));
    }

    #stroke(points, ...how) {
        this.sheet.stroke(this.#seen(points), ...how);
    }

    #fill(points, ...how) {
        this.sheet.fill(this.#seen(points), ...how);
    }

    #circle(centre, radius, spokes = SPOKES) {
        return Array.from({length: spokes}, (_, k) => {
            const angle = (2 * Math.PI * k) / spokes;
            return [centre[0] + radius * Math.cos(angle), centre[1] + radius * Math.sin(angle), centre[2]];
        });
    }

    /** Lines every half metre that fade towards the horizon, drawn again only when the camera has moved. */
    #floor() {
        const {camera} = this, {pen} = this.ground, seen = [...camera.eye, ...camera.forward, camera.focal, camera.x, camera.y].join();
        if (seen === this.floored && !this.ground.fresh) return;
        this.floored = seen;
        this.ground.fresh = false;
        this.ground.clear();
        const shades = Array.from({length: 8}, () => new Path2D());
        for (let k = -2 * ROOM; k <= 2 * ROOM; ++k) {
            for (let j = -2 * ROOM; j < 2 * ROOM; ++j) {
                const fade = 1 - Math.hypot(k, j + 0.5) / (2 * ROOM), shade = Math.floor(8 * fade * (k % 2 ? 0.5 : 1));
                if (shade < 0) continue;
                for (const turned of [false, true]) {
                    const at = (end) => camera.see(turned ? [end / 2, k / 2, 0] : [k / 2, end / 2, 0]);
                    const [[x, y], [u, v]] = [at(j), at(j + 1)];
                    shades[shade].moveTo(x, y);
                    shades[shade].lineTo(u, v);
                }
            }
        }
        Object.assign(pen, {strokeStyle: this.colour.line, lineWidth: 1});
        for (const [k, path] of shades.entries()) {
            pen.globalAlpha = 0.025 * (k + 0.5);
            pen.stroke(path);
        }
    }

    #goal(aim) {
        const {target} = this.world, foot = [target[0], target[1], 0], orange = this.colour.target;
        this.#fill(this.#circle(foot, 0.06), orange, 0.35);
        this.#stroke([foot, [...target]], orange, 1.2, 0.5, false, [2, 6]);
        this.#stroke(this.#circle(target, RING, 48), orange, 2.2, 0.9, true);
        for (const [x, y] of [[1, 0], [0, 1], [-1, 0], [0, -1]]) {
            const at = (r) => [target[0] + r * x, target[1] + r * y, target[2]];
            this.#stroke([at(RING - 0.05), at(RING + 0.05)], orange, 2.2, 0.9);
        }
        if (Math.hypot(...aim.map((a, k) => a - target[k])) > 0.03) {
            this.#stroke(this.#circle(aim, RING, 48), orange, 1.4, 0.5, true, [4, 5]);
        }
    }

    /** Remember where it was, `now` in s. */
    mark(now) {
        this.trail.push([now, ...this.world.position]);
        while (this.trail.length && now - this.trail[0][0] > TAIL) this.trail.shift();
    }

    #tail(now) {
        const seen = this.#seen(this.trail.map(([, ...p]) => p)), trail = this.trail.map(([when], k) => [when, seen[k]]);
        for (const [shade, points] of fading(trail, now, TAIL, SHADES)) this.sheet.stroke(points, this.colour.accent, 2, (0.55 * shade) / SHADES, false, [], "butt");
    }

    #wind(wind, dt) {
        const speed = Math.hypot(...wind);
        if (speed < 0.05) return;
        for (const s of this.streaks) {
            for (let k = 0; k < 2; ++k) {
                s[k] += dt * wind[k];
                if (Math.abs(s[k]) > ROOM) s[k] -= Math.sign(s[k]) * 2 * ROOM;
            }
            const fade = 1 - Math.max(Math.abs(s[0]), Math.abs(s[1])) / ROOM;
            this.#stroke([s, s.map((p, k) => p + 0.06 * wind[k])], this.colour.soft, 1.2, fade * Math.min(0.6, 0.1 * speed));
        }
    }

    #vehicle(dt) {
        const {position, quaternion, rotors, parameters, load} = this.world, {camera, colour} = this, m = this.magnified;
        const r = rotation(quaternion), arms = parameters.rotor_position, radius = m * parameters.propeller_radius[0];
        const at = (x, y, z) => [0, 3, 6].map((k, i) => position[i] + r[k] * x + r[k + 1] * y + r[k + 2] * z);
        const pixel = camera.focal / camera.see(position)[2], span = m * Math.hypot(arms[0], arms[1]);
        const ends = [0, 1, 2, 3].map((k) => [m * arms[2 * k], m * arms[2 * k + 1]]);
        const disc = ([x, y], size, z) => Array.from({length: SPOKES}, (_, k) => {
            const angle = (2 * Math.PI * k) / SPOKES;
            return at(x + size * Math.cos(angle), y + size * Math.sin(angle), z);
        });
        const low = Math.max(0.25, 1 - position[2] / 4);
        for (const end of ends) this.#fill(disc(end, radius, 0).map(([x, y]) => [x, y, 0]), colour.shade, 0.14 * low);
        this.#fill(disc([0, 0], 0.42 * span, 0).map(([x, y]) => [x, y, 0]), colour.shade, 0.2 * low);
        this.spin += dt;
        const top = 0.16 * span, below = r[8] * (camera.eye[2] - position[2]) < 0;
        const rotor = (end, k) => {
            const paint = k === 0 || k === 3 ? colour.accent : colour.ink, turning = Math.min(1, 2 * rotors[k]);
            this.#stroke([at(...end, 0), at(...end, top)], colour.ink, 0.09 * span * pixel);
            this.#fill(disc(end, radius, top), paint, 0.1 + 0.16 * rotors[k]);
            this.#stroke(disc(end, radius, top), paint, 1.1, 0.55, true);
            const angle = (k % 2 ? 1 : -1) * (9 + 32 * rotors[k]) * this.spin * turning + k;
            for (const lag of [0, 0.22, 0.44]) {
                const [x, y] = [radius * Math.cos(angle - lag), radius * Math.sin(angle - lag)];
                this.#stroke([at(end[0] + x, end[1] + y, top), at(end[0] - x, end[1] - y, top)], paint, 1.6, 0.55 - lag);
            }
        };
        const parts = ends.map((end, k) => [camera.see(at(...end, top))[2], () => rotor(end, k)]);
        const frame = () => {
            for (const end of ends) this.#stroke([at(0, 0, 0), at(...end, 0)], colour.ink, 0.11 * span * pixel);
            const plate = (z) => [[0.42, 0.2], [0.42, -0.2], [0.2, -0.36], [-0.42, -0.36], [-0.42, 0.36], [0.2, 0.36]]
                .map(([x, y]) => at(x * span, y * span, z * span));
            if (load > 0) this.#fill(disc([0, 0], (0.16 + 0.4 * load) * span, -0.3 * span), colour.target, 0.9);
            this.#fill(plate(below ? 0.12 : -0.1), colour.soft);
            this.#fill(plate(below ? -0.1 : 0.12), colour.ink);
            this.#stroke([at(0.42 * span, 0.13 * span, 0.04 * span), at(0.42 * span, -0.13 * span, 0.04 * span)],
                colour.accent, 0.07 * span * pixel);
        };
        parts.push([camera.see(at(0, 0, 0))[2] + (below ? -0.5 : 0.5) * span, frame]);
        parts.sort((a, b) => b[0] - a[0]);
        for (const [, draw] of parts) draw();
    }

    /** A frame, `dt` s after the last, into a free area (x, y, width, height in pixels). */
    draw(now, dt, [x, y, width, height], wind) {
        this.camera.look(x + width / 2, y + height / 2, width, height);
        this.#floor();
        this.#wind(wind, dt);
        this.#tail(now);
        this.#goal(this.world.aim);
        this.#vehicle(dt);
        this.sheet.show();
    }
}
