/* A policy as the out-of-tree controller of the Crazyflie's firmware: stabilizer.controller = 6.
 *
 * At boot the firmware selects this controller and calls its Test: the policy's self-test. A build that computes wrongly
 * fails there, and the firmware does not start. Then appMain selects the PID controller; write 6 to hand over.
 *
 * The policy flies while the set point names a place (x, y and z absolute) and is at most 200 ms old. Otherwise the PID
 * controller flies, started anew without a bump: in particular when the supervisor levels out. A policy whose result is
 * not finite is out until controller 6 is selected again. When the estimate, the gyroscope or the place is not finite,
 * nobody can fly: motors off while that lasts.
 *
 * From command to motor. The policy commands rotor speeds, as fractions u of the vehicle's largest; the thrust is
 * c0 + c1 u + c2 u^2 newtons (policy.thrust0..2, from the airframe that the policy was trained on). controlModeForce takes
 * thrusts as fractions of the platform's THRUST_MAX, cuts them to 0..1, and the firmware's battery compensation finds the
 * PWM ratio that gives this thrust at the present voltage. Thrusts beyond THRUST_MAX (0.12 N on a 2.1+, which is what a low
 * battery still gives: less than the 0.149 N of the airframe `crazyflie`, so u > 0.898 does no more than 0.898) are
 * THRUST_MAX, and below THRUST_MIN (0.0128 N, u < 0.294) the rotor stops. Without
 * compensation (CONFIG_ENABLE_THRUST_BAT_COMPENSATED off) that number is the PWM ratio itself, and rotor speed is about
 * proportional to it: then u goes out as it is, and sinks with the battery. Motors M1..M4 are front-right, back-right,
 * back-left, front-left, the policy's order. */
#include <stdbool.h>
#include <stdint.h>

#include "autoconf.h"

#include "FreeRTOS.h"
#include "task.h"

#include "app.h"
#include "controller.h"
#include "controller_pid.h"
#include "log.h"
#include "param.h"
#include "platform_defaults.h"
#include "usec_time.h"
#define DEBUG_MODULE "POLICY"
#include "debug.h"

#include "policy.h"
#include "policy_math.h"
#include "signals.h"
#include "vehicle.h"

#define OLDEST_MS 200 /* of a set point */
#define MOTORS STABILIZER_NR_OF_MOTORS
#define STEPS ((uint32_t)(RATE_MAIN_LOOP / POLICY_RATE_HZ + 0.5f)) /* calls of the controller per step of the policy */

_Static_assert(sizeof(policy_commands) == MOTORS * sizeof(float), "the policy commands motors, nothing else");

static crazyflie_signals signals;
static policy_signals inputs;
static policy_commands commands;
static policy_state memory;
static enum { NOBODY, PID, POLICY } pilot;
static uint32_t wait; /* calls until the policy's next step */

static uint8_t enabled = 1;
static float thrust[3] = VEHICLE_THRUST; /* N */

static uint8_t sound, failed, flying; /* the self-test passed; a result was not finite; the policy flies */
static float selftest = -1.0f;        /* largest disagreement as a share of the tolerated; negative: not yet run */
static float force[MOTORS];           /* what the policy asks of the firmware, 0..1 */
static uint32_t age;                  /* of the set point, ms */
static uint32_t duration;             /* of the policy's last step, us */

void controllerOutOfTreeInit(void) {
    controllerPidInit();
    pilot = NOBODY;
    failed = flying = 0;
}

bool controllerOutOfTreeTest(void) {
    selftest = policy_selftest(&memory);
    sound = selftest >= 0.0f && selftest <= 1.0f;
    return sound && controllerPidTest();
}

/* The thrust for a rotor speed u, as controlModeForce wants it; 0 when it is not a number. */
static float force_of(float u) {
#ifdef CONFIG_ENABLE_THRUST_BAT_COMPENSATED
    const float share = (thrust[0] + (thrust[1] + thrust[2] * u) * u) / THRUST_MAX;
#else
    const float share = u;
#endif
    return share >= 1.0f ? 1.0f : share > 0.0f ? share : 0.0f;
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

static void command(control_t *control) {
    control->controlMode = controlModeForce;
    copy(control->normalizedForces, force, MOTORS);
}

static void stop(control_t *control) {
    for (int i = 0; i < MOTORS; ++i) force[i] = 0.0f;
    command(control);
    failed = failed || pilot == POLICY;
    pilot = NOBODY;
}

/* False when the policy cannot. */
static bool fly(control_t *control) {
    if (pilot != POLICY) {
        policy_reset(&memory);
        wait = 0;
    }
    if (wait == 0) {
        fill();
        const uint64_t began = usecTimestamp();
        const bool done = policy_step(&memory, &inputs, &commands);
        duration = (uint32_t)(usecTimestamp() - began);
        if (!done) return false;
        for (int i = 0; i < MOTORS; ++i) force[i] = force_of(commands.motor_command[i]);
        wait = STEPS;
    }
    --wait;
    command(control);
    pilot = POLICY;
    return true;
}

/* PID controls attitude and position in some steps only, and begins anew when the set point's modes change: to begin at
 * once, it gets an empty set point first, and the number of a step in which all its loops run. */
static void hand_over(control_t *control, const setpoint_t *setpoint, const sensorData_t *sensors, const state_t *state,
                      stabilizerStep_t step) {
    static const setpoint_t nothing;
    if (pilot != PID) {
        controllerPid(control, &nothing, sensors, state, 0);
        step = 0;
    }
    controllerPid(control, setpoint, sensors, state, step);
    pilot = PID;
}

static bool names_a_place(const setpoint_t *setpoint) {
    const setpoint_mode_t *mode = &setpoint->mode;
    return mode->x == modeAbs && mode->y == modeAbs && mode->z == modeAbs && !setpoint->velocity_body;
}

#define BROKEN(name) policy_broken(signals.name, sizeof signals.name / sizeof(float))

void controllerOutOfTree(control_t *control, const setpoint_t *setpoint, const sensorData_t *sensors,
                         const state_t *state, const stabilizerStep_t step) {
    signals_read(&signals, setpoint, sensors, state);
    const bool place = names_a_place(setpoint);
    age = xTaskGetTickCount() - setpoint->timestamp;
    const bool blind = BROKEN(position) || BROKEN(rotation) || BROKEN(linear_velocity) || BROKEN(angular_velocity);
    if (blind || (place && (BROKEN(target_position) || BROKEN(target_velocity)))) {
        stop(control);
    } else if (!(enabled && sound && !failed && place && age <= M2T(OLDEST_MS))) {
        hand_over(control, setpoint, sensors, state, step);
    } else if (!fly(control)) {
        failed = 1;
        hand_over(control, setpoint, sensors, state, step);
    }
    flying = pilot == POLICY;
}

void appMain(void) {
    const policy_information *info = policy_info();
    DEBUG_PRINT("%s for %s, self-test %s\n", info->name, info->robot, sound ? "passed" : "FAILED");
    paramSetInt(paramGetVarId("stabilizer", "controller"), ControllerTypePID);
    while (true) vTaskDelay(M2T(10000));
}

PARAM_GROUP_START(policy)
PARAM_ADD(PARAM_UINT8, enabled, &enabled) /* 0: the PID controller flies */
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
LOG_GROUP_STOP(policy)
