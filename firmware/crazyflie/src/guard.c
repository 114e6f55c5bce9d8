#include "guard.h"

#include "policy_math.h"

#define RADIANS 0.017453293f

/* By its bits, so that no compiler option changes the answer; and every comparison below is false for NaN. */
static bool finite(const float *x, int n) { return policy_broken(x, n) == 0; }

static bool below(float x, float most) { return finite(&x, 1) && x <= most; }

static bool between(float x, float least, float most) { return below(x, most) && x >= least; }

/* The estimate as one row of GUARD_MOTION numbers. */
static const float *motion(const guard_seen *seen) { return (const float *)seen; }

_Static_assert(sizeof(guard_seen) == (GUARD_MOTION + 3) * sizeof(float), "the estimate comes first, in one row");

static float squared(const float *x) { return x[0] * x[0] + x[1] * x[1] + x[2] * x[2]; }

/* Of 0..90 degrees, to 3e-5. */
static float cosine(float degrees) {
    const float x = RADIANS * degrees, z = x * x;
    return 1.0f + z * (-0.5f + z * (4.1666667e-2f + z * (-1.3888889e-3f + z * 2.4801587e-5f)));
}

uint32_t guard_replace(guard_limits *limits) {
    uint32_t replaced = 0, bit = 1;
#define REPLACE(name, usual, least, most) \
    if (!between(limits->name, least##f, most##f)) { \
        limits->name = usual##f; \
        replaced |= bit; \
    } \
    bit <<= 1;
    GUARD_LIMITS(REPLACE)
    return replaced;
}

bool guard_near(const float *curve, const float *airframe) {
    const float most = GUARD_CURVE * (airframe[0] + airframe[1] + airframe[2]);
    bool near = true;
    for (int i = 0; i <= 3; ++i) { /* what a parabola is at more than three places, it is between them, about */
        const float u = (float)i / 3.0f;
        const float off = curve[0] - airframe[0] + (curve[1] - airframe[1] + (curve[2] - airframe[2]) * u) * u;
        near = between(off, -most, most) && near;
    }
    return near;
}

void guard_begin(guard_memory *memory, const guard_seen *seen, uint32_t now) {
    for (int i = 0; i < 3; ++i) memory->home[i] = seen->position[i];
    for (int i = 0; i < GUARD_MOTION; ++i) memory->motion[i] = motion(seen)[i];
    memory->began = memory->changed = memory->powered = now;
    memory->charged = now - (GUARD_LOW_MS - GUARD_ASK_MS);
    memory->weighed = now;
    memory->span = 0;
    memory->resting = 0.0f;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

void guard_weigh(guard_memory *memory, const guard_limits *limits, const guard_seen *seen, uint32_t now) {
    const float resting = seen->voltage + limits->sag * seen->load;
    const uint32_t elapsed = least(now - memory->weighed, GUARD_MEAN_MS);
    if (between(seen->voltage, GUARD_EMPTY, 100.0f)) memory->powered = now;
    if (!between(resting, 0.0f, 100.0f) || elapsed == 0) return;
    memory->weighed = now;
    memory->span = least(memory->span + elapsed, GUARD_MEAN_MS); /* a plain mean at first */
    memory->resting += (resting - memory->resting) * ((float)elapsed / (float)memory->span);
    if (memory->span >= GUARD_ASK_MS && between(memory->resting, limits->voltage, 100.0f)) memory->charged = now;
}

/* Whether it is another estimate than the last. */
static bool changed(guard_memory *memory, const guard_seen *seen) {
    uint32_t differs = 0;
    for (int i = 0; i < GUARD_MOTION; ++i) {
        const policy_word now = {motion(seen)[i]}, before = {memory->motion[i]};
        differs |= now.bits ^ before.bits;
        memory->motion[i] = motion(seen)[i];
    }
    return differs != 0;
}

static bool inside(const guard_memory *memory, const guard_limits *limits, const float *position) {
    for (int i = 0; i < 3; ++i) {
        const float most = i < 2 ? limits->fence : limits->height;
        if (!between(position[i] - memory->home[i], -most, most)) return false;
    }
    return true;
}

guard_reason guard_look(guard_memory *memory, const guard_limits *limits, const guard_seen *seen, uint32_t now) {
    if (changed(memory, seen)) memory->changed = now;
    if (!finite(motion(seen), GUARD_MOTION)) return GUARD_ESTIMATE;
    if (now - memory->changed >= GUARD_OLD_MS) return GUARD_STALE;
    if (!between(seen->variance, 0.0f, limits->spread * limits->spread)) return GUARD_SPREAD;
    if (!inside(memory, limits, seen->position)) return GUARD_FENCE;
    if (!between(seen->rotation[8], cosine(limits->tilt), 2.0f)) return GUARD_TILT;
    if (!below(squared(seen->linear_velocity), limits->speed * limits->speed)) return GUARD_SPEED;
    if (!below(squared(seen->angular_velocity), limits->rate * limits->rate)) return GUARD_RATE;
    if (now - memory->charged >= GUARD_LOW_MS || now - memory->powered >= GUARD_EMPTY_MS) return GUARD_BATTERY;
    return GUARD_FINE;
}

guard_reason guard_time(const guard_memory *memory, const guard_limits *limits, uint32_t now) {
    return below((float)(now - memory->began), 1000.0f * limits->seconds) ? GUARD_FINE : GUARD_TIME;
}

guard_reason guard_step(const guard_limits *limits, const float *force, uint32_t duration) {
    if (!finite(force, 4)) return GUARD_COMMAND;
    return below((float)duration, limits->slow) ? GUARD_FINE : GUARD_SLOW;
}

float guard_share(const guard_limits *limits, uint32_t elapsed) {
    const float whole = 1000.0f * limits->ramp;
    return (float)elapsed < whole ? (float)elapsed / whole : 1.0f;
}

const char *guard_says(guard_reason reason) {
    static const char *const words[GUARD_REASONS] = {
        "nothing",
        "the policy's command is not a number",
        "the estimate or the set point is not a number",
        "the estimate is stale",
        "the estimate is uncertain",
        "fence",
        "tilt",
        "speed",
        "body rate",
        "low battery",
        "the policy is too slow",
        "its time is over",
    };
    return (unsigned)reason < GUARD_REASONS ? words[reason] : words[0];
}
