/* The policy in closed loop with a match of one against one: what the page plays. The policy is robot 0. */
#include "module.h"
#include "pitch.h"
#include "policy_math.h"
#include "settings.h" /* made from the policy file: SUBSTEPS, OMNI */

#define PERIOD (1.0f / POLICY_RATE_HZ) /* s */
#define BEHIND 0.3f                    /* the scripted player's numbers: sim/experts/soccer.py */
#define ASIDE 0.12f
#define GAIN 4.0f
#define TURN_GAIN 8.0f
#define AIMED 0.8f
#define MOST_TURN 8.0f /* rad/s that a player can ask for */
#define STUCK 0.1f     /* m within which the ball may stay for PATIENCE s, until it is put elsewhere */
#define PATIENCE 2.0f
#define MARGIN 0.1f

enum { STILL, CHASER, HAND }; /* who plays robot 1 */

static pitch_state match;
static pitch_kind kind[ROBOTS];
static pitch_sphere ball;
static pitch_command told[ROBOTS];
static float hand[3]; /* what the visitor asks for: ahead (m/s), turn (rad/s), kick */
static float anchor[2];
static int waited;
static uint32_t drawn;

EXPORTED("match") pitch_state *world_match(void) { return &match; }
EXPORTED("kinds") pitch_kind *world_kinds(void) { return kind; }
EXPORTED("ball") pitch_sphere *world_ball(void) { return &ball; }
EXPORTED("told") pitch_command *world_told(void) { return told; }
EXPORTED("hand") float *world_hand(void) { return hand; }

/* Nominal robots and ball. */
EXPORTED("nominal") void world_nominal(void) {
    ball = sphere;
    for (int k = 0; k < ROBOTS; ++k) kind[k] = kinds[0];
}

/* After the match was written to. */
EXPORTED("begun") void world_begun(void) {
    for (int i = 0; i < 2; ++i) anchor[i] = match.ball.position[i];
    waited = 0;
    module_reset();
}

static float uniform(float low, float high) { /* xorshift, Marsaglia 2003 */
    drawn ^= drawn << 13;
    drawn ^= drawn >> 17;
    drawn ^= drawn << 5;
    return low + (high - low) * (float)(drawn >> 8) * 5.9604645e-8f; /* 2^-24 */
}

static float hypotenuse(float x, float y) { return policy_sqrt(x * x + y * y); }

/* Kickoff `seed`: robots anywhere in their halves, the ball in the middle. */
EXPORTED("begin") void world_begin(uint32_t seed) {
    static const pitch_state nothing;
    drawn = seed * 2654435761u + 1u;
    for (int k = 0; k < 8; ++k) uniform(0.0f, 1.0f); /* seeds that are alike part */
    float apart = 0.0f;
    const float edge = MARGIN + kind[0].radius, room = 2.0f * kind[0].radius + MARGIN;
    while (!(apart > room)) {
        match = nothing;
        for (int i = 0; i < 2; ++i) match.ball.position[i] = uniform(-0.08f, 0.08f);
        for (int k = 0; k < ROBOTS; ++k) {
            const float side = k ? -1.0f : 1.0f;
            pitch_robot *r = &match.robot[k];
            r->position[0] = -side * uniform(0.0f, field.half_length - edge);
            r->position[1] = uniform(edge - field.half_width, field.half_width - edge);
            const float tangent = uniform(-0.15f, 0.15f), unit = 1.0f / (1.0f + tangent * tangent);
            r->heading[0] = side * (1.0f - tangent * tangent) * unit;
            r->heading[1] = side * 2.0f * tangent * unit;
        }
        const float *p = match.robot[0].position, *q = match.robot[1].position, *b = match.ball.position;
        apart = hypotenuse(p[0] - q[0], p[1] - q[1]);
        for (int k = 0; k < ROBOTS; ++k) {
            const float *r = match.robot[k].position, far = hypotenuse(r[0] - b[0], r[1] - b[1]);
            apart = far < apart ? far : apart;
        }
    }
    world_begun();
}

/* A vector of the world's in the axes of somebody with this heading. */
static void turned(float to[2], float x, float y, const float heading[2]) {
    to[0] = x * heading[0] + y * heading[1];
    to[1] = y * heading[0] - x * heading[1];
}

typedef struct {
    float position[2], heading[2], velocity[2], turning, ready, ball_position[2], ball_velocity[2], goal[2], others[2],
        others_velocity[2];
} view;

/* What a robot knows of the match, in its own axes. */
static void look(view *v, int k) {
    const pitch_robot *r = &match.robot[k], *o = &match.robot[1 - k];
    const float side = k ? -1.0f : 1.0f, x = r->position[0], y = r->position[1];
    for (int i = 0; i < 2; ++i) {
        v->position[i] = side * r->position[i];
        v->heading[i] = side * r->heading[i];
    }
    turned(v->velocity, r->velocity[0], r->velocity[1], r->heading);
    v->turning = r->turning;
    v->ready = r->charge > 0.0f ? 0.0f : 1.0f;
    turned(v->ball_position, match.ball.position[0] - x, match.ball.position[1] - y, r->heading);
    turned(v->ball_velocity, match.ball.velocity[0], match.ball.velocity[1], r->heading);
    turned(v->goal, side * field.half_length - x, -y, r->heading);
    turned(v->others, o->position[0] - x, o->position[1] - y, r->heading);
    turned(v->others_velocity, o->velocity[0], o->velocity[1], r->heading);
}

/* The angle of a direction, to 1e-9: three times halved, then a series. */
static float angle_of(double x, double y) {
    const double length = __builtin_sqrt(x * x + y * y);
    if (!(length > 0.0)) return 0.0f;
    if (y == 0.0 && x < 0.0) return 3.14159265f;
    double t = x > 0.0 ? y / (length + x) : (length - x) / y; /* tangent of half of it */
    for (int k = 0; k < 2; ++k) t /= 1.0 + __builtin_sqrt(1.0 + t * t);
    const double s = t * t;
    const double series = 1.0 - s * (1.0 / 3 - s * (1.0 / 5 - s * (1.0 / 7 - s * (1.0 / 9 - s * (1.0 / 11 - s / 13)))));
    return (float)(8.0 * t * series);
}

/* Drive behind the ball, push it towards the goal, and kick when that is ahead. */
static pitch_command chase(const view *v, float pace) {
    const float *b = v->ball_position, wx = v->goal[0] - b[0], wy = v->goal[1] - b[1];
    const float left = hypotenuse(wx, wy), size = left > 1e-6f ? left : 1e-6f, ax = wx / size, ay = wy / size;
    const float along = b[0] * ax + b[1] * ay, ox = b[0] - along * ax, oy = b[1] - along * ay;
    const float off = hypotenuse(ox, oy), least = off > 1e-6f ? off : 1e-6f;
    const bool lined_up = along > 0.0f && off < ASIDE;
    const float around = along < 0.1f ? -0.25f : 0.0f; /* past the ball, not through it */
    const float tx = lined_up ? b[0] : b[0] - BEHIND * ax + around * (ox / least);
    const float ty = lined_up ? b[1] : b[1] - BEHIND * ay + around * (oy / least);
    const float distance = hypotenuse(tx, ty), straight = distance > 0.0f ? tx / distance : 1.0f;
    const float ahead = straight > 0.0f ? straight * straight : 0.0f, most = kinds[0].speed;
    const float goal = hypotenuse(v->goal[0], v->goal[1]);
    pitch_command c;
    c.forward = policy_clip(pace * (lined_up ? most : GAIN * distance) * ahead, -most, most);
    c.left = policy_clip(pace * GAIN * ty, -most, most);
    c.turn = policy_clip(TURN_GAIN * angle_of(tx, ty), -MOST_TURN, MOST_TURN);
    c.kick = v->goal[0] / (goal > 1e-6f ? goal : 1e-6f) > AIMED ? 1.0f : 0.0f;
    return c;
}

static void copy(float *to, const float *from, int count) {
    for (int k = 0; k < count; ++k) to[k] = from[k];
}

/* What the policy sees now. */
EXPORTED("sense") void world_sense(void) {
    view own;
    look(&own, 0);
#define FILL(name, count, type, age) copy(signals.name, (const float *)&own.name, count);
    POLICY_SIGNALS(FILL)
}

/* Where the ball has been stuck, put it on the halfway line, away from where it was. */
static void drop(void) {
    pitch_ball *b = &match.ball;
    if (hypotenuse(b->position[0] - anchor[0], b->position[1] - anchor[1]) > STUCK) {
        copy(anchor, b->position, 2);
        waited = 0;
        return;
    }
    if (++waited < PATIENCE * POLICY_RATE_HZ || b->scored != 0.0f) return;
    const float side = b->position[1] < 0.0f ? -1.0f : 1.0f;
    for (int i = 0; i < 2; ++i) b->velocity[i] = b->rolling[i] = 0.0f;
    b->position[0] = 0.0f;
    b->position[1] = -0.5f * field.half_width * side;
    copy(anchor, b->position, 2);
    waited = 0;
}

/* A control period under what the robots are told. */
EXPORTED("play") void world_play(void) {
    for (int k = 0; k < ROBOTS; ++k) match.robot[k].touched = 0.0f;
    for (int k = 0; k < SUBSTEPS; ++k) pitch_advance(&match, kind, &ball, told, PERIOD / SUBSTEPS);
    drop();
}

/* A control period; false: the policy could not, and nothing has moved. `who` plays robot 1, the scripted player at
 * this share of its speed. */
EXPORTED("loop") bool world_loop(int who, float pace) {
    view other;
    world_sense();
    if (!module_step()) return false;
    look(&other, 1);
    told[0].forward = commands.drive[0];
    told[0].left = OMNI ? commands.drive[OMNI] : 0.0f;
    told[0].turn = commands.turn[0];
    told[0].kick = commands.kick[0];
    static const pitch_command still;
    told[1] = who == CHASER ? chase(&other, pace) : still;
    if (who == HAND) {
        told[1].forward = hand[0];
        told[1].turn = hand[1];
        told[1].kick = hand[2];
    }
    world_play();
    return true;
}
