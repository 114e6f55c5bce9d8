#include "flight.h"

#include "policy_math.h"
#include "signals.h"

#define PERIOD_US ((uint64_t)(1e6f / POLICY_RATE_HZ + 0.5f))
/* A step is taken by the sample of the gyroscope that is nearest to it: samples come every 1 to 4 ms. */
#define EARLY_US 500u

static float square(float x) { return x * x; }

static bool old(uint64_t heard, uint64_t now, uint64_t most) { return heard == 0 || (now > heard && now - heard > most); }

void flight_init(flight *f) {
    f->selftest = policy_init(&f->policy) ? FLIGHT_FINE : FLIGHT_SELFTEST;
    flight_end(f);
}

void flight_end(flight *f) {
    f->begun = f->stepped = false;
    for (int i = 0; i < 4; ++i) f->motors[i] = 0.0f;
}

/* Third row and column of the rotation: the cosine of the angle between the body's z axis and the world's. */
static float upright(const float *q) {
    return 1.0f - 2.0f * (square(q[1]) + square(q[2])) / (square(q[0]) + square(q[1]) + square(q[2]) + square(q[3]));
}

static flight_reason known(const flight *f, const flight_seen *seen, uint64_t now) {
    if (f->selftest != FLIGHT_FINE) return f->selftest;
    if (old(seen->position_at, now, LIMIT_POSITION_US) || old(seen->attitude_at, now, LIMIT_ATTITUDE_US) ||
        old(seen->rates_at, now, LIMIT_RATES_US))
        return FLIGHT_STALE;
    if (policy_broken(seen->position, 3) || policy_broken(seen->velocity, 3) || policy_broken(seen->attitude, 4) ||
        policy_broken(seen->rates, 3))
        return FLIGHT_NOT_FINITE;
    const float length = square(seen->attitude[0]) + square(seen->attitude[1]) + square(seen->attitude[2]) +
                         square(seen->attitude[3]);
    return length > 0.5f && length < 2.0f ? FLIGHT_FINE : FLIGHT_NOT_FINITE;
}

/* Home and heading are those of now. */
static void set_out(flight *f, const flight_seen *seen) {
    const float *q = seen->attitude;
    /* The nose, seen from above: north and east. */
    const float north = square(q[0]) + square(q[1]) - square(q[2]) - square(q[3]);
    const float east = 2.0f * (q[1] * q[2] + q[0] * q[3]);
    const float length = policy_sqrt(square(north) + square(east));
    f->cosine = length > 1e-6f ? north / length : 1.0f;
    f->sine = length > 1e-6f ? east / length : 0.0f;
    for (int i = 0; i < 3; ++i) f->home[i] = seen->position[i];
    for (int i = 0; i < 5; ++i) f->resets[i] = seen->resets[i];
}

static flight_reason watch(const flight *f, const flight_seen *seen, uint64_t now) {
    const flight_reason reason = known(f, seen, now);
    if (reason != FLIGHT_FINE) return reason;
    for (int i = 0; i < 5; ++i)
        if (seen->resets[i] != f->resets[i]) return FLIGHT_RESET;
    for (int i = 0; i < 3; ++i) {
        const float away = seen->position[i] - f->home[i];
        if (away > LIMIT_FENCE || away < -LIMIT_FENCE) return FLIGHT_FENCE;
    }
#ifdef LIMIT_WORLD_LOW
    static const float low[3] = LIMIT_WORLD_LOW, high[3] = LIMIT_WORLD_HIGH;
    float position[3];
    signals_world(position, f, seen->position);
    for (int i = 0; i < 3; ++i)
        if (!(position[i] >= low[i] && position[i] <= high[i])) return FLIGHT_FENCE;
#endif
    if (upright(seen->attitude) < LIMIT_UPRIGHT) return FLIGHT_TILT;
    if (square(seen->velocity[0]) + square(seen->velocity[1]) + square(seen->velocity[2]) > square(LIMIT_SPEED))
        return FLIGHT_SPEED;
    if (square(seen->rates[0]) + square(seen->rates[1]) + square(seen->rates[2]) > square(LIMIT_RATE))
        return FLIGHT_RATE;
    return FLIGHT_FINE;
}

flight_reason flight_ready(flight *f, const flight_seen *seen, uint64_t now) {
    if (!f->begun) set_out(f, seen);
    return watch(f, seen, now);
}

flight_reason flight_begin(flight *f, const flight_seen *seen, uint64_t now) {
    flight_end(f);
    const flight_reason reason = flight_ready(f, seen, now);
    if (reason != FLIGHT_FINE) return reason;
    policy_reset(&f->policy);
    f->due = f->looked = now;
    f->begun = true;
    return FLIGHT_FINE;
}

flight_reason flight_step(flight *f, const flight_seen *seen, uint64_t now) {
    if (!f->begun) return FLIGHT_STALE;
    const uint64_t passed = now - f->looked;
    f->looked = now;
    if (passed > LIMIT_PAUSE_US) return FLIGHT_LATE; /* also by a clock that went back */
    const flight_reason reason = watch(f, seen, now);
    if (reason != FLIGHT_FINE) return reason;
    if (now + EARLY_US < f->due) return FLIGHT_FINE;
    f->due = now > f->due + PERIOD_US ? now + PERIOD_US : f->due + PERIOD_US;
    quadrotor_signals known;
    signals_read(&known, f, seen, now);
    policy_signals signals;
#define SUPPLY(name, elements, type, age) \
    for (int i = 0; i < (elements); ++i) signals.name[i] = known.name[i];
    POLICY_SIGNALS(SUPPLY)
    policy_commands commands;
    if (!policy_step(&f->policy, &signals, &commands)) return FLIGHT_NOT_FINITE;
    /* Ours: front right, back right, back left, front left. PX4's quadrotor x: front right, back left, front left, back
     * right. */
    static const int place[4] = {0, 3, 1, 2};
    for (int i = 0; i < 4; ++i) f->motors[place[i]] = commands.motor_command[i];
    f->stepped = true;
    return FLIGHT_FINE;
}

const char *flight_says(flight_reason reason) {
    static const char *const texts[FLIGHT_REASONS] = {"fine",     "its self-test fails", "not finite", "stale estimate",
                                                      "geofence", "tilt",                "speed",      "body rate",
                                                      "estimate reset", "it was late"};
    return reason >= FLIGHT_FINE && reason < FLIGHT_REASONS ? texts[reason] : "unknown";
}
