#include "signals.h"

#include "policy_math.h"

#define DEADBAND 0.1f /* of a stick */
#define REACH (0.8f * LIMIT_FENCE) /* m: how far sticks take the target from home */

void signals_world(float *to, const flight *f, const float *nwu) {
    to[0] = f->cosine * nwu[0] + f->sine * nwu[1];
    to[1] = f->cosine * nwu[1] - f->sine * nwu[0];
    to[2] = nwu[2];
}

/* -1 to 1, of a stick that may be a little off its place. */
static float pushed(float stick) {
    const float size = (stick < 0.0f ? -stick : stick) - DEADBAND;
    const float most = size > 1.0f - DEADBAND ? 1.0f - DEADBAND : size;
    return most <= 0.0f ? 0.0f : (stick < 0.0f ? -most : most) / (1.0f - DEADBAND);
}

#ifdef LIMIT_WORLD_LOW
/* Between where it is and `to`, and no nearer to a geofence's walls than a tenth of its width. */
static float within(float to, float now, float low, float high) {
    const float tenth = 0.1f * (high - low), margin = tenth < LIMIT_FENCE - REACH ? tenth : LIMIT_FENCE - REACH;
    low += margin;
    high -= margin;
    if (to > now) return to <= high ? to : now > high ? now : high;
    return to >= low ? to : now < low ? now : low;
}
#endif

/* One period on, by the sticks. From `target_position`, which is home's. */
static void move_target(quadrotor_signals *signals, flight *f, const flight_seen *seen) {
    float *const target = signals->target_position, *const speed = signals->target_velocity;
    float to[3], pushes[3];
    for (int i = 0; i < 3; ++i) {
        speed[i] = LIMIT_STICK_SPEED * pushed(seen->sticks[i] - (i == 2 ? f->throttle : 0.0f));
        pushes[i] = to[i] = f->moved[i] + speed[i] / POLICY_RATE_HZ;
    }
    /* The fence's walls are along north and west, the sticks along the nose: in a circle it is within them. */
    const float away = policy_sqrt(to[0] * to[0] + to[1] * to[1]);
    for (int i = 0; i < 2; ++i)
        if (away > REACH) to[i] *= REACH / away;
    to[2] = to[2] > REACH ? REACH : to[2] < -REACH ? -REACH : to[2];
#ifdef LIMIT_WORLD_LOW
    static const float low[3] = LIMIT_WORLD_LOW, high[3] = LIMIT_WORLD_HIGH;
    for (int i = 0; i < 3; ++i) to[i] = within(to[i], f->moved[i], low[i] - target[i], high[i] - target[i]);
#endif
    for (int i = 0; i < 3; ++i) {
        if (to[i] != pushes[i]) speed[i] = (to[i] - f->moved[i]) * POLICY_RATE_HZ;
        f->moved[i] = to[i];
        target[i] += to[i];
    }
}

void signals_read(quadrotor_signals *signals, flight *f, const flight_seen *seen) {
    for (int k = 0; k < 3; ++k) {
        const float column[3] = {seen->rotation[k], seen->rotation[3 + k], seen->rotation[6 + k]};
        float turned[3];
        signals_world(turned, f, column);
        for (int i = 0; i < 3; ++i) signals->rotation[3 * i + k] = turned[i];
        signals->angular_velocity[k] = seen->rates[k];
    }
    signals_world(signals->position, f, seen->position);
    signals_world(signals->linear_velocity, f, seen->velocity);
    signals_world(signals->target_position, f, f->home);
    move_target(signals, f, seen);
    signals->battery_voltage[0] = seen->volts;
}
