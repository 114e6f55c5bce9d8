/* The firmware's public interface, as far as firmware/crazyflie uses it: declared anew for the tests, which build the app
 * without the firmware. The names, types and units are those of bitcraze/crazyflie-firmware @2a18fc29. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef uint32_t stabilizerStep_t;

typedef struct {
    uint32_t timestamp;
    float roll, pitch, yaw; /* degrees, pitch inverted */
} attitude_t;

typedef struct {
    uint32_t timestamp;
    float x, y, z;
} point_t;
typedef point_t velocity_t, acc_t, jerk_t;

typedef struct {
    union {
        struct {
            float q0, q1, q2, q3;
        };
        struct {
            float x, y, z, w;
        };
    };
} quaternion_t;

typedef union {
    struct {
        float x, y, z;
    };
    float axis[3];
} Axis3f;

typedef struct {
    float pressure, temperature, asl;
} baro_t;

typedef struct {
    Axis3f acc;  /* g */
    Axis3f gyro; /* degrees/s */
    Axis3f mag;
    baro_t baro;
    uint64_t interruptTimestamp;
} sensorData_t;

typedef struct {
    attitude_t attitude;
    quaternion_t attitudeQuaternion;
    point_t position;    /* m */
    velocity_t velocity; /* m/s */
    acc_t acc;           /* g, without gravity */
} state_t;

#define STABILIZER_NR_OF_MOTORS 4

typedef enum { controlModeLegacy, controlModeForceTorque, controlModeForce } control_mode_t;

typedef struct {
    union {
        struct {
            int16_t roll, pitch, yaw;
            float thrust;
        };
        struct {
            float thrustSi;
            float torque[3];
        };
        float normalizedForces[STABILIZER_NR_OF_MOTORS]; /* 0..1 */
    };
    control_mode_t controlMode;
} control_t;

typedef enum { modeDisable, modeAbs, modeVelocity } stab_mode_t;

typedef struct {
    stab_mode_t x, y, z, roll, pitch, yaw, quat;
} setpoint_mode_t;

typedef struct {
    uint32_t timestamp; /* ms */
    attitude_t attitude, attitudeRate;
    quaternion_t attitudeQuaternion;
    float thrust;
    point_t position;
    velocity_t velocity;
    acc_t acceleration;
    jerk_t jerk;
    bool velocity_body;
    setpoint_mode_t mode;
} setpoint_t;

#define RATE_MAIN_LOOP 1000
