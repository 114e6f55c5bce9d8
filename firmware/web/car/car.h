/* A small car on its track: the equations of sim/engines/car (dynamics.py, walls.py), in float32, for one car.
 *
 * World: x, y. Car: ahead, to the left. Commands: steering (rad, to the left) and speed (m/s). */
#ifndef CAR_H
#define CAR_H

#include "cars.h" /* made from sim/robots/cars.py: car_parameters, CARS, cars[CARS], BEAMS, beams[BEAMS][2] */

typedef struct {
    float position[2], heading[2], velocity[2], turning, steering, push, touched, impact;
} car_state;

/* What the equations read, of a car, beside its parameters. */
typedef struct {
    float hold, per_hold, front_b, rear_b, spin, servo, motor;
} car_constants;

void car_derive(car_constants *c, const car_parameters *p);

/* `steps` steps of h seconds, within the walls of the track that was laid (track.h). */
void car_advance(car_state *s, const car_parameters *p, const car_constants *c, const float command[2], float h,
                 int steps);

#endif
