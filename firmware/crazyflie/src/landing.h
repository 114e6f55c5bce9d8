/* Where a vehicle is to be that was handed back: it brakes and stays, then sinks until it rests. Numbers only, as in
 * guard.h; deploy/crazyflie/guard.py says the same in Python. */
#ifndef LANDING_H
#define LANDING_H

#include <stdbool.h>
#include <stdint.h>

#define LANDING_HOLD_MS 1000
#define LANDING_SINK 0.4f      /* m/s */
#define LANDING_BRAKING 3.0f   /* m/s^2: a moving vehicle is told to stay that far ahead */
#define LANDING_FURTHEST 1.0f  /* m ahead, per axis */
#define LANDING_BELOW 0.3f     /* m: it rests when it should be that far below where it is, */
#define LANDING_REST 0.05f     /* m/s: does not move up or down, */
#define LANDING_REST_MS 300    /* for that long */

typedef struct {
    float place[3];           /* m, world */
    uint32_t began, restless; /* ms: when it began; when it last did not rest */
    bool down;
} landing;

void landing_begin(landing *l, const float *position, const float *velocity, uint32_t now);

/* At every call of the controller: the height to be at, in m. `down` once it rests; then the motors may stop. */
float landing_height(landing *l, const float *position, const float *velocity, uint32_t now);

#endif
