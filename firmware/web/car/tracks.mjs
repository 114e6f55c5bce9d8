/* Closed tracks: random ones as sim/scenes/track.py makes them, an oval, or what the visitor draws. Metres. */

const WIDTH = 1.6; // from wall to wall
const APART = 0.3; // that walls of different parts keep from one another
const TIGHTEST = 1.2; // the smallest radius of a bend
const SPACING = 0.1; // between points, about
const LENGTHS = [40, 50]; // of random tracks
const LONGEST = 90; // of drawn ones
const WAVES = 6, ROUGHNESS = 0.25;

/** Numbers from 0 to 1 (mulberry32). */
function generator(seed) {
    return () => {
        seed = (seed + 0x6d2b79f5) | 0;
        let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
        t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
}

const after = (points, k, n = 1) => points[(k + n + points.length) % points.length];
const between = (p, q) => Math.hypot(q[0] - p[0], q[1] - p[1]);
const around = (points) => points.reduce((sum, p, k) => sum + between(p, after(points, k)), 0);

/** A closed line's points at equal steps of about so many m. */
function spread(points, step = SPACING) {
    for (let round = 0; round < 3; ++round) { // chords are a little shorter than the way
        const length = around(points), count = Math.max(8, Math.round(length / step)), made = [];
        for (let k = 0, way = 0; k < points.length; ++k) {
            const [p, q] = [points[k], after(points, k)], far = between(p, q);
            for (; made.length < count && (made.length * length) / count <= way + far; ) {
                const share = far > 0 ? ((made.length * length) / count - way) / far : 0;
                made.push([p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])]);
            }
            way += far;
        }
        points = made;
    }
    return points;
}

/** What is wrong with a centreline for a track of this width, in words; nothing: it has room. */
function crowded(line, width = WIDTH) {
    const points = line.filter((_, k) => k % 3 === 0), n = points.length, step = around(points) / n;
    for (const [k, p] of points.entries()) {
        const [a, b] = [after(points, k, -1), after(points, k)];
        const area = Math.abs((a[0] - p[0]) * (b[1] - p[1]) - (a[1] - p[1]) * (b[0] - p[0]));
        if (2 * area * TIGHTEST > between(a, p) * between(p, b) * between(a, b)) return "a bend is too tight";
    }
    const far = 0.5 * Math.PI * (width + APART);
    for (let k = 0; k < n; ++k) {
        for (let j = k + 1; j < n; ++j) {
            if (Math.min(j - k, n - j + k) * step > far && between(points[k], points[j]) <= width + APART) {
                return "two parts are too near each other";
            }
        }
    }
    return "";
}

function outline(random) {
    const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    const waves = Array.from({length: WAVES}, (_, k) => [k + 2, (ROUGHNESS * normal()) / (k + 2), (ROUGHNESS * normal()) / (k + 2)]);
    return Array.from({length: 600}, (_, k) => {
        const angle = (2 * Math.PI * k) / 600;
        const radius = waves.reduce((r, [n, a, b]) => r + a * Math.cos(n * angle) + b * Math.sin(n * angle), 1);
        return [Math.max(radius, 0.05) * Math.cos(angle), Math.max(radius, 0.05) * Math.sin(angle)];
    });
}

/** The centreline of a random track. */
export function randomTrack(seed) {
    const random = generator(seed);
    for (;;) {
        const points = outline(random), length = LENGTHS[0] + (LENGTHS[1] - LENGTHS[0]) * random();
        const scale = length / around(points), made = spread(points.map(([x, y]) => [scale * x, scale * y]));
        if (random() < 0.5) made.reverse();
        if (!crowded(made)) return made;
    }
}

export function oval(straight = 8, radius = 3) {
    const half = Array.from({length: 200}, (_, k) => {
        const angle = Math.PI * (k / 199 - 0.5);
        return [straight / 2 + radius * Math.cos(angle), radius * Math.sin(angle)];
    });
    return spread([...half, ...half.map(([x, y]) => [-x, -y])]);
}

/** The centreline along what was drawn, smoothed until it has room; an Error says why there is none. */
export function drawn(points) {
    if (points.length < 8 || !(around(points) > 12)) throw new Error("That is too short for a track.");
    let line = spread(points, 0.3);
    if (around(line) > LONGEST) throw new Error(`That is more than ${LONGEST} m long.`);
    for (let round = 0; round < 400; ++round) {
        if (round % 10 === 0) {
            const made = spread(line);
            if (!crowded(made)) return made;
        }
        line = line.map((p, k) => p.map((x, i) => 0.5 * x + 0.25 * (after(line, k, -1)[i] + after(line, k)[i])));
    }
    throw new Error(`There is no room: ${crowded(spread(line)) || "the bends are too tight"}.`);
}
