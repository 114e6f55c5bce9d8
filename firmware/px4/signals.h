/* What PX4 knows, in the policy's names, units and axes. */
#ifndef SIGNALS_H
#define SIGNALS_H

#include "flight.h"
#include "quadrotor_signals.h"

/* Every conversion of axes; nothing else converts. Without a fresh and finite set point the target is where it began. */
void signals_read(quadrotor_signals *signals, const flight *f, const flight_seen *seen, uint64_t now);

/* North, east, down -> the world of the flight. */
void signals_world(float *to, const flight *f, const float *ned);

#endif
