#include "signals.h"

#define RADIANS 0.017453293f

static void set(float *to, float x, float y, float z) {
    to[0] = x;
    to[1] = y;
    to[2] = z;
}

void signals_read(quadrotor_signals *signals, const setpoint_t *setpoint, const sensorData_t *sensors,
                  const state_t *state) {
    const quaternion_t q = state->attitudeQuaternion;
    const float s = 2.0f / (q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
    set(signals->rotation, 1.0f - s * (q.y * q.y + q.z * q.z), s * (q.x * q.y - q.w * q.z), s * (q.x * q.z + q.w * q.y));
    set(signals->rotation + 3, s * (q.x * q.y + q.w * q.z), 1.0f - s * (q.x * q.x + q.z * q.z),
        s * (q.y * q.z - q.w * q.x));
    set(signals->rotation + 6, s * (q.x * q.z - q.w * q.y), s * (q.y * q.z + q.w * q.x),
        1.0f - s * (q.x * q.x + q.y * q.y));
    set(signals->angular_velocity, RADIANS * sensors->gyro.x, RADIANS * sensors->gyro.y, RADIANS * sensors->gyro.z);
    set(signals->position, state->position.x, state->position.y, state->position.z);
    set(signals->linear_velocity, state->velocity.x, state->velocity.y, state->velocity.z);
    set(signals->target_position, setpoint->position.x, setpoint->position.y, setpoint->position.z);
    set(signals->target_velocity, setpoint->velocity.x, setpoint->velocity.y, setpoint->velocity.z);
}
