/* What Betaflight knows, in the policy's names, units and axes. */
#ifndef SIGNALS_H
#define SIGNALS_H

#include "flight.h"
#define TELLS_VOLTAGE
#include "quadrotor_signals.h"

/* Every conversion of axes; nothing else converts. Moves the target by the sticks, one period of the policy on. */
void signals_read(quadrotor_signals *signals, flight *f, const flight_seen *seen);

/* North, west, up -> the world of the flight. */
void signals_world(float *to, const flight *f, const float *nwu);

#endif
