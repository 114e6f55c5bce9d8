#include "pitch.h"

#include "policy_math.h"

#define TINY 1e-6f
#define WEIGHT 9.81f       /* of one kilogram */
#define SOFT 0.2f          /* m/s: what comes closer more slowly does not bounce */
#define ROBOT_BOUNCE 0.2f  /* restitution of robots on one another */
#define RUBBED 0.3f        /* friction of the ball on robots */
#define LEAST_KICK 0.1f    /* of the command: less is none */

static float absolute(float x) { return x < 0.0f ? -x : x; }
static float least(float x, float y) { return x < y ? x : y; }
static float most(float x, float y) { return x > y ? x : y; }
static float within(float x, float limit) { return least(most(x, -limit), limit); }
static float length(float x, float y) { return policy_sqrt(x * x + y * y); }

/* A robot under its command: its velocities, then where it is. */
static void driven(pitch_robot *r, const pitch_kind *p, const pitch_command *c, float h) {
    const float cos = r->heading[0], sin = r->heading[1], omni = p->omni;
    float vx = r->velocity[0], vy = r->velocity[1], turning = r->turning;
    float forward = vx * cos + vy * sin, left = vy * cos - vx * sin;
    const float to_left = c->left * omni, fastest = length(c->forward, to_left) + p->track * absolute(c->turn);
    const float share = least(p->speed / most(fastest, TINY), 1.0f), quick = 1.0f / p->lag;
    /* Wheels that do not go sideways hold as their grip allows. */
    const float firmly = omni * quick + (1.0f - omni) / h, grip = omni * p->acceleration + (1.0f - omni) * p->grip;
    forward += h * within((share * c->forward - forward) * quick, p->acceleration);
    left += h * within((share * to_left - left) * firmly, grip);
    turning += h * within((share * c->turn - turning) * quick, p->yaw_acceleration);
    vx = forward * cos - left * sin;
    vy = forward * sin + left * cos;
    r->velocity[0] = vx;
    r->velocity[1] = vy;
    r->turning = turning;
    r->position[0] += h * vx;
    r->position[1] += h * vy;
    const float half = 0.5f * h * turning, unit = 1.0f / (1.0f + half * half); /* the angle's tangent is as large */
    const float by_cos = (1.0f - half * half) * unit, by_sin = (half + half) * unit;
    r->heading[0] = cos * by_cos - sin * by_sin;
    r->heading[1] = sin * by_cos + cos * by_sin;
    r->charge = most(r->charge - h, 0.0f);
}

/* The ball on the ground: sliding becomes rolling, rolling becomes rest. */
static void rolled(pitch_ball *s, const pitch_sphere *b, float h) {
    float vx = s->velocity[0], vy = s->velocity[1], rx = s->rolling[0], ry = s->rolling[1];
    const float ux = vx - rx, uy = vy - ry, slip = length(ux, uy), once = 1.0f / (1.0f + b->inertia);
    const float rubbed = least(h * WEIGHT * b->sliding / (b->inertia * once) / most(slip, TINY), 1.0f);
    const float slower = rubbed * b->inertia * once;
    vx -= slower * ux;
    vy -= slower * uy;
    rx += rubbed * once * ux;
    ry += rubbed * once * uy;
    const float left = most(1.0f - h * WEIGHT * b->rolling / most(length(vx, vy), TINY), 0.0f);
    s->velocity[0] = vx * left;
    s->velocity[1] = vy * left;
    s->rolling[0] = rx * left;
    s->rolling[1] = ry * left;
    s->position[0] += h * vx * left;
    s->position[1] += h * vy * left;
}

/* A robot kicks the ball if told to, if it lies at its front, and if the kicker is charged. */
static void kicked(pitch_ball *s, pitch_robot *r, const pitch_kind *p, const pitch_sphere *b, const pitch_command *c) {
    const float cos = r->heading[0], sin = r->heading[1], told = least(c->kick, 1.0f);
    const float dx = s->position[0] - r->position[0], dy = s->position[1] - r->position[1];
    const float ahead = dx * cos + dy * sin, aside = dy * cos - dx * sin;
    if (!(told > LEAST_KICK) || r->charge > 0.0f || ahead > p->front + b->radius + p->reach || !(ahead > p->front) ||
        absolute(aside) > p->mouth)
        return;
    const float along = (s->velocity[0] - r->velocity[0]) * cos + (s->velocity[1] - r->velocity[1]) * sin;
    const float gain = most(told * p->kick_speed - along, 0.0f), share = b->mass / (b->mass + p->mass);
    s->velocity[0] += (1.0f - share) * gain * cos;
    s->velocity[1] += (1.0f - share) * gain * sin;
    r->velocity[0] -= share * gain * cos;
    r->velocity[1] -= share * gain * sin;
    r->charge = most(r->charge, p->recharge);
}

/* Ball and robot: how far they overlap, the normal n toward the ball, and the contact c from the robot's middle. */
static float nearest(float n[2], float c[2], const pitch_ball *s, const pitch_robot *r, const pitch_kind *p,
                     const pitch_sphere *b) {
    const float cos = r->heading[0], sin = r->heading[1];
    const float dx = s->position[0] - r->position[0], dy = s->position[1] - r->position[1];
    const float ahead = dx * cos + dy * sin, aside = dy * cos - dx * sin, away = most(length(ahead, aside), TINY);
    float gap, nx, ny, px, py;
    if (p->radius * ahead > p->front * away) { /* in front of the chord */
        const float beside = within(aside, p->mouth), ex = ahead - p->front, ey = aside - beside;
        const float corner = most(length(ex, ey), TINY);
        const int flat = !(absolute(aside) > p->mouth);
        gap = flat ? ex : corner;
        nx = flat ? 1.0f : ex / corner;
        ny = flat ? 0.0f : ey / corner;
        px = p->front;
        py = beside;
    } else {
        gap = away - p->radius;
        nx = ahead / away;
        ny = aside / away;
        px = p->radius * ahead / away;
        py = p->radius * aside / away;
    }
    n[0] = nx * cos - ny * sin;
    n[1] = nx * sin + ny * cos;
    c[0] = px * cos - py * sin;
    c[1] = px * sin + py * cos;
    return b->radius - gap;
}

static void touched(pitch_ball *s, pitch_robot *r, const pitch_kind *p, const pitch_sphere *b) {
    float n[2], c[2];
    const float depth = nearest(n, c, s, r, p, b), share = b->mass / (b->mass + p->mass);
    if (!(depth > 0.0f)) return;
    const float ux = s->velocity[0] - r->velocity[0] + r->turning * c[1];
    const float uy = s->velocity[1] - r->velocity[1] - r->turning * c[0];
    const float nearing = -(ux * n[0] + uy * n[1]), sliding = uy * n[0] - ux * n[1];
    const float push = most(nearing, 0.0f) * (1.0f + (nearing > SOFT ? p->bounce : 0.0f));
    const float rub = within(sliding * b->inertia / (1.0f + b->inertia), RUBBED * push); /* the rest becomes spin */
    const float g[2] = {push * n[0] + rub * n[1], push * n[1] - rub * n[0]};
    /* It rolls up or down the robot's side, which slows that. */
    const float rolling = within(s->rolling[0] * n[0] + s->rolling[1] * n[1], RUBBED * push / b->inertia);
    for (int i = 0; i < 2; ++i) {
        s->rolling[i] -= rolling * n[i];
        s->velocity[i] += (1.0f - share) * g[i];
        r->velocity[i] -= share * g[i];
        s->position[i] += (1.0f - share) * depth * n[i];
        r->position[i] -= share * depth * n[i];
    }
    r->touched = 1.0f;
}

/* A robot makes room for a ball that a wall has pushed back into it. */
static void held_up(const pitch_ball *s, pitch_robot *r, const pitch_kind *p, const pitch_sphere *b) {
    float n[2], c[2];
    const float depth = nearest(n, c, s, r, p, b);
    if (!(depth > 0.0f)) return;
    const float ux = r->velocity[0] - s->velocity[0], uy = r->velocity[1] - s->velocity[1];
    const float faster = most(ux * n[0] + uy * n[1], 0.0f);
    for (int i = 0; i < 2; ++i) {
        r->velocity[i] -= faster * n[i];
        r->position[i] -= depth * n[i];
    }
}

/* Two robots meet, as discs. */
static void collided(pitch_robot *a, pitch_robot *b, const pitch_kind *p, const pitch_kind *q) {
    const float share = p->mass / (p->mass + q->mass);
    const float dx = b->position[0] - a->position[0], dy = b->position[1] - a->position[1];
    const float away = most(length(dx, dy), TINY), n[2] = {dx / away, dy / away};
    const float depth = p->radius + q->radius - away;
    if (!(depth > 0.0f)) return;
    const float nearing = (a->velocity[0] - b->velocity[0]) * n[0] + (a->velocity[1] - b->velocity[1]) * n[1];
    const float push = most(nearing, 0.0f) * (1.0f + (nearing > SOFT ? ROBOT_BOUNCE : 0.0f));
    for (int i = 0; i < 2; ++i) {
        a->velocity[i] -= (1.0f - share) * push * n[i];
        b->velocity[i] += share * push * n[i];
        a->position[i] -= (1.0f - share) * depth * n[i];
        b->position[i] += share * depth * n[i];
    }
}

/* A coordinate of a robot stays within its limit; one that would leave stops. */
static void fenced(float *place, float *speed, float limit) {
    if (*place > limit) *speed = least(*speed, 0.0f);
    if (*place < -limit) *speed = most(*speed, 0.0f);
    *place = within(*place, limit);
}

/* A ball's coordinate and velocity behind a wall at either side. */
static void bounced(float *place, float *speed, float limit, float bounce) {
    if (*place > limit) *speed = least(*speed, -bounce * *speed);
    if (*place < -limit) *speed = most(*speed, -bounce * *speed);
    *place = within(*place, limit);
}

/* The ball stays within the boards, bounces off the posts, and counts when it is in a goal as a whole. */
static void enclosed(pitch_ball *s, const pitch_sphere *b) {
    const float radius = b->radius, bounce = b->wall_bounce;
    float x = s->position[0], y = s->position[1], vx = s->velocity[0], vy = s->velocity[1];
    /* A post is a corner that only a ball within the mouth meets from the side. */
    const float dx = x < 0.0f ? x + field.half_length : x - field.half_length;
    const float dy = y < 0.0f ? y + field.half_goal : y - field.half_goal, away = most(length(dx, dy), TINY);
    const int beyond = absolute(x) > field.half_length || absolute(y) > field.half_goal;
    const float depth = beyond ? 0.0f : most(radius - away, 0.0f), nx = dx / away, ny = dy / away;
    const float nearing = (depth > 0.0f ? most(-(vx * nx + vy * ny), 0.0f) : 0.0f) * (1.0f + bounce);
    x += depth * nx;
    y += depth * ny;
    vx += nearing * nx;
    vy += nearing * ny;
    const int inside = absolute(x) > field.half_length; /* of a goal, unless it is beside the mouth, at the board */
    const int beside = absolute(y) > field.half_goal;
    const float deep = (beside ? field.half_length : field.half_length + field.depth) - radius;
    const float wide = beside ? field.half_width : inside ? field.half_goal : field.half_width;
    bounced(&x, &vx, deep, bounce);
    bounced(&y, &vy, wide - radius, bounce);
    s->position[0] = x;
    s->position[1] = y;
    s->velocity[0] = vx;
    s->velocity[1] = vy;
    const float over = field.half_length + radius;
    if (s->scored == 0.0f) s->scored = x > over ? 1.0f : x < -over ? -1.0f : 0.0f;
}

void pitch_advance(pitch_state *s, const pitch_kind kind[ROBOTS], const pitch_sphere *b, const pitch_command c[ROBOTS],
                   float h) {
    pitch_robot *r = s->robot;
    for (int k = 0; k < ROBOTS; ++k) driven(&r[k], &kind[k], &c[k], h);
    rolled(&s->ball, b, h);
    for (int k = 0; k < ROBOTS; ++k) kicked(&s->ball, &r[k], &kind[k], b, &c[k]);
    for (int k = 0; k < ROBOTS; ++k)
        for (int other = k + 1; other < ROBOTS; ++other) collided(&r[k], &r[other], &kind[k], &kind[other]);
    for (int k = 0; k < ROBOTS; ++k) touched(&s->ball, &r[k], &kind[k], b);
    enclosed(&s->ball, b);
    for (int k = 0; k < ROBOTS; ++k) {
        held_up(&s->ball, &r[k], &kind[k], b);
        fenced(&r[k].position[0], &r[k].velocity[0], field.half_length - kind[k].radius);
        fenced(&r[k].position[1], &r[k].velocity[1], field.half_width - kind[k].radius);
    }
}
