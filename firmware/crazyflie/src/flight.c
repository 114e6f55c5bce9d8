/* A policy as the out-of-tree controller of the Crazyflie's firmware: stabilizer.controller = 6.
 *
 * At boot the firmware selects this controller and calls its Test: the policy's self-test. A build that computes wrongly
 * fails there, and the firmware does not start. Then appMain selects the PID controller; write policy.mode, then 6, to
 * hand over. The mode counts from the moment in which 6 is selected; only 0 counts at once.
 *
 * 0 off      the PID controller flies
 * 1 bench    the policy computes, motors off; while the vehicle flies this is shadow
 * 2 shadow   the PID controller flies, the policy computes beside it
 * 3 fly      the policy flies
 *
 * The policy flies while the set point names a place (x, y and z absolute) and is at most 200 ms old. Otherwise the PID
 * controller flies, started anew without a bump: in particular when the supervisor levels out. Whenever the policy takes
 * over, its forces are mixed with the PID controller's for policy.ramp seconds. On the bench and as a shadow it is told
 * to stay where it was when it has no such set point.
 *
 * What guard.h calls a reason hands the vehicle back, for good until 6 is selected again: the PID controller brakes, stays
 * for a second, sinks at 0.4 m/s, and the motors stop once it rests, whatever set points say; who selects the PID
 * controller (stabilizer.controller = 1) has it back. When the estimate or the gyroscope is not finite, nobody can fly:
 * motors off while that lasts. A set point that names a place moves nothing while the place, its velocity or its heading
 * is not finite: in the air the PID controller stays where the vehicle is, and lands it in mode 3; on the ground motors
 * are off. In the air is what the supervisor says: also for 2 s after a rotor last ran above idle.
 *
 * From command to motor. The policy commands rotor speeds, as fractions u of the vehicle's largest; the thrust is
 * c0 + c1 u + c2 u^2 newtons (policy.thrust0..2, from the airframe that the policy was trained on, and near it whoever
 * writes them: the last such curve holds until the three numbers make another, or for 0.5 s stand for none).
 * controlModeForce takes thrusts as fractions of the platform's THRUST_MAX, cuts them to 0..1, and the firmware's
 * battery compensation finds the PWM ratio that gives this thrust at the present voltage. Thrusts beyond THRUST_MAX
 * (0.12 N on a 2.1+, which is what a low battery still gives: less than the 0.149 N of the airframe `crazyflie`, so
 * u > 0.898 does no more than 0.898) are THRUST_MAX, and below THRUST_MIN (0.0128 N, u < 0.294) the rotor stops. Without
 * compensation (CONFIG_ENABLE_THRUST_BAT_COMPENSATED off) that number is the PWM ratio itself, and rotor speed is about
 * proportional to it: then u goes out as it is, and sinks with the battery. Motors M1..M4 are front-right, back-right,
 * back-left, front-left, the policy's order. */
#include <stdbool.h>
#include <stdint.h>

#include "autoconf.h"

#include "FreeRTOS.h"
#include "task.h"

#include "app.h"
#include "commander.h"
#include "controller.h"
#include "controller_pid.h"
#include "log.h"
#include "param.h"
#include "platform_defaults.h"
#include "pm.h"
#include "supervisor.h"
#include "usec_time.h"
#define DEBUG_MODULE "POLICY"
#include "debug.h"

#include "compute.h"
#include "guard.h"
#include "landing.h"
#include "policy.h"
#include "policy_math.h"
#include "signals.h"
#include "vehicle.h"

#define OLDEST_MS 200 /* of a set point */
#define ATTEND_MS 10  /* the app's own task */
#define CURVE_MS 500  /* for which a thrust curve that is not near has to stand, before it is put right */
#define FULL 65535.0f
#define MOTORS STABILIZER_NR_OF_MOTORS
#define MODE_BIT 0x80000000u  /* of `replaced` */
#define CURVE_BIT 0x40000000u
#define STEPS ((uint32_t)(RATE_MAIN_LOOP / POLICY_RATE_HZ + 0.5f)) /* calls of the controller per step of the policy */

_Static_assert(sizeof(policy_commands) == MOTORS * sizeof(float), "the policy commands motors, nothing else");

enum { OFF, BENCH, SHADOW, FLY, MODES };
enum { BY_PID, ON_BENCH, AS_SHADOW, TAKING_OVER, FLYING, HOLDING, SINKING, DOWN, STOPPED };

static quadrotor_signals signals;
static policy_signals inputs;
static policy_commands commands;
static guard_seen seen;
static guard_memory watched;
static landing descent;
static uint32_t now, since;               /* ms: the clock; when the policy took over last */
static uint32_t wait;                     /* calls until the policy's next step */
static uint32_t waited;                   /* calls that a step was due for, and the one before was not through */
static bool selected, begun, computed;    /* controller 6 is new; the guard watches; the policy computed in the last call */
static bool answered;                     /* `force` is what it asked for since it began */
static bool piloted;                      /* the PID controller ran in the last call */
static bool held;                         /* the set point is no number, and `stayed` is where it was when that began */
static float stayed[3];                   /* m */
static logVarId_t variances[3];

static uint8_t mode = OFF, chosen = OFF;
static guard_limits limits = GUARD_DEFAULTS;
static const float airframe[3] = VEHICLE_THRUST; /* N */
static float thrust[3] = VEHICLE_THRUST;         /* the same, as tuned */
static float curve[3] = VEHICLE_THRUST;          /* the same, when it was near the airframe's last: the one in use */
static float written[3] = VEHICLE_THRUST;        /* `thrust` of the last call */
static uint32_t wrote;                           /* ms: when it was another */

static uint8_t sound, failed, flying; /* the self-test passed; there is a reason; the policy flies */
static uint8_t state, reason;
static uint32_t untold;               /* of `replaced`: what nobody was told yet; both tasks change it */
static uint32_t replaced;             /* parameters that were not allowed: bits in the order of GUARD_LIMITS; 30: thrust0..2; 31: mode */
static float selftest = -1.0f;        /* largest disagreement as a share of the tolerated; negative: not yet run */
static float force[MOTORS];           /* what the policy asks of the firmware, 0..1 */
static float pid[MOTORS];             /* what the PID controller asks, likewise */
static float load;                    /* mean of what the motors got in the last call, likewise */
static uint32_t age;                  /* of the set point, ms */
static uint32_t duration;             /* of the policy's last step, us; in a task of its own with what others took */

void controllerOutOfTreeInit(void) {
    static const char *const names[3] = {"varX", "varY", "varZ"};
    for (int i = 0; i < 3; ++i) variances[i] = logGetVarId("kalman", names[i]);
    controllerPidInit();
    compute_init();
    selected = true;
    piloted = computed = begun = held = false;
    failed = flying = 0;
    reason = GUARD_FINE;
    state = BY_PID;
    for (int i = 0; i < MOTORS; ++i) force[i] = pid[i] = 0.0f;
    load = 0.0f;
}

bool controllerOutOfTreeTest(void) {
    selftest = compute_selftest();
    sound = selftest >= 0.0f && selftest <= 1.0f;
    return sound && controllerPidTest();
}

/* The thrust for a rotor speed u, as controlModeForce wants it, up to the cap; what is no number stays none. */
static float force_of(float u) {
#ifdef CONFIG_ENABLE_THRUST_BAT_COMPENSATED
    const float share = (curve[0] + (curve[1] + curve[2] * u) * u) / THRUST_MAX;
#else
    const float share = u;
#endif
    return share > limits.cap ? limits.cap : share < 0.0f ? 0.0f : share;
}

static void copy(float *to, const float *from, unsigned size) {
    for (unsigned i = 0; i < size; ++i) to[i] = from[i];
}

/* Every signal of the policy, from the firmware's of the same name. */
static void fill(void) {
#define FILL(name, size, type, oldest) \
    _Static_assert(sizeof inputs.name == sizeof signals.name, "the size of " #name); \
    copy(inputs.name, signals.name, size);
    POLICY_SIGNALS(FILL)
}

static void stop(control_t *control) {
    control->controlMode = controlModeForce;
    for (int i = 0; i < MOTORS; ++i) control->normalizedForces[i] = 0.0f;
}

/* What the guard watches: the estimate, the battery, and how sure the estimator is of its position. */
static void look(void) {
    copy(seen.position, signals.position, 3);
    copy(seen.rotation, signals.rotation, 9);
    copy(seen.linear_velocity, signals.linear_velocity, 3);
    copy(seen.angular_velocity, signals.angular_velocity, 3);
    seen.voltage = pmGetBatteryVoltage();
    seen.load = load;
    seen.variance = 0.0f;
    for (int i = 0; i < 3; ++i) {
        const float variance = logVarIdIsValid(variances[i]) ? logGetFloat(variances[i]) : -1.0f;
        if (!(variance >= 0.0f && variance <= seen.variance)) seen.variance = variance;
        if (!(variance >= 0.0f)) return; /* nobody knows how sure it is */
    }
}

static void begin(void) {
    if (!begun) guard_begin(&watched, &seen, now);
    begun = true;
}

/* What the policy's last step asks for is in `force`, if it is through. */
static guard_reason hear(void) {
    bool done;
    if (!compute_answer(&commands, &done, &duration)) return GUARD_FINE;
    if (!done) return GUARD_COMMAND;
    float asked[MOTORS];
    for (int i = 0; i < MOTORS; ++i) asked[i] = force_of(commands.motor_command[i]);
    const guard_reason found = guard_step(&limits, asked, POLICY_TASK ? 0 : duration);
    if (found != GUARD_FINE) return found;
    copy(force, asked, MOTORS);
    answered = true;
    return GUARD_FINE;
}

/* The policy's step, when it is due. In a task of its own the one before has to be through by then. */
static guard_reason compute(void) {
    if (!computed) {
        compute_forget();
        wait = waited = 0;
        answered = false;
    }
    computed = true;
    guard_reason found = hear();
    if (found != GUARD_FINE) return found;
    if (wait > 0) --wait;
    if (wait > 0) return GUARD_FINE;
    fill();
    if (!compute_ask(&inputs)) return answered || ++waited > STEPS ? GUARD_SLOW : GUARD_FINE;
    wait = STEPS;
    waited = 0;
    return hear();
}

/* PID controls attitude and position in some steps only, and begins anew when the set point's modes change: to begin at
 * once, it gets an empty set point first, and the number of a step in which all its loops run. */
static void fly_pid(control_t *control, const setpoint_t *setpoint, const sensorData_t *sensors, const state_t *estimate,
                    bool ran, stabilizerStep_t step) {
    static const setpoint_t nothing;
    if (!ran) {
        controllerPid(control, &nothing, sensors, estimate, 0);
        step = 0;
    }
    controllerPid(control, setpoint, sensors, estimate, step);
    piloted = true;
    if (control->controlMode != controlModeLegacy) return;
    const float r = 0.5f * control->roll, p = 0.5f * control->pitch, y = control->yaw; /* as the power distribution */
    const float asked[MOTORS] = {p - r + y, -p - r - y, r - p + y, r + p - y};
    for (int i = 0; i < MOTORS; ++i) {
        const float share = (control->thrust + asked[i]) / FULL;
        pid[i] = share >= 1.0f ? 1.0f : share > 0.0f ? share : 0.0f;
    }
}

/* The policy's forces, mixed with the PID controller's while it takes over; false when it is handed back. */
static bool fly(control_t *control, const setpoint_t *setpoint, const sensorData_t *sensors, const state_t *estimate,
                bool ran, stabilizerStep_t step) {
    begin();
    if (!computed || !answered) since = now;
    reason = guard_look(&watched, &limits, &seen, now);
    if (reason == GUARD_FINE) reason = guard_time(&watched, &limits, now);
    if (reason == GUARD_FINE) reason = compute();
    if (reason != GUARD_FINE) return false;
    const float share = answered ? guard_share(&limits, now - since) : 0.0f;
    state = share < 1.0f ? TAKING_OVER : FLYING;
    if (state == TAKING_OVER) fly_pid(control, setpoint, sensors, estimate, ran, step);
    control->controlMode = controlModeForce;
    for (int i = 0; i < MOTORS; ++i) {
        control->normalizedForces[i] = share < 1.0f ? pid[i] + share * (force[i] - pid[i]) : force[i];
    }
    return true;
}

static setpoint_t stay(const float *place, float height) {
    return (setpoint_t){
        .position = {.x = place[0], .y = place[1], .z = height},
        .mode = {.x = modeAbs, .y = modeAbs, .z = modeAbs, .yaw = modeVelocity},
    };
}

/* Handed back: the PID controller brakes, stays, lands. */
static void come_down(control_t *control, const sensorData_t *sensors, const state_t *estimate, bool ran,
                      stabilizerStep_t step) {
    if (!failed) landing_begin(&descent, signals.position, signals.linear_velocity, now);
    /* It begins anew, also where it flew in part: to hold the heading that it has now, not the one of the last set point,
     * and without the integrals that grew against the policy. */
    ran = ran && failed;
    failed = 1;
    computed = false;
    const float height = landing_height(&descent, signals.position, signals.linear_velocity, now);
    state = descent.down ? DOWN : now - descent.began > LANDING_HOLD_MS ? SINKING : HOLDING;
    if (descent.down) {
        stop(control);
        return;
    }
    const setpoint_t place = stay(descent.place, height);
    fly_pid(control, &place, sensors, estimate, ran, step);
}

/* The policy computes, and somebody else flies or nobody: what the guard would have said first stays in `reason`. */
static void consider(bool place) {
    if (!place) {
        copy(signals.target_position, watched.home, 3);
        for (int i = 0; i < 3; ++i) signals.target_velocity[i] = 0.0f;
    }
    guard_reason found = guard_look(&watched, &limits, &seen, now);
    const guard_reason step = compute();
    if (step != GUARD_FINE) computed = false;
    if (found == GUARD_FINE) found = step;
    if (reason == GUARD_FINE) reason = found;
}

/* What the battery has to give for this. */
static void weigh(const control_t *control) {
    const float *given = control->controlMode == controlModeLegacy ? pid : control->normalizedForces;
    load = 0.0f;
    for (int i = 0; i < MOTORS; ++i) load += given[i] / MOTORS;
}

static bool names_a_place(const setpoint_t *setpoint) {
    const setpoint_mode_t *modes = &setpoint->mode;
    return modes->x == modeAbs && modes->y == modeAbs && modes->z == modeAbs && !setpoint->velocity_body;
}

/* Whether the thrust curve was put right. Its three numbers come by radio, one by one: those that make no curve near the
 * airframe's may be half of one that is. */
static bool obey_curve(void) {
    for (int i = 0; i < 3; ++i) {
        const bool nan = thrust[i] != thrust[i] && written[i] != written[i]; /* stands, too */
        if (thrust[i] != written[i] && !nan) wrote = now;
    }
    copy(written, thrust, 3);
    const bool near = guard_near(written, airframe);
    if (!near && !selected && now - wrote < M2T(CURVE_MS)) return false;
    if (!near) copy(thrust, airframe, 3);
    copy(curve, near ? written : airframe, 3);
    return !near;
}

static void obey_parameters(void) {
    uint32_t found = guard_replace(&limits);
    if (mode >= MODES) {
        mode = OFF;
        found |= MODE_BIT;
    }
    if (obey_curve()) found |= CURVE_BIT;
    replaced |= found;
    __atomic_fetch_or(&untold, found, __ATOMIC_RELAXED);
    if (selected) chosen = mode == BENCH && supervisorIsFlying() ? SHADOW : mode;
    if (mode == OFF) chosen = OFF;
    selected = false;
}

#define BROKEN(name) policy_broken(signals.name, sizeof signals.name / sizeof(float))

void controllerOutOfTree(control_t *control, const setpoint_t *setpoint, const sensorData_t *sensors,
                         const state_t *estimate, const stabilizerStep_t step) {
    const bool ran = piloted, did_compute = computed;
    now = xTaskGetTickCount();
    piloted = computed = false;
    signals_read(&signals, setpoint, sensors, estimate);
    obey_parameters();
    look();
    if (begun) guard_weigh(&watched, &limits, &seen, now);
    const bool place = names_a_place(setpoint);
    age = now - setpoint->timestamp;
    const bool blind = BROKEN(position) || BROKEN(rotation) || BROKEN(linear_velocity) || BROKEN(angular_velocity);
    const bool astray = setpoint->mode.yaw == modeAbs && policy_broken(&setpoint->attitude.yaw, 1);
    const bool lost = place && (BROKEN(target_position) || BROKEN(target_velocity) || astray);
    const bool fresh = place && !lost && age <= M2T(OLDEST_MS);
    computed = did_compute;
    const bool in_the_air = supervisorIsFlying();
    if (chosen == FLY && reason == GUARD_FINE && ((did_compute && (blind || lost)) || (lost && in_the_air))) {
        reason = GUARD_ESTIMATE;
    }
    held = held && lost && !blind;
    if (!blind && !held) {
        copy(stayed, signals.position, 3);
        held = lost;
    }
    const setpoint_t where_it_is = stay(stayed, stayed[2]);
    if (blind || (lost && !in_the_air && !(chosen == FLY && reason != GUARD_FINE))) {
        state = STOPPED;
        computed = false;
        stop(control);
    } else if (chosen == FLY && reason != GUARD_FINE) {
        come_down(control, sensors, estimate, ran, step);
    } else if (chosen == FLY && sound && fresh) {
        if (!fly(control, setpoint, sensors, estimate, ran, step)) come_down(control, sensors, estimate, ran, step);
    } else if (chosen == BENCH) {
        begin();
        const setpoint_t place_held = stay(watched.home, watched.home[2]);
        fly_pid(control, fresh ? setpoint : &place_held, sensors, estimate, ran, step);
        consider(fresh);
        state = ON_BENCH;
        stop(control);
    } else {
        fly_pid(control, lost ? &where_it_is : setpoint, sensors, estimate, ran, step);
        state = chosen == SHADOW ? AS_SHADOW : BY_PID;
        if (chosen == SHADOW) {
            begin();
            consider(fresh);
        } else {
            computed = false;
        }
    }
    flying = state == TAKING_OVER || state == FLYING;
    weigh(control);
}

/* What may take its time: what is to be said, and to keep the supervisor's watchdog calm when the client that streamed
 * set points is gone while the vehicle lands (the motors would stop in the air). */
static void attend(void) {
    static uint8_t told;
    if (reason != told && reason != GUARD_FINE) {
        DEBUG_PRINT("%s: %s\n", chosen == FLY ? "handed back" : "would hand back", guard_says(reason));
    }
    told = reason;
    const uint32_t tell = __atomic_exchange_n(&untold, 0, __ATOMIC_RELAXED);
    uint32_t bit = 1;
#define TELL(name, usual, least, most) \
    if (tell & bit) DEBUG_PRINT("policy." #name " is not within " #least ".." #most ", now " #usual "\n"); \
    bit <<= 1;
    GUARD_LIMITS(TELL)
    if (tell & CURVE_BIT) DEBUG_PRINT("policy.thrust0..2 are too far from the airframe's curve, now its own\n");
    if (tell & MODE_BIT) DEBUG_PRINT("policy.mode is 0..3, now 0\n");
    if ((state == HOLDING || state == SINKING) && age > M2T(OLDEST_MS)) commanderRelaxPriority();
}

void appMain(void) {
    const policy_information *info = policy_info();
    DEBUG_PRINT("%s for %s, self-test %s\n", info->name, info->robot, sound ? "passed" : "FAILED");
    paramSetInt(paramGetVarId("stabilizer", "controller"), ControllerTypePID);
    while (true) {
        vTaskDelay(M2T(ATTEND_MS));
        attend();
    }
}

#define PARAM_LIMIT(name, usual, least, most) PARAM_ADD(PARAM_FLOAT, name, &limits.name)

PARAM_GROUP_START(policy)
PARAM_ADD(PARAM_UINT8, mode, &mode)
GUARD_LIMITS(PARAM_LIMIT)
PARAM_ADD(PARAM_FLOAT, thrust0, &thrust[0])
PARAM_ADD(PARAM_FLOAT, thrust1, &thrust[1])
PARAM_ADD(PARAM_FLOAT, thrust2, &thrust[2])
PARAM_GROUP_STOP(policy)

#define LOG_3(name, from) \
    LOG_ADD(LOG_FLOAT, name##_0, &(from)[0]) \
    LOG_ADD(LOG_FLOAT, name##_1, &(from)[1]) \
    LOG_ADD(LOG_FLOAT, name##_2, &(from)[2])

LOG_GROUP_START(policy)
LOG_ADD(LOG_UINT8, flying, &flying)
LOG_ADD(LOG_UINT8, sound, &sound)
LOG_ADD(LOG_UINT8, failed, &failed)
LOG_ADD(LOG_UINT8, state, &state)
LOG_ADD(LOG_UINT8, reason, &reason)
LOG_ADD(LOG_UINT32, replaced, &replaced)
LOG_ADD(LOG_FLOAT, selftest, &selftest)
LOG_ADD(LOG_UINT32, age, &age)
LOG_ADD(LOG_UINT32, duration, &duration)
LOG_3(position, signals.position)
LOG_3(rotation, signals.rotation)
LOG_ADD(LOG_FLOAT, rotation_3, &signals.rotation[3])
LOG_ADD(LOG_FLOAT, rotation_4, &signals.rotation[4])
LOG_ADD(LOG_FLOAT, rotation_5, &signals.rotation[5])
LOG_ADD(LOG_FLOAT, rotation_6, &signals.rotation[6])
LOG_ADD(LOG_FLOAT, rotation_7, &signals.rotation[7])
LOG_ADD(LOG_FLOAT, rotation_8, &signals.rotation[8])
LOG_3(linear_velocity, signals.linear_velocity)
LOG_3(angular_velocity, signals.angular_velocity)
LOG_3(target_position, signals.target_position)
LOG_3(target_velocity, signals.target_velocity)
LOG_3(motor_command, commands.motor_command)
LOG_ADD(LOG_FLOAT, motor_command_3, &commands.motor_command[3])
LOG_3(force, force)
LOG_ADD(LOG_FLOAT, force_3, &force[3])
LOG_3(pid, pid)
LOG_ADD(LOG_FLOAT, pid_3, &pid[3])
LOG_GROUP_STOP(policy)
