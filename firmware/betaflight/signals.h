/* What Betaflight knows, in the policy's names, units and axes. */
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
    float battery_voltage[1];  /* V */
} board_signals;

/* Every conversion of axes; nothing else converts. Moves the target by the sticks, one period of the policy on. */
void signals_read(board_signals *signals, flight *f, const flight_seen *seen);

/* North, west, up -> the world of the flight. */
void signals_world(float *to, const flight *f, const float *nwu);

/* Square root, without the C library. */
float signals_root(float x);

#endif
