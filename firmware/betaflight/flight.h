/* A policy's flight in Betaflight, without Betaflight: axes, watch, steps. Numbers in, numbers out; nothing is allocated.
 *
 * Betaflight's body axes are ours: forward, left, up. Its world is north, west, up, where north is a compass's, or where
 * the nose pointed at power-up; ours has its x axis where the nose points when a flight begins. */
#ifndef FLIGHT_H
#define FLIGHT_H

#include "limits.h"
#include "policy.h"

typedef enum {
    FLIGHT_FINE,
    FLIGHT_SELFTEST,   /* this build computes wrongly */
    FLIGHT_NOT_FINITE, /* what the board knows, or what the policy makes of it */
    FLIGHT_NO_POSITION, /* or one that is too doubtful */
    FLIGHT_FENCE,
    FLIGHT_TILT,
    FLIGHT_SPEED,
    FLIGHT_RATE,
    FLIGHT_VOLTAGE,
    FLIGHT_JUMP, /* the position moved farther than a vehicle can */
    FLIGHT_LATE, /* nobody asked for a step in time */
    FLIGHT_OTHER, /* Betaflight itself: no radio, no accelerometer, another mixer, a mode that goes first */
    FLIGHT_REASONS
} flight_reason;

/* What Betaflight knows. */
typedef struct {
    float rotation[9];           /* body to its world, row-major */
    float rates[3];              /* rad/s, body */
    float position[3], velocity[3]; /* m, m/s, its world; nothing where `placed` is false */
    float variance;              /* m^2, of the position along an axis */
    float volts;                 /* of the battery; 0: not measured */
    float sticks[3];             /* -1 to 1: forward, left, up */
    bool placed;                 /* position and velocity are known */
    bool allowed;                /* Betaflight lets it fly */
} flight_seen;

typedef struct {
    policy_state policy;
    flight_reason selftest;  /* FLIGHT_FINE, or FLIGHT_SELFTEST */
    float cosine, sine;      /* of the heading that the world's x axis has, from its north to its west */
    float home[3], throttle; /* where it began: m, its world; and where the stick was */
    float moved[3];          /* m, our world: how far the sticks have taken the target from home */
    float last[3];           /* m, its world: the position at the last look */
    float motors[4];         /* the last command of this flight, 0 to 1, in Betaflight's order */
    uint32_t due, looked;    /* us: when the policy's next step is; when it was looked at last */
    uint32_t low;            /* us: how long the battery has been low */
    bool begun, stepped;     /* stepped: there is a command of this flight */
} flight;

/* Once, before a flight: the self-test. */
void flight_init(flight *f);

/* At `now` (us, which wraps). FLIGHT_FINE, or why it may not fly: then there is no command. */
flight_reason flight_begin(flight *f, const flight_seen *seen, uint32_t now);

/* It is over: no command of it is left. */
void flight_end(flight *f);

/* At every turn of the loop. Once `stepped`, the command is in `motors`. */
flight_reason flight_step(flight *f, const flight_seen *seen, uint32_t now);

/* For people. */
const char *flight_says(flight_reason reason);

#endif
