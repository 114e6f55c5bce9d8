/* The rest of the firmware, for the tests: numbers in, numbers out. */
#include "controller.h"
#include "controller_pid.h"
#include "param.h"
#include "signals.h"
#include "task.h"
#include "usec_time.h"

typedef struct {
    float position[3], velocity[3], quaternion[4], gyro[3]; /* quaternion: x, y, z, w; gyro: degrees/s */
    float target_position[3], target_velocity[3];
    int modes[3], velocity_body;
    uint32_t timestamp, now, step;
} bench_input;

enum { CALLS = 4 };
int pid_calls, pid_inits, pid_sound = 1, selected;
uint32_t pid_steps[CALLS];
int pid_modes[CALLS]; /* of x in the set point */

static uint32_t ticks;
static control_t control; /* as in the firmware: it keeps what was last written */

int pause(void);
TickType_t xTaskGetTickCount(void) { return ticks; }
uint64_t usecTimestamp(void) { return 0; }
void vTaskDelay(const TickType_t count) {
    (void)count;
    pause(); /* the app's task sleeps for good */
}
void consolePrintf(const char *format, ...) { (void)format; }
void paramSetInt(paramVarId_t varid, int valuei) { selected = varid.id == 6 ? valuei : -1; }

paramVarId_t paramGetVarId(const char *group, const char *name) {
    return (paramVarId_t){.id = group[0] == 's' && name[0] == 'c' ? 6 : 0};
}

void controllerPidInit(void) { ++pid_inits; }
bool controllerPidTest(void) { return pid_sound; }

void controllerPid(control_t *to, const setpoint_t *setpoint, const sensorData_t *sensors, const state_t *state,
                   const stabilizerStep_t step) {
    (void)sensors;
    (void)state;
    to->controlMode = controlModeLegacy;
    if (pid_calls < CALLS) {
        pid_steps[pid_calls] = step;
        pid_modes[pid_calls] = (int)setpoint->mode.x;
    }
    ++pid_calls;
}

static point_t point(const float *x) { return (point_t){.x = x[0], .y = x[1], .z = x[2]}; }

static void unpack(const bench_input *in, setpoint_t *setpoint, sensorData_t *sensors, state_t *state) {
    const float nan = __builtin_nanf("");
    *state = (state_t){
        .attitude = {.roll = nan, .pitch = nan, .yaw = nan}, /* must not be used */
        .attitudeQuaternion = {.x = in->quaternion[0], .y = in->quaternion[1]},
        .position = point(in->position),
        .velocity = point(in->velocity),
    };
    state->attitudeQuaternion.z = in->quaternion[2];
    state->attitudeQuaternion.w = in->quaternion[3];
    *sensors = (sensorData_t){.gyro = {.axis = {in->gyro[0], in->gyro[1], in->gyro[2]}}};
    *setpoint = (setpoint_t){
        .timestamp = in->timestamp,
        .position = point(in->target_position),
        .velocity = point(in->target_velocity),
        .velocity_body = in->velocity_body != 0,
        .mode = {.x = (stab_mode_t)in->modes[0], .y = (stab_mode_t)in->modes[1], .z = (stab_mode_t)in->modes[2]},
    };
}

int bench_step(const bench_input *in, float *forces);
int bench_step(const bench_input *in, float *forces) {
    setpoint_t setpoint;
    sensorData_t sensors;
    state_t state;
    unpack(in, &setpoint, &sensors, &state);
    ticks = in->now;
    controllerOutOfTree(&control, &setpoint, &sensors, &state, in->step);
    for (int i = 0; i < 4; ++i) forces[i] = control.normalizedForces[i];
    return (int)control.controlMode;
}

void bench_signals(const bench_input *in, crazyflie_signals *signals);
void bench_signals(const bench_input *in, crazyflie_signals *signals) {
    setpoint_t setpoint;
    sensorData_t sensors;
    state_t state;
    unpack(in, &setpoint, &sensors, &state);
    signals_read(signals, &setpoint, &sensors, &state);
}
