#include "signals.h"

#define DEADBAND 0.1f /* of a stick */

float signals_root(float x) {
    if (!(x > 0.0f)) return 0.0f;
    float root = x > 1.0f ? x : 1.0f;
    for (int i = 0; i < 40; ++i) root = 0.5f * (root + x / root); /* Newton, from above */
    return root;
}

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

void signals_read(board_signals *signals, flight *f, const flight_seen *seen) {
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
    for (int i = 0; i < 3; ++i) {
        const float stick = pushed(seen->sticks[i] - (i == 2 ? f->throttle : 0.0f));
        float speed = LIMIT_STICK_SPEED * stick;
        const float moved = f->moved[i] + speed / POLICY_RATE_HZ;
        if (moved > 0.8f * LIMIT_FENCE || moved < -0.8f * LIMIT_FENCE)
            speed = 0.0f; /* the target stays well within the fence */
        else
            f->moved[i] = moved;
        signals->target_position[i] += f->moved[i];
        signals->target_velocity[i] = speed;
    }
    signals->battery_voltage[0] = seen->volts;
}
