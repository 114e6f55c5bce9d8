#include "flight.h"

#include "policy_math.h"
#include "signals.h"

#define PERIOD_US ((uint32_t)(1e6f / POLICY_RATE_HZ + 0.5f))
/* A step is taken by the turn of the loop that is nearest to it: they come every 0.1 to 1 ms. */
#define EARLY_US 500u
#define JUMP 0.5f /* m, beyond what LIMIT_SPEED allows in the time between two looks */

static float square(float x) { return x * x; }

static float squares(const float *x) { return square(x[0]) + square(x[1]) + square(x[2]); }

void flight_init(flight *f) {
    f->selftest = policy_init(&f->policy) ? FLIGHT_FINE : FLIGHT_SELFTEST;
    flight_end(f);
}

void flight_end(flight *f) {
    f->begun = f->stepped = false;
    for (int i = 0; i < 4; ++i) f->motors[i] = 0.0f;
}

static flight_reason known(const flight *f, const flight_seen *seen) {
    if (f->selftest != FLIGHT_FINE) return f->selftest;
    if (!seen->allowed) return FLIGHT_OTHER;
    if (policy_broken(seen->rotation, 9) || policy_broken(seen->rates, 3) || policy_broken(seen->sticks, 3) ||
        policy_broken(&seen->volts, 1))
        return FLIGHT_NOT_FINITE;
    for (int i = 0; i < 3; ++i) { /* rows of a rotation; Betaflight keeps them to a few parts in 10^4 */
        const float length = squares(seen->rotation + 3 * i);
        if (length < 0.9f || length > 1.1f) return FLIGHT_NOT_FINITE;
    }
#ifdef NEEDS_VOLTS
    if (seen->volts <= 0.0f) return FLIGHT_VOLTAGE;
#endif
#ifdef NEEDS_POSITION
    if (!seen->placed) return FLIGHT_NO_POSITION;
    if (policy_broken(seen->position, 3) || policy_broken(seen->velocity, 3) || policy_broken(&seen->variance, 1))
        return FLIGHT_NOT_FINITE;
    if (seen->variance > square(LIMIT_DOUBT)) return FLIGHT_NO_POSITION;
#endif
    return FLIGHT_FINE;
}

/* Home and heading are those of now. */
static void set_out(flight *f, const flight_seen *seen, uint32_t now) {
    const float north = seen->rotation[0], west = seen->rotation[3]; /* the nose, seen from above */
    const float length = policy_sqrt(square(north) + square(west));
    f->cosine = length > 1e-6f ? north / length : 1.0f;
    f->sine = length > 1e-6f ? west / length : 0.0f;
    for (int i = 0; i < 3; ++i) {
        f->home[i] = f->last[i] = seen->placed ? seen->position[i] : 0.0f;
        f->moved[i] = 0.0f;
    }
    f->throttle = seen->sticks[2];
    f->looked = now;
    f->low = 0u;
}

static flight_reason watch(flight *f, const flight_seen *seen, uint32_t now) {
    const flight_reason reason = known(f, seen);
    const uint32_t passed = now - f->looked;
    if (reason != FLIGHT_FINE) return reason;
    f->looked = now;
    if (1e-6f * (float)passed > LIMIT_PAUSE) return FLIGHT_LATE;
#ifdef NEEDS_POSITION
    float leap[3];
    for (int i = 0; i < 3; ++i) {
        const float away = seen->position[i] - f->home[i];
        leap[i] = seen->position[i] - f->last[i];
        f->last[i] = seen->position[i];
        if (away > LIMIT_FENCE || away < -LIMIT_FENCE) return FLIGHT_FENCE;
    }
    if (squares(leap) > square(JUMP + 1e-6f * (float)passed * LIMIT_SPEED)) return FLIGHT_JUMP;
#ifdef LIMIT_WORLD_LOW
    static const float low[3] = LIMIT_WORLD_LOW, high[3] = LIMIT_WORLD_HIGH;
    float position[3];
    signals_world(position, f, seen->position);
    for (int i = 0; i < 3; ++i)
        if (position[i] < low[i] || position[i] > high[i]) return FLIGHT_FENCE;
#endif
    if (squares(seen->velocity) > square(LIMIT_SPEED)) return FLIGHT_SPEED;
#endif
    if (seen->rotation[8] < LIMIT_UPRIGHT) return FLIGHT_TILT;
    if (squares(seen->rates) > square(LIMIT_RATE)) return FLIGHT_RATE;
#ifdef LIMIT_VOLTS
    f->low = seen->volts < LIMIT_VOLTS ? f->low + passed : 0u;
    if (seen->volts <= 0.0f || 1e-6f * (float)f->low > LIMIT_LOW) return FLIGHT_VOLTAGE;
#endif
    return FLIGHT_FINE;
}

flight_reason flight_begin(flight *f, const flight_seen *seen, uint32_t now) {
    flight_end(f);
    set_out(f, seen, now);
    const flight_reason reason = watch(f, seen, now);
    if (reason != FLIGHT_FINE) return reason;
    policy_reset(&f->policy);
    f->due = now;
    f->begun = true;
    return FLIGHT_FINE;
}

flight_reason flight_step(flight *f, const flight_seen *seen, uint32_t now) {
    if (!f->begun) return FLIGHT_OTHER;
    const flight_reason reason = watch(f, seen, now);
    if (reason != FLIGHT_FINE) return reason;
    if ((int32_t)(now + EARLY_US - f->due) < 0) return FLIGHT_FINE;
    f->due = (int32_t)(now - f->due) < (int32_t)PERIOD_US ? f->due + PERIOD_US : now + PERIOD_US;
    quadrotor_signals known;
    signals_read(&known, f, seen);
    policy_signals signals;
#define SUPPLY(name, elements, type, age) \
    for (int i = 0; i < (elements); ++i) signals.name[i] = known.name[i];
    POLICY_SIGNALS(SUPPLY)
    policy_commands commands;
    if (!policy_step(&f->policy, &signals, &commands)) return FLIGHT_NOT_FINITE;
    /* Ours: front right, back right, back left, front left. Betaflight's quad x: back right, front right, back left, front
     * left. */
    static const int place[4] = {1, 0, 2, 3};
    for (int i = 0; i < 4; ++i) f->motors[place[i]] = commands.motor_command[i];
    f->stepped = true;
    return FLIGHT_FINE;
}

const char *flight_says(flight_reason reason) {
    static const char *const texts[FLIGHT_REASONS] = {
        "fine",  "its self-test fails", "not finite",   "no position",        "geofence",   "tilt",
        "speed", "body rate",           "low battery", "the position jumped", "it was late", "Betaflight forbids it"};
    return reason >= FLIGHT_FINE && reason < FLIGHT_REASONS ? texts[reason] : "unknown";
}
