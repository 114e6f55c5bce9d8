/* The picture: a track from above, cars, what the lidar sees. Metres, x to the right, y up. */

const BORDER = 0.5; // m around the track
const TAIL = 1.6, SHADES = 6; // s of a trail, and steps in which it fades
const SMALLEST = 26; // px that a car is long at least

class Scene extends Plan {
    constructor(world) {
        super(world);
        this.trails = [[], []];
        this.dye();
    }

    dye() {
        this.colour = colours("ink", "soft", "line", "shade", "accent", "target", "road", "edge", "card");
        this.ground.fresh = true;
    }

    /** Fit the track into a free area, turned where that is larger. */
    fit([left, top, width, height], caption) {
        const edge = 0.8 + BORDER, xs = this.world.points.map(([x]) => x), ys = this.world.points.map(([, y]) => y);
        const [x0, x1, y0, y1] = [Math.min(...xs) - edge, Math.max(...xs) + edge, Math.min(...ys) - edge, Math.max(...ys) + edge];
        const from = Math.max(top, caption), h = top + height - from;
        const sizes = [Math.min(width / (x1 - x0), h / (y1 - y0)), Math.min(width / (y1 - y0), h / (x1 - x0))];
        const turned = sizes[1] > 1.15 * sizes[0], scale = Math.max(4, sizes[turned ? 1 : 0]);
        const [cx, cy, mx, my] = [left + width / 2, from + h / 2, (x0 + x1) / 2, (y0 + y1) / 2];
        this.map = turned ? {scale, turned, x: cx + scale * my, y: cy + scale * mx} : {scale, turned, x: cx - scale * mx, y: cy + scale * my};
    }

    /** The wall to one side, px. */
    #wall(side) {
        const {points} = this.world, n = points.length;
        return points.map(([x, y], k) => {
            const [a, b] = [points[(k + n - 1) % n], points[(k + 1) % n]], far = Math.hypot(b[0] - a[0], b[1] - a[1]);
            return this.see([x - (side * (b[1] - a[1])) / far, y + (side * (b[0] - a[0])) / far]);
        });
    }

    /** What is still: drawn again only when the track, the window or the colours change. */
    #still(box, caption) {
        const {ground, colour, world} = this, {pen} = ground, drawn = [box, caption, ...world.barrels].join();
        if (!ground.fresh && this.laid === world.points && this.drawn === drawn) return;
        Object.assign(this, {laid: world.points, drawn});
        ground.fresh = false;
        ground.clear();
        this.fit(box, caption);
        const {scale} = this.map, [left, right, middle] = [this.#wall(HALF), this.#wall(-HALF), this.#wall(0)];
        pen.beginPath();
        for (const wall of [left, right]) {
            for (const [k, p] of wall.entries()) pen[k ? "lineTo" : "moveTo"](...p);
            pen.closePath();
        }
        Object.assign(pen, {globalAlpha: 1, fillStyle: colour.road});
        pen.fill("evenodd");
        for (const wall of [left, right]) ground.stroke(wall, colour.ink, Math.max(2, 0.07 * scale), 0.85, true);
        ground.stroke(middle, colour.soft, 1, 0.35, true, [0.35 * scale, 0.5 * scale]);
        for (let row = 0; row < 2; ++row) { // the line
            for (let k = 0; k < 8; ++k) {
                if ((k + row) % 2) continue;
                const share = (n) => [row, row + 1].map((r) => {
                    const [a, b] = [left[2 * r], right[2 * r]], s = n / 8;
                    return [a[0] + s * (b[0] - a[0]), a[1] + s * (b[1] - a[1])];
                });
                const [[p, q], [r, s]] = [share(k), share(k + 1)];
                ground.fill([p, q, s, r], colour.ink, 0.55);
            }
        }
        for (const [x, y, radius] of world.barrels) {
            const ring = (r) => Array.from({length: 24}, (_, k) => {
                const angle = (Math.PI * k) / 12;
                return this.see([x + r * Math.cos(angle), y + r * Math.sin(angle)]);
            });
            ground.fill(ring(radius), colour.target);
            ground.stroke(ring(0.6 * radius), colour.card, Math.max(1, 0.04 * scale), 0.9, true);
        }
    }

    /** Remember where racer k was, `now` in s. */
    mark(k, now) {
        const trail = this.trails[k];
        trail.push([now, [...this.world.racers[k].position]]);
        while (now - trail[0][0] > TAIL) trail.shift();
    }

    #trail(k, now, end, paint) {
        const trail = [...this.trails[k], [now, end]].map(([when, place]) => [when, this.see(place)]);
        const width = Math.max(1.5, 0.08 * this.map.scale);
        for (const [shade, points] of fading(trail, now, TAIL, SHADES)) this.sheet.stroke(points, paint, width, (0.45 * shade) / SHADES, false, [], "butt");
    }

    #fan({x, y, cos, sin}, ranges) {
        const {sheet, colour} = this, view = this.world.policy.contract.view, {lidar} = this.world.parameters;
        const from = [x + lidar[0] * cos, y + lidar[0] * sin], ends = ranges.map((range, k) => {
            const angle = ((k + 0.5) / ranges.length - 0.5) * view, [c, s] = [Math.cos(angle), Math.sin(angle)];
            return this.see([from[0] + range * (cos * c - sin * s), from[1] + range * (sin * c + cos * s)]);
        });
        sheet.fill([this.see(from), ...ends], colour.accent, 0.13);
        for (const [px, py] of ends) {
            const [a, b, c, d] = [px - 1.5, py - 1.5, px + 1.5, py + 1.5];
            sheet.fill([[a, b], [c, b], [c, d], [a, d]], colour.accent, 0.8);
        }
    }

    #car({x, y, cos, sin, steering}, paint) {
        const {sheet, colour, map: {scale}} = this, {parameters: p} = this.world;
        const larger = Math.max(1, SMALLEST / (scale * p.length[0]));
        const [long, wide, front, rear] = [0.5 * p.length[0], 0.5 * p.width[0], p.front[0], p.rear[0]].map((x) => larger * x);
        this.larger = larger;
        const at = (a, b) => this.see([x + a * cos - b * sin, y + a * sin + b * cos]);
        const box = (a, b, c, d) => [at(a, b), at(c, b), at(c, d), at(a, d)];
        const lift = Math.max(1, 0.04 * scale);
        sheet.fill(box(-long, -wide, long, wide).map(([u, v]) => [u + lift, v + lift]), colour.shade, 0.22);
        for (const [a, b, turn] of [[front, wide, steering], [front, -wide, steering], [-rear, wide, 0], [-rear, -wide, 0]]) {
            const [c, s, l] = [Math.cos(turn), Math.sin(turn), 0.24 * long];
            sheet.stroke([at(a - l * c, 0.92 * b - l * s), at(a + l * c, 0.92 * b + l * s)], colour.ink, Math.max(2, 0.3 * wide * scale));
        }
        const [nose, waist] = [0.55 * wide, 0.72 * wide];
        const side = [[long, nose], [0.5 * long, waist], [-0.85 * long, 0.8 * wide], [-long, 0.7 * wide]];
        const other = side.map(([a, b]) => [a, -b]).reverse();
        sheet.fill([...side, ...other].map(([a, b]) => at(a, b)), paint);
        sheet.fill(box(-0.1 * long, -0.5 * wide, 0.38 * long, 0.5 * wide), colour.ink, 0.75);
    }

    /** A frame, `now` in s: racers at `poses`, what the lidar sees (m), and a line that is being drawn (px). */
    draw(now, box, caption, poses, ranges, line) {
        const {colour, sheet} = this;
        this.#still(box, caption);
        const paints = [colour.accent, colour.target];
        if (ranges.length) this.#fan(poses[0], ranges);
        for (const [k, pose] of poses.entries()) this.#trail(k, now, [pose.x, pose.y], paints[k]);
        for (const [k, pose] of [...poses.entries()].reverse()) this.#car(pose, paints[k]);
        if (line.length > 1) sheet.stroke(line, colour.target, 3, 0.9);
        sheet.show();
    }
}
