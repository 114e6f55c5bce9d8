#include "car.h"

#include "policy_math.h"
#include "track.h"

#define WEIGHT 9.81f /* of one kilogram */
#define SLOWEST 1.0f /* m/s, below which wheels do not slip; from 2 m/s on slip angles count */
#define SPAN (1.0f / 3.0f)
#define ROLLS 40.0f /* 1/s at which slipping dies where it is slow */
#define PI 3.14159265f
#define QUARTER 1.57079633f
#define BENT 0.05f /* m by which bent walls are nearer to a car's ends than straight ones, at most */

static float absolute(float x) { return x < 0.0f ? -x : x; }
static float least(float x, float y) { return x < y ? x : y; }
static float most(float x, float y) { return x > y ? x : y; }
static float within(float x, float limit) { return least(most(x, -limit), limit); }

/* The polynomials of sim/engines/vector/trigonometry.py. */
static float quarter_sine(float x) {
    const float s = x * x;
    return x * (9.99996616e-01f + s * (-1.66648284e-01f + s * (8.30632524e-03f + s * -1.83636542e-04f)));
}
static float cosine(float x) { return quarter_sine(QUARTER - absolute(x)); }
static float upper_sine(float x) { return quarter_sine(least(x, PI - x)); }
static float upper_arctan(float x) {
    float y = least(x, 1.0f / most(x, 1.0f));
    const float s = y * y;
    y *= 0.99997722f + s * (-0.33262283f + s * (0.19354038f + s * (-0.11642648f + s * (0.05264735f + s * -0.01171914f))));
    return x > 1.0f ? QUARTER - y : y;
}

/* The lateral force of an axle over what it could do (Pacejka), for the tangent of its slip angle. */
static float gripped(float tangent, float b, const car_parameters *p) {
    const float x = b * absolute(tangent), a = upper_arctan(x);
    const float y = upper_sine(p->tyre_shape * upper_arctan(x - p->tyre_curvature * (x - a)));
    return tangent < 0.0f ? -y : y;
}

void car_derive(car_constants *c, const car_parameters *p) {
    c->hold = p->friction * WEIGHT;
    c->per_hold = 1.0f / c->hold;
    c->front_b = p->front_stiffness / p->tyre_shape;
    c->rear_b = p->rear_stiffness / p->tyre_shape;
    c->spin = p->mass / p->yaw_inertia;
    c->servo = 1.0f / p->steering_lag;
    c->motor = 1.0f / p->motor_lag;
}

/* Derivatives of x, y, the angle since the step began, velocity ahead and to the left, turning, steering, push. */
static void rates(float d[8], const float y[8], const car_parameters *p, const car_constants *c, const float heading[2],
                  const float command[2]) {
    const float vx = y[3], vy = y[4], turning = y[5], steering = y[6], push = y[7];
    const float by_cos = cosine(y[2]), by_sin = quarter_sine(y[2]);
    const float ahead = heading[0] * by_cos - heading[1] * by_sin, up = heading[1] * by_cos + heading[0] * by_sin;
    const float cs = cosine(steering), ss = quarter_sine(steering), hold = c->hold, drive = within(push, hold);
    const float front = p->share, rear = 1.0f - front, used = drive * c->per_hold;
    const float left = hold * policy_sqrt(most(1.0f - used * used, 0.0f)), drift = vy + p->front * turning;
    /* Speeds of the wheels in their own direction. */
    const float one = most(absolute(vx * cs + drift * ss), SLOWEST), other = most(absolute(vx), SLOWEST);
    const float shared = 1.0f / (one * other * cs), inverse = shared * one * cs;
    const float fg = gripped((vx * ss - drift * cs) * shared * other * cs, c->front_b, p);
    const float rg = gripped((p->rear * turning - vy) * inverse, c->rear_b, p);
    const float fx = drive * front, fy = left * front * fg, ry = left * rear * rg;
    const float forward = fx * cs - fy * ss + drive * rear, aside = fy * cs + fx * ss;
    const float turn = (p->front * aside - p->rear * ry) * c->spin;
    /* As wheels roll that do not slip. */
    const float curved = p->per_base * vx * ss * shared * one * other;
    const float to_left = within(ROLLS * (p->rear * curved - vy), hold);
    const float to_turn = within(ROLLS * (curved - turning), p->spin * hold);
    const float share = least(most((vx * vx + vy * vy - SLOWEST * SLOWEST) * SPAN, 0.0f), 1.0f);
    const float power = p->acceleration, gain = p->speed_gain * (command[1] - vx);
    const float wanted = least(most(gain, -power), power * least(p->switch_speed * inverse, 1.0f));
    const float told = within(command[0], p->steering_limit) + p->trim;
    d[0] = vx * ahead - vy * up;
    d[1] = vx * up + vy * ahead;
    d[2] = turning;
    d[3] = drive + share * (forward + vy * turning - drive);
    d[4] = to_left + share * (aside + ry - vx * turning - to_left);
    d[5] = to_turn + share * (turn - to_turn);
    d[6] = within((told - steering) * c->servo, p->steering_rate);
    d[7] = (wanted - push) * c->motor;
}

static void along(float to[8], const float from[8], float h, const float rate[8]) {
    for (int k = 0; k < 8; ++k) to[k] = from[k] + h * rate[k];
}

static void driven(car_state *s, const car_parameters *p, const car_constants *c, const float command[2], float h) {
    const float start[8] = {0.0f,       0.0f,        0.0f,   s->velocity[0], s->velocity[1],
                            s->turning, s->steering, s->push};
    const float third = 2.0f * (1.0f / 6.0f) * h, *heading = s->heading;
    float at[8], k1[8], k2[8], k3[8], k4[8];
    rates(k1, start, p, c, heading, command); /* Runge-Kutta 4 */
    along(at, start, 0.5f * h, k1);
    rates(k2, at, p, c, heading, command);
    along(at, start, 0.5f * h, k2);
    rates(k3, at, p, c, heading, command);
    along(at, start, h, k3);
    rates(k4, at, p, c, heading, command);
    along(at, start, 1.0f / 6.0f * h, k1);
    along(at, at, third, k2);
    along(at, at, third, k3);
    along(at, at, 1.0f / 6.0f * h, k4);
    s->position[0] += at[0];
    s->position[1] += at[1];
    const float by_cos = cosine(at[2]), by_sin = quarter_sine(at[2]);
    const float ahead = heading[0] * by_cos - heading[1] * by_sin, up = heading[1] * by_cos + heading[0] * by_sin;
    const float unit = 0.5f * (3.0f - ahead * ahead - up * up); /* a Newton step: its length stays one */
    s->heading[0] = unit * ahead;
    s->heading[1] = unit * up;
    s->velocity[0] = at[3];
    s->velocity[1] = at[4];
    s->turning = at[5];
    s->steering = at[6];
    s->push = at[7];
}

/* How far a point so far ahead of a car is from walls, and the normal away from them. */
static float depth_at(const car_state *s, float ahead, float n[2]) {
    const float away = track_distance(s->position[0] + ahead * s->heading[0], s->position[1] + ahead * s->heading[1], n);
    const float steep = most(policy_sqrt(n[0] * n[0] + n[1] * n[1]), 1e-6f);
    n[0] /= steep;
    n[1] /= steep;
    return away;
}

/* The circle so far ahead of a car meets what walls there are: an impulse at its edge, and Coulomb friction along it. */
static void met(car_state *s, const car_parameters *p, float ahead) {
    float n[2];
    const float depth = most(p->radius - depth_at(s, ahead, n), 0.0f), cos = s->heading[0], sin = s->heading[1];
    s->position[0] += depth * n[0];
    s->position[1] += depth * n[1];
    const float forward = n[0] * cos + n[1] * sin, left = n[1] * cos - n[0] * sin; /* the normal, in the car's axes */
    const float px = ahead - p->radius * forward, py = -p->radius * left;
    const float ux = s->velocity[0] - s->turning * py, uy = s->velocity[1] + s->turning * px;
    const float nearing = depth > 0.0f ? most(-(ux * forward + uy * left), 0.0f) : 0.0f;
    const float inverse = 1.0f / p->mass, spin = 1.0f / p->yaw_inertia, arm = px * left - py * forward;
    const float direct = inverse + spin * arm * arm, lever = px * forward + py * left;
    const float limit = p->wall_friction * nearing / direct;
    const float rub = within((ux * left - uy * forward) / (inverse + spin * lever * lever), limit);
    const float push = most(nearing - rub * spin * lever * arm, 0.0f) / direct; /* rubbing turns it, too */
    const float gx = push * forward - rub * left, gy = push * left + rub * forward;
    s->velocity[0] += inverse * gx;
    s->velocity[1] += inverse * gy;
    s->turning += spin * (px * gy - py * gx);
    if (depth > 0.0f) s->touched = 1.0f;
    s->impact = most(s->impact, nearing);
}

void car_advance(car_state *s, const car_parameters *p, const car_constants *c, const float command[2], float h,
                 int steps) {
    float n[2];
    s->touched = s->impact = 0.0f;
    for (int k = 0; k < steps; ++k) {
        driven(s, p, c, command, h);
        const float away = depth_at(s, 0.0f, n);
        const float nearer = p->reach * absolute(n[0] * s->heading[0] + n[1] * s->heading[1]);
        if (away - nearer < p->radius + BENT) {
            met(s, p, p->reach);
            met(s, p, -p->reach);
            met(s, p, 0.0f);
        }
    }
}
