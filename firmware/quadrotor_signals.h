/* What a quadrotor's own computer tells a policy, in the policy's names, units and axes, whatever it calls them itself. */
#ifndef QUADROTOR_SIGNALS_H
#define QUADROTOR_SIGNALS_H

/* World: z up. Body: x forward, y left, z up. */
typedef struct {
    float position[3];         /* m, world */
    float rotation[9];         /* body to world, row-major */
    float linear_velocity[3];  /* m/s, world */
    float angular_velocity[3]; /* rad/s, body */
    float target_position[3];  /* m, world */
    float target_velocity[3];  /* m/s, world */
#ifdef TELLS_VOLTAGE
    float battery_voltage[1];  /* V */
#endif
} quadrotor_signals;

#endif
