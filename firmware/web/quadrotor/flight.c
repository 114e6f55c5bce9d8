#include "flight.h"

#include "policy_math.h"

#define GRAVITY 9.81f /* m/s^2 */

void flight_derive(flight_constants *c, const flight_parameters *p, float h) {
    const float mass = p->mass[0], *J = p->inertia, *arm = p->rotor_position;
    c->h = h;
    for (int i = 0; i < 4; ++i) {
        const float health = p->thrust_scale[i];
        c->lift[i] = health / mass;
        c->roll[i] = arm[2 * i + 1] * health / J[0];
        c->pitch[i] = -arm[2 * i] * health / J[1];
        c->yaw[i] = p->rotor_direction[i] * p->torque_ratio[0] * health / J[2];
    }
    for (int i = 0; i < 3; ++i) {
        c->curve[i] = p->thrust_curve[i];
        c->gyro[i] = (J[(i + 1) % 3] - J[(i + 2) % 3]) / J[i];
        c->drag[i] = p->drag[i] / mass;
        c->wind[i] = p->wind[i];
        c->push[i] = p->force[i] / mass;
        c->twist[i] = p->torque[i] / J[i];
    }
    c->push[2] -= GRAVITY;
    c->rise = policy_exp(-0.5f * h / (p->rise_time[0] * p->rotor_lag[0])); /* over half a substep */
    c->fall = policy_exp(-0.5f * h / (p->fall_time[0] * p->rotor_lag[0]));
    c->lowest = 0.25f * p->propeller_radius[0];
    c->ground = p->ground_effect[0] * c->lowest * c->lowest;
}

void flight_rotation(float r[9], const float q[4]) {
    const float a = q[0], b = q[1], c = q[2], d = q[3];
    r[0] = 1.0f - 2.0f * (c * c + d * d);
    r[1] = 2.0f * (b * c - a * d);
    r[2] = 2.0f * (b * d + a * c);
    r[3] = 2.0f * (b * c + a * d);
    r[4] = 1.0f - 2.0f * (b * b + d * d);
    r[5] = 2.0f * (c * d - a * b);
    r[6] = 2.0f * (b * d - a * c);
    r[7] = 2.0f * (c * d + a * b);
    r[8] = 1.0f - 2.0f * (b * b + c * c);
}

/* Lift over mass, and torque over inertia (3), at these rotor speeds. */
static void wrench(float out[4], const float speed[4], float ground, const flight_constants *c) {
    float f[4];
    for (int i = 0; i < 4; ++i) f[i] = ground * (c->curve[0] + speed[i] * (c->curve[1] + speed[i] * c->curve[2]));
    const float *rows[4] = {c->lift, c->roll, c->pitch, c->yaw};
    for (int k = 0; k < 4; ++k) out[k] = rows[k][0] * f[0] + rows[k][1] * f[1] + rows[k][2] * f[2] + rows[k][3] * f[3];
    for (int k = 0; k < 3; ++k) out[1 + k] += c->twist[k];
}

/* Rates of quaternion (4), velocity (3) and body rate (3); y holds these, the velocity relative to the air. */
static void derivative(float rate[10], const float y[10], const float w[4], const flight_constants *c) {
    const float *q = y, *u = y + 4, *o = y + 7;
    float r[9], s[3];
    flight_rotation(r, q);
    for (int k = 0; k < 3; ++k) s[k] = -c->drag[k] * (r[k] * u[0] + r[3 + k] * u[1] + r[6 + k] * u[2]);
    s[2] += w[0];
    rate[0] = 0.5f * (-q[1] * o[0] - q[2] * o[1] - q[3] * o[2]);
    rate[1] = 0.5f * (q[0] * o[0] + q[2] * o[2] - q[3] * o[1]);
    rate[2] = 0.5f * (q[0] * o[1] - q[1] * o[2] + q[3] * o[0]);
    rate[3] = 0.5f * (q[0] * o[2] + q[1] * o[1] - q[2] * o[0]);
    for (int k = 0; k < 3; ++k) {
        rate[4 + k] = r[3 * k] * s[0] + r[3 * k + 1] * s[1] + r[3 * k + 2] * s[2] + c->push[k];
        rate[7 + k] = w[1 + k] + c->gyro[k] * o[(k + 1) % 3] * o[(k + 2) % 3];
    }
}

static void along(float to[10], const float from[10], float time, const float rate[10]) {
    for (int k = 0; k < 10; ++k) to[k] = from[k] + time * rate[k];
}

void flight_advance(flight_state *s, const flight_constants *c, const float command[4]) {
    const float h = c->h, m = 0.5f * h, t = h / 6.0f;
    const float height = s->position[2] > c->lowest ? s->position[2] : c->lowest;
    const float ground = 1.0f + c->ground / (height * height);
    float w1[4], w2[4], w4[4], y[10], at[10], k1[10], k2[10], k3[10], k4[10];
    wrench(w1, s->rotor_speed, ground, c);
    for (int half = 0; half < 2; ++half) { /* first-order lag, exact */
        for (int i = 0; i < 4; ++i) {
            const float u = policy_clip(command[i], 0.0f, 1.0f), gap = s->rotor_speed[i] - u;
            s->rotor_speed[i] = u + gap * (gap < 0.0f ? c->rise : c->fall);
        }
        wrench(half ? w4 : w2, s->rotor_speed, ground, c);
    }
    for (int k = 0; k < 4; ++k) y[k] = s->quaternion[k];
    for (int k = 0; k < 3; ++k) {
        y[4 + k] = s->linear_velocity[k] - c->wind[k];
        y[7 + k] = s->angular_velocity[k];
    }
    derivative(k1, y, w1, c); /* Runge-Kutta 4 */
    along(at, y, m, k1);
    derivative(k2, at, w2, c);
    along(at, y, m, k2);
    derivative(k3, at, w2, c);
    along(at, y, h, k3);
    derivative(k4, at, w4, c);
    for (int k = 0; k < 3; ++k) /* integrates the velocity of the same stages */
        s->position[k] += h * (s->linear_velocity[k] + t * (k1[4 + k] + k2[4 + k] + k3[4 + k]));
    for (int k = 0; k < 10; ++k) y[k] += t * (k1[k] + 2.0f * (k2[k] + k3[k]) + k4[k]);
    const float scale = 1.0f / policy_sqrt(y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3]);
    for (int k = 0; k < 4; ++k) s->quaternion[k] = y[k] * scale;
    for (int k = 0; k < 3; ++k) {
        s->linear_velocity[k] = y[4 + k] + c->wind[k];
        s->angular_velocity[k] = y[7 + k];
    }
}

float flight_hover(const flight_parameters *p) {
    const float *c = p->thrust_curve, need = 0.25f * GRAVITY * p->mass[0] - c[0];
    const float u = c[2] != 0.0f ? (policy_sqrt(c[1] * c[1] + 4.0f * c[2] * need) - c[1]) / (2.0f * c[2]) : need / c[1];
    return policy_clip(u, 0.0f, 1.0f);
}
