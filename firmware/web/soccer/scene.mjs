/* The picture: a pitch from above. Metres, x to the goal that the policy scores in, y up. */

const EDGE = 0.15; // m around the boards
const TAIL = 0.9, SHADES = 5; // s of the ball's trail, and steps in which it fades

class Scene extends Plan {
    constructor(world) {
        super(world);
        this.trail = [];
        this.dye();
    }

    dye() {
        this.colour = colours("ink", "soft", "shade", "accent", "target", "grass", "chalk", "ball", "card");
        this.ground.fresh = true;
    }

    #round([x, y], radius, from = 0, to = 2 * Math.PI, steps = 32) {
        return Array.from({length: steps + 1}, (_, k) => {
            const angle = from + ((to - from) * k) / steps;
            return this.see([x + radius * Math.cos(angle), y + radius * Math.sin(angle)]);
        });
    }

    #still([left, top, width, height], caption) {
        const {ground, colour} = this, {length, width: half, goal, depth, circle} = FIELD, drawn = [left, top, width, height, caption].join();
        if (!ground.fresh && this.drawn === drawn) return;
        this.drawn = drawn;
        ground.fresh = false;
        ground.clear();
        const from = Math.max(top, caption), h = top + height - from, [long, wide] = [2 * (length + depth + EDGE), 2 * (half + EDGE)];
        const sizes = [Math.min(width / long, h / wide), Math.min(width / wide, h / long)], turned = sizes[1] > 1.15 * sizes[0];
        this.map = {scale: Math.max(20, sizes[turned ? 1 : 0]), turned, x: left + width / 2, y: from + h / 2};
        const {scale} = this.map, line = Math.max(1.5, 0.025 * scale);
        const box = (a, b, c, d) => [[a, b], [c, b], [c, d], [a, d]].map((p) => this.see(p));
        for (const [side, paint] of [[-1, colour.target], [1, colour.accent]]) {
            ground.fill(box(side * length, -goal, side * (length + depth), goal), paint, 0.3);
        }
        ground.fill(box(-length, -half, length, half), colour.grass);
        for (let k = 0; k < 8; k += 2) ground.fill(box(-length + k * 0.5, -half, -length + (k + 1) * 0.5, half), colour.shade, 0.035);
        ground.stroke([this.see([0, -half]), this.see([0, half])], colour.chalk, line, 0.8);
        ground.stroke(this.#round([0, 0], circle, 0, 2 * Math.PI, 64), colour.chalk, line, 0.8);
        const board = Math.max(3, 0.05 * scale);
        for (const side of [-1, 1]) {
            ground.stroke([this.see([side * length, -goal]), this.see([side * length, goal])], colour.chalk, line, 0.8);
            ground.stroke([[-length, side * half], [length, side * half]].map((p) => this.see(p)), colour.ink, board);
            for (const post of [-1, 1]) {
                const way = [[length, half], [length, goal], [length + depth, goal], [length + depth, 0]];
                ground.stroke(way.map(([x, y]) => this.see([side * x, post * y])), colour.ink, board);
            }
        }
    }

    /** Remember where the ball was, `now` in s. */
    mark(now) {
        this.trail.push([now, this.world.ball.slice(0, 2)]);
        while (now - this.trail[0][0] > TAIL) this.trail.shift();
    }

    #robot({x, y, cos, sin, charge}, paint) {
        const {sheet, colour, map: {scale}} = this, {radius, front, mouth, recharge} = Object.fromEntries(
            Object.entries(this.world.parameters[0]).map(([name, value]) => [name, value[0]]));
        const heading = Math.atan2(sin, cos), half = Math.acos(front / radius), lift = Math.max(1.5, 0.02 * scale);
        const body = this.#round([x, y], radius, heading + half, heading + 2 * Math.PI - half);
        sheet.fill(body.map(([a, b]) => [a + lift, b + lift]), colour.shade, 0.25);
        sheet.fill(body, paint);
        const at = (a, b) => this.see([x + a * cos - b * sin, y + a * sin + b * cos]);
        const ready = charge > 0 ? 1 - charge / recharge : 1;
        sheet.stroke([at(front - 0.012, -mouth * 0.8), at(front - 0.012, mouth * 0.8)], colour.card, Math.max(2, 0.025 * scale), 0.25 + 0.7 * ready);
        for (const side of [-1, 1]) sheet.stroke([at(-0.03, side * 0.066), at(0.03, side * 0.066)], colour.ink, Math.max(2, 0.02 * scale), 0.8);
        sheet.fill([at(0.035, 0), at(-0.02, 0.028), at(-0.02, -0.028)], colour.card, 0.9);
    }

    /** A frame, `now` in s: robots and the ball at these places. */
    draw(now, box, caption, robots, ball) {
        const {colour, sheet} = this, radius = this.world.sphere.radius[0];
        this.#still(box, caption);
        const lift = Math.max(1.5, 0.015 * this.map.scale), width = 1.2 * radius * this.map.scale;
        const trail = [...this.trail, [now, [ball.x, ball.y]]].map(([when, place]) => [when, this.see(place)]);
        for (const [shade, points] of fading(trail, now, TAIL, SHADES)) sheet.stroke(points, colour.ball, width, (0.35 * shade) / SHADES, false, [], "butt");
        for (const [k, robot] of robots.entries()) this.#robot(robot, k ? colour.target : colour.accent);
        const round = this.#round([ball.x, ball.y], radius);
        sheet.fill(round.map(([x, y]) => [x + lift, y + lift]), colour.shade, 0.25);
        sheet.fill(round, colour.ball);
        sheet.stroke(round, colour.ink, 1.2, 0.6, true);
        sheet.show();
    }
}
