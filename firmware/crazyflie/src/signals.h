/* What the firmware knows, in the policy's names, units and axes. */
#ifndef SIGNALS_H
#define SIGNALS_H

#include "quadrotor_signals.h"
#include "stabilizer_types.h"

/* Every conversion of units and axes; nothing else converts.
 *
 * The gyroscope gives degrees/s in body axes. The attitude comes from the quaternion (members x, y, z, w; any length),
 * never from state->attitude, whose angles are in degrees with the pitch inverted. Velocities of a set point are taken as
 * the world's: the caller refuses velocity_body. Accelerations (in g) are no signal of a policy. */
void signals_read(quadrotor_signals *signals, const setpoint_t *setpoint, const sensorData_t *sensors,
                  const state_t *state);

#endif
