/* The rest of the firmware, for the tests: numbers in, numbers out. */
#include "app.h"
#include "commander.h"
#include "controller.h"
#include "controller_pid.h"
#include "guard.h"
#include "landing.h"
#include "log.h"
#include "param.h"
#include "pm.h"
#include "signals.h"
#include "supervisor.h"
#include "task.h"
#include "usec_time.h"

typedef struct {
    float position[3], velocity[3], quaternion[4], gyro[3]; /* quaternion: x, y, z, w; gyro: degrees/s */
    float target_position[3], target_velocity[3];
    int modes[3], velocity_body;
    uint32_t timestamp, now, step;
    float target_yaw; /* degrees */
} bench_input;

enum { CALLS = 4 };
int pid_calls, pid_inits, pid_sound = 1, selected;
uint32_t pid_steps[CALLS];
int pid_modes[CALLS]; /* of x in the set point */

float pid_thrust, pid_roll, pid_pitch, pid_yaw; /* what the PID controller answers */
float pid_place[3];                              /* m: where it was last told to be */
float voltage = 4.0f, variance = 1e-4f;          /* V, m^2 */
int in_the_air, relaxed;
int tasks, notified; /* the policy's own: how many there are, and whether somebody rang */
char said[2000]; /* on the console, since somebody looked */
uint32_t step_us;                                /* how long everything takes between two looks at the clock */

static int turns; /* that the app's task may take; 0: it sleeps for good */
static _Alignas(16) unsigned char out[512];
static uint32_t ticks;
static control_t control; /* as in the firmware: it keeps what was last written */

int pause(void);
int _setjmp(void *) __attribute__((returns_twice));
void longjmp(void *, int) __attribute__((noreturn));
int vsnprintf(char *to, __SIZE_TYPE__ size, const char *format, __builtin_va_list values);
TickType_t xTaskGetTickCount(void) { return ticks; }
uint64_t usecTimestamp(void) {
    static uint64_t time;
    return time += step_us;
}
void vTaskDelay(const TickType_t count) {
    (void)count;
    if (turns == 0) pause(); /* the app's task sleeps for good */
    if (--turns == 0) longjmp(out, 1);
}
static TaskFunction_t working;
TaskHandle_t xTaskCreateStatic(TaskFunction_t code, const char *const name, const uint32_t depth, void *const parameters,
                               UBaseType_t priority, StackType_t *const stack, StaticTask_t *const block) {
    (void)name;
    (void)parameters;
    if (depth < 150 || priority >= 5 || !stack) return 0;
    ++tasks;
    working = code;
    return (TaskHandle_t)(void *)block;
}
BaseType_t xTaskNotifyGive(TaskHandle_t task) {
    if (task) notified = 1;
    return pdTRUE;
}
uint32_t ulTaskNotifyTake(BaseType_t clear, TickType_t wait) {
    (void)clear;
    (void)wait;
    if (!notified) longjmp(out, 1); /* it sleeps */
    notified = 0;
    return 1;
}
void consolePrintf(const char *format, ...) {
    __builtin_va_list values;
    __builtin_va_start(values, format);
    __SIZE_TYPE__ end = 0;
    while (said[end] != 0) ++end;
    vsnprintf(said + end, sizeof said - end, format, values);
    __builtin_va_end(values);
}
float pmGetBatteryVoltage(void) { return voltage; }
bool supervisorIsFlying(void) { return in_the_air != 0; }
void commanderRelaxPriority(void) { ++relaxed; }
logVarId_t logGetVarId(const char *group, const char *name) {
    return (logVarId_t)(group[0] == 'k' && name[0] == 'v' ? name[3] - 'X' : 0xffff); /* kalman.varX, varY, varZ */
}
float logGetFloat(logVarId_t varid) { return varid == 1 ? variance : 1e-6f; }
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
    to->thrust = pid_thrust;
    to->roll = (int16_t)pid_roll;
    to->pitch = (int16_t)pid_pitch;
    to->yaw = (int16_t)pid_yaw;
    pid_place[0] = setpoint->position.x;
    pid_place[1] = setpoint->position.y;
    pid_place[2] = setpoint->position.z;
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
        .attitude = {.yaw = in->target_yaw},
        .position = point(in->target_position),
        .velocity = point(in->target_velocity),
        .velocity_body = in->velocity_body != 0,
        .mode = {.x = (stab_mode_t)in->modes[0], .y = (stab_mode_t)in->modes[1], .z = (stab_mode_t)in->modes[2]},
    };
    setpoint->mode.yaw = setpoint->mode.x == modeAbs ? modeAbs : modeVelocity; /* as positions and speeds come by radio */
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

void bench_signals(const bench_input *in, quadrotor_signals *signals);
void bench_signals(const bench_input *in, quadrotor_signals *signals) {
    setpoint_t setpoint;
    sensorData_t sensors;
    state_t state;
    unpack(in, &setpoint, &sensors, &state);
    signals_read(signals, &setpoint, &sensors, &state);
}

/* The policy's own task has the processor until it sleeps. */
void bench_work(void);
void bench_work(void) {
    if (_setjmp(out) == 0) working(0);
}

/* One turn of the app's task. */
void bench_attend(void);
void bench_attend(void) {
    turns = 2;
    if (_setjmp(out) == 0) appMain();
    turns = 0;
}
