/* The policy in closed loop with a quadrotor: what the page flies. Made for one vehicle per module. */
#include "flight.h"
#include "module.h"
#include "policy_math.h"
#include "settings.h" /* made from the policy file: SUBSTEPS, PREVIEW */

#define PERIOD (1.0f / POLICY_RATE_HZ) /* s */
#define LINE 1024                      /* substeps that a command can be late */

/* The target is taken to where the visitor puts it as fast as targets of quad_any move (sim/tasks/quad_any.py). */
#define TARGET_SPEED 1.5f        /* m/s */
#define TARGET_ACCELERATION 3.0f /* m/s^2 */

typedef struct {
    float position[3], velocity[3];
} moving;

static flight_parameters parameters;
static flight_constants constants;
static flight_state body;
static moving target;
static float aim[3];
static float line[LINE][4]; /* commands on their way to the rotors, a ring */
static int now, late;       /* substeps */
static uint32_t drawn;

EXPORTED("parameters") flight_parameters *world_parameters(void) { return &parameters; }

EXPORTED("body") flight_state *world_body(void) { return &body; }

EXPORTED("target") moving *world_target(void) { return &target; }

EXPORTED("aim") float *world_aim(void) { return aim; }

/* After the parameters were written to. */
EXPORTED("derive") void world_derive(void) { flight_derive(&constants, &parameters, PERIOD / SUBSTEPS); }

EXPORTED("airframe") void world_airframe(int index) {
    parameters = airframes[index];
    world_derive();
}

EXPORTED("hover") float world_hover(void) { return flight_hover(&parameters); }

/* How long a command is on its way, in s, rounded to substeps; what is kept. */
EXPORTED("latency") float world_latency(float seconds) {
    const int wanted = (int)(seconds * POLICY_RATE_HZ * SUBSTEPS + 0.5f);
    late = wanted < 0 ? 0 : wanted < LINE ? wanted : LINE - 1;
    return late * PERIOD / SUBSTEPS;
}

static void begin(float rotors) {
    for (int i = 0; i < 4; ++i) body.rotor_speed[i] = rotors;
    for (int k = 0; k < LINE; ++k)
        for (int i = 0; i < 4; ++i) line[k][i] = rotors;
    module_reset();
}

/* At rest on the target, which stands where it was put. */
EXPORTED("begin") void world_begin(void) {
    for (int k = 0; k < 3; ++k) {
        body.position[k] = target.position[k] = aim[k];
        body.linear_velocity[k] = body.angular_velocity[k] = target.velocity[k] = 0.0f;
        body.quaternion[1 + k] = 0.0f;
    }
    body.quaternion[0] = 1.0f;
    begin(flight_hover(&parameters));
}

static float uniform(float low, float high) { /* xorshift, Marsaglia 2003 */
    drawn ^= drawn << 13;
    drawn ^= drawn >> 17;
    drawn ^= drawn << 5;
    return low + (high - low) * (float)(drawn >> 8) * 5.9604645e-8f; /* 2^-24 */
}

/* Let go somewhere within 0.5 m and 1 m/s per axis, turned by at most 90 degrees, with slow rotors: throw `seed`. */
EXPORTED("toss") void world_toss(uint32_t seed) {
    float axis[3], length = 0.0f;
    drawn = seed * 2654435761u + 1u;
    for (int k = 0; k < 8; ++k) uniform(0.0f, 1.0f); /* seeds that are alike part */
    world_begin();
    while (!(length > 0.01f && length < 1.0f)) {
        for (int k = 0; k < 3; ++k) axis[k] = uniform(-1.0f, 1.0f);
        length = axis[0] * axis[0] + axis[1] * axis[1] + axis[2] * axis[2];
    }
    const float tangent = uniform(0.0f, 1.0f); /* of half the angle */
    const float cosine = 1.0f / policy_sqrt(1.0f + tangent * tangent);
    body.quaternion[0] = cosine;
    for (int k = 0; k < 3; ++k) {
        body.quaternion[1 + k] = cosine * tangent * axis[k] / policy_sqrt(length);
        body.position[k] += uniform(-0.5f, 0.5f);
        body.linear_velocity[k] = uniform(-1.0f, 1.0f);
        body.angular_velocity[k] = uniform(-1.0f, 1.0f);
    }
    begin(uniform(0.0f, 0.5f));
}

/* `time` s further on its way to where it was put: fast, and so that it can still stop there. */
static void toward(moving *m, float time) {
    float gap[3], distance = 0.0f, change = 0.0f, wanted[3];
    for (int k = 0; k < 3; ++k) {
        gap[k] = aim[k] - m->position[k];
        distance += gap[k] * gap[k];
    }
    distance = policy_sqrt(distance);
    float speed = policy_sqrt(TARGET_ACCELERATION * distance);
    speed = speed < TARGET_SPEED ? speed : TARGET_SPEED;
    speed = speed < 4.0f * distance ? speed : 4.0f * distance;
    for (int k = 0; k < 3; ++k) {
        wanted[k] = (distance > 1e-6f ? speed * gap[k] / distance : 0.0f) - m->velocity[k];
        change += wanted[k] * wanted[k];
    }
    change = policy_sqrt(change);
    const float most = TARGET_ACCELERATION * time, share = change > most ? most / change : 1.0f;
    for (int k = 0; k < 3; ++k) {
        m->velocity[k] += share * wanted[k];
        m->position[k] += time * m->velocity[k];
    }
}

static void copy(float *to, const float *from, int count) {
    for (int k = 0; k < count; ++k) to[k] = from[k];
}

#define SENSE(name) static __attribute__((unused)) void sense_##name(float *to, int count)
SENSE(position) { copy(to, body.position, count); }
SENSE(linear_velocity) { copy(to, body.linear_velocity, count); }
SENSE(angular_velocity) { copy(to, body.angular_velocity, count); }
SENSE(target_position) { copy(to, target.position, count); }
SENSE(target_velocity) { copy(to, target.velocity, count); }
SENSE(rotation) {
    float r[9];
    flight_rotation(r, body.quaternion);
    copy(to, r, count);
}
SENSE(target_preview) { /* where it will be if the visitor leaves it alone */
    moving ahead = target;
    for (int k = 0; k < count; k += 3) {
        for (int i = 0; i < 10; ++i) toward(&ahead, 0.1f * PREVIEW);
        copy(to + k, ahead.position, 3);
    }
}

/* A control period under `commands`, without the policy. */
EXPORTED("fly") void world_fly(void) {
    for (int k = 0; k < SUBSTEPS; ++k) {
        now = (now + 1) % LINE;
        copy(line[now], commands.motor_command, 4);
        flight_advance(&body, &constants, line[(now + LINE - late) % LINE]);
    }
}

/* A control period; false: the policy could not, and nothing has moved. */
EXPORTED("loop") bool world_loop(void) {
    toward(&target, PERIOD);
#define FILL(name, count, type, age) sense_##name(signals.name, count);
    POLICY_SIGNALS(FILL)
    if (!module_step()) return false;
    world_fly();
    return true;
}
