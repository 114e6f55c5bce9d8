/* When a policy on board must not fly on. Numbers in, a reason out: nothing is allocated, nothing is called back, and
 * whatever is not a number is a reason. deploy/crazyflie/guard.py says the same in Python: change both. */
#ifndef GUARD_H
#define GUARD_H

#include <stdbool.h>
#include <stdint.h>

/* Name, what holds when nobody says otherwise, least, most. What is outside, or no number, becomes the first. */
#define GUARD_LIMITS(X)                                                                            \
    X(fence, 1.5, 0.1, 20.0)       /* m, along x and along y, from where the policy took over */   \
    X(height, 1.0, 0.1, 20.0)      /* m, up and down from there */                                 \
    X(tilt, 60.0, 10.0, 80.0)      /* degrees between the body's z axis and the world's */         \
    X(speed, 3.0, 0.1, 10.0)       /* m/s */                                                       \
    X(rate, 15.0, 1.0, 35.0)       /* rad/s, of the body */                                        \
    X(voltage, 3.4, 2.8, 4.0)      /* V of the battery, without load */                            \
    X(sag, 0.7, 0.0, 1.5)          /* V that it is lower by when all rotors give their most */     \
    X(spread, 0.5, 0.001, 10.0)    /* m: standard deviation of the estimated position, per axis */ \
    X(slow, 500.0, 50.0, 900.0)    /* us, of one step of the policy in the stabilizer's task */    \
    X(cap, 1.0, 0.3, 1.0)          /* largest force that it may ask of a rotor, of THRUST_MAX */   \
    X(ramp, 1.0, 0.0, 10.0)        /* s in which it takes over from the PID controller */          \
    X(seconds, 30.0, 1.0, 600.0)   /* s that it may fly for */

#define GUARD_CURVE 0.3f /* of an airframe's largest thrust: no further may a tuned curve be from its own, at any speed */
#define GUARD_OLD_MS 30 /* an estimate that has not changed at all for that long is stale */
/* The firmware calls a battery critically low that has less than 3.0 V in flight for 5 s (platform_defaults_cf2.h,
 * pm_stm32f4.c). A climb must not count, so `voltage` is compared with what is measured plus `sag` by the load. All rotors
 * at full take 0.7 V from a battery that just passes the firmware's own test (BAT_LOADING_SAG_THRESHOLD), a hover 0.4:
 * 3.0 V in a hover are 3.4 V without load. Both change within a millisecond, the voltage by what the load was before: the
 * mean counts. Below 2.7 V there is no time to wait: decks are reset at 2.6 V (crazyflie-firmware, issue 695). */
#define GUARD_LOW_MS 5000
#define GUARD_EMPTY 2.7f   /* V as measured, or unknown, for */
#define GUARD_EMPTY_MS 30
#define GUARD_ASK_MS 100   /* after that as the policy takes over a battery has to be above `voltage`, or it is handed back */
#define GUARD_MEAN_MS 200  /* the time constant of that mean */

typedef enum {
    GUARD_FINE,
    GUARD_COMMAND,  /* not finite */
    GUARD_ESTIMATE, /* or the set point: not finite */
    GUARD_STALE,    /* the estimate */
    GUARD_SPREAD,   /* the estimate is uncertain */
    GUARD_FENCE,
    GUARD_TILT,
    GUARD_SPEED,
    GUARD_RATE,
    GUARD_BATTERY,
    GUARD_SLOW, /* the policy */
    GUARD_TIME, /* over */
    GUARD_REASONS
} guard_reason;

#define GUARD_MEMBER(name, usual, least, most) float name;
typedef struct {
    GUARD_LIMITS(GUARD_MEMBER)
} guard_limits;
#define GUARD_USUAL(name, usual, least, most) usual##f,
#define GUARD_DEFAULTS {GUARD_LIMITS(GUARD_USUAL)}

typedef struct {
    float position[3];         /* m, world */
    float rotation[9];         /* body to world, row-major */
    float linear_velocity[3];  /* m/s, world */
    float angular_velocity[3]; /* rad/s, body */
    float voltage;             /* V, as measured */
    float load;                /* mean of the forces that the rotors were to give, of THRUST_MAX: 0..1 */
    float variance;            /* m^2, of the estimated position: the axis with the largest */
} guard_seen;

enum { GUARD_MOTION = 18 }; /* floats of the estimate, the first of guard_seen */

typedef struct {
    float home[3];            /* m, world: where the policy took over */
    float motion[GUARD_MOTION]; /* the last estimate */
    uint32_t began, changed;   /* ms: it took over; the estimate changed; */
    uint32_t charged, powered; /* the battery was not low; not empty */
    uint32_t weighed, span;    /* ms: it was weighed last; its mean is over so many */
    float resting;             /* V without load, that mean */
} guard_memory;

/* Puts the usual value in place of every one that is not allowed; a bit for each, in the order of GUARD_LIMITS. */
uint32_t guard_replace(guard_limits *limits);

/* Whether a tuned thrust curve (N: c0, c1, c2) is near enough to the airframe's to be taken. */
bool guard_near(const float *curve, const float *airframe);

/* The policy begins to be watched, at `now` (ms, of a clock that may run over). */
void guard_begin(guard_memory *memory, const guard_seen *seen, uint32_t now);

/* The battery, at every call of the controller from the next on, whoever flies: what nobody looked at does not age. */
void guard_weigh(guard_memory *memory, const guard_limits *limits, const guard_seen *seen, uint32_t now);

/* At every call in which the policy computes. What `seen` shows is a reason within 1 ms, a stale estimate or an empty
 * battery within 30 ms, a low battery after 5 s, after 100 ms when it is low as the policy takes over. */
guard_reason guard_look(guard_memory *memory, const guard_limits *limits, const guard_seen *seen, uint32_t now);

/* GUARD_TIME when it has flown for long enough. */
guard_reason guard_time(const guard_memory *memory, const guard_limits *limits, uint32_t now);

/* Of one step of the policy: the forces (4) that it asks for, and how many microseconds it took. */
guard_reason guard_step(const guard_limits *limits, const float *force, uint32_t duration);

/* How much of the command is the policy's (0..1) that took over `elapsed` ms ago; the rest is the PID controller's. */
float guard_share(const guard_limits *limits, uint32_t elapsed);

/* For people. */
const char *guard_says(guard_reason reason);

#endif
