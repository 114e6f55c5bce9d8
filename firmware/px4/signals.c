#include "signals.h"

void signals_world(float *to, const flight *f, const float *ned) {
    to[0] = f->cosine * ned[0] + f->sine * ned[1];
    to[1] = f->sine * ned[0] - f->cosine * ned[1];
    to[2] = -ned[2];
}

static bool told(const flight_seen *seen, uint64_t now) {
    float sum = 0.0f;
    for (int i = 0; i < 3; ++i) sum += seen->target[i];
    return seen->target_at != 0 && (now < seen->target_at || now - seen->target_at <= LIMIT_TARGET_US) && sum - sum == 0.0f;
}

void signals_read(quadrotor_signals *signals, const flight *f, const flight_seen *seen, uint64_t now) {
    const float w = seen->attitude[0], x = seen->attitude[1], y = seen->attitude[2], z = seen->attitude[3];
    const float s = 2.0f / (w * w + x * x + y * y + z * z);
    /* Columns: forward, right and down in north, east, down; left and up are their opposites. */
    const float forward[3] = {1.0f - s * (y * y + z * z), s * (x * y + w * z), s * (x * z - w * y)};
    const float right[3] = {s * (x * y - w * z), 1.0f - s * (x * x + z * z), s * (y * z + w * x)};
    const float down[3] = {s * (x * z + w * y), s * (y * z - w * x), 1.0f - s * (x * x + y * y)};
    const float *columns[3] = {forward, right, down};
    for (int k = 0; k < 3; ++k) {
        float turned[3];
        signals_world(turned, f, columns[k]);
        for (int i = 0; i < 3; ++i) signals->rotation[3 * i + k] = k == 0 ? turned[i] : -turned[i];
    }
    signals_world(signals->position, f, seen->position);
    signals_world(signals->linear_velocity, f, seen->velocity);
    signals->angular_velocity[0] = seen->rates[0];
    signals->angular_velocity[1] = -seen->rates[1];
    signals->angular_velocity[2] = -seen->rates[2];
    static const float still[3] = {0.0f, 0.0f, 0.0f};
    const bool wanted = told(seen, now);
    float velocity[3];
    for (int i = 0; i < 3; ++i) {
        const float v = seen->target_velocity[i];
        velocity[i] = wanted && v - v == 0.0f ? v : still[i]; /* PX4 says "none" by NaN */
    }
    signals_world(signals->target_position, f, wanted ? seen->target : f->home);
    signals_world(signals->target_velocity, f, velocity);
}
