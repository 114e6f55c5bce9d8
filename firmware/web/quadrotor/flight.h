/* A quadrotor in flight: the equations of sim/engines/flight/dynamics.py, in float32, for one vehicle.
 *
 * World: z up. Body: x forward, y left, z up. Quaternions: wxyz, body to world. Commands and rotor speeds: shares 0..1. */
#ifndef FLIGHT_H
#define FLIGHT_H

#include "airframes.h" /* made from sim/robots: flight_parameters, AIRFRAMES, airframes[AIRFRAMES] */

typedef struct {
    float position[3], quaternion[4], linear_velocity[3], angular_velocity[3], rotor_speed[4];
} flight_state;

/* What the equations read, of a vehicle and a substep of h seconds. */
typedef struct {
    float h, lift[4], roll[4], pitch[4], yaw[4], curve[3], gyro[3], rise, fall, drag[3], wind[3], push[3], twist[3];
    float ground, lowest;
} flight_constants;

void flight_derive(flight_constants *c, const flight_parameters *p, float h);

/* One substep. */
void flight_advance(flight_state *s, const flight_constants *c, const float command[4]);

/* Body to world, row by row. */
void flight_rotation(float r[9], const float q[4]);

/* The command at which the four rotors carry the weight. */
float flight_hover(const flight_parameters *p);

#endif
