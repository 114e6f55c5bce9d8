/* What PX4 knows, in the policy's names, units and axes. */
#ifndef SIGNALS_H
#define SIGNALS_H

#include "flight.h"

/* World: z up. Body: x forward, y left, z up. */
typedef struct {
    float position[3];         /* m, world */
    float rotation[9];         /* body to world, row-major */
    float linear_velocity[3];  /* m/s, world */
    float angular_velocity[3]; /* rad/s, body */
    float target_position[3];  /* m, world */
    float target_velocity[3];  /* m/s, world */
} px4_signals;

/* Every conversion of axes; nothing else converts. Without a fresh and finite set point the target is where it began. */
void signals_read(px4_signals *signals, const flight *f, const flight_seen *seen, uint64_t now);

/* North, east, down -> the world of the flight. */
void signals_world(float *to, const flight *f, const float *ned);

/* Square root, without the C library. */
float signals_root(float x);

#endif
