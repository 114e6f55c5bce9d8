/* A policy's flight in PX4, without PX4: axes, watch, steps. Numbers in, numbers out; nothing is allocated.
 *
 * PX4: world north, east, down; body forward, right, down. Ours: z up, y left; the world's x axis is where the nose points
 * when a flight begins, its origin PX4's own. */
#ifndef FLIGHT_H
#define FLIGHT_H

#include "limits.h"
#include "policy.h"

typedef enum {
    FLIGHT_FINE,
    FLIGHT_SELFTEST,  /* this build computes wrongly */
    FLIGHT_NOT_FINITE, /* the estimate, or what the policy makes of it */
    FLIGHT_STALE,
    FLIGHT_FENCE,
    FLIGHT_TILT,
    FLIGHT_SPEED,
    FLIGHT_RATE,
    FLIGHT_RESET, /* the estimate jumped: what was learnt of the vehicle, and home, are of another place */
    FLIGHT_LATE,  /* nobody asked for a step in time, or the last one took that long: what it remembers is of another time */
    FLIGHT_REASONS
} flight_reason;

/* What PX4 knows, in its axes. Times in us, of its clock. */
typedef struct {
    float position[3], velocity[3]; /* vehicle_local_position: m, m/s */
    float attitude[4];              /* vehicle_attitude: quaternion w, x, y, z */
    float rates[3];                 /* vehicle_angular_velocity: rad/s */
    uint64_t position_at, attitude_at, rates_at; /* when each was heard last; 0: never */
    uint8_t resets[5];              /* the estimator's counters: position xy and z, velocity xy and z, quaternion */
    float target[3], target_velocity[3];         /* trajectory_setpoint: m, m/s */
    uint64_t target_at;
} flight_seen;

typedef struct {
    policy_state policy;
    flight_reason selftest; /* FLIGHT_FINE, or FLIGHT_SELFTEST */
    float cosine, sine;     /* of the heading that the world's x axis has, from north */
    uint8_t resets[5];      /* as it began */
    float home[3];          /* m, PX4's axes: where it began, and where it stays without a set point */
    float motors[4];        /* the last command of this flight, 0 to 1, in PX4's order */
    uint64_t due, looked;   /* us: when the policy's next step is; when it was looked at last */
    bool begun, stepped;    /* stepped: there is a command of this flight */
} flight;

/* Once, when the module starts: the self-test. */
void flight_init(flight *f);

/* Armed in the mode, at `now`. FLIGHT_FINE, or why it may not fly: then there is no command. */
flight_reason flight_begin(flight *f, const flight_seen *seen, uint64_t now);

/* It is over: no command of it is left. */
void flight_end(flight *f);

/* Whether it may fly, within every limit: what the arming check is told. Before a flight: as if it began here. */
flight_reason flight_ready(flight *f, const flight_seen *seen, uint64_t now);

/* At every sample of the gyroscope. Once `stepped`, the command is in `motors`; with a reason it is the last good one. */
flight_reason flight_step(flight *f, const flight_seen *seen, uint64_t now);

/* For people. */
const char *flight_says(flight_reason reason);

#endif
