/* Runs the module as Betaflight's PID loop would, for a test in Python. */
#include "betaflight_stub.h"
#include "flight.h"
#include "signals.h"
#include "sim2metal.h"

uint8_t armingFlags, stateFlags;
uint16_t flightModeFlags;
matrix33_t rMat;
gyro_t gyro;
float rcData[18], motor[8];

static struct {
    int sensors, features, radio, failsafe, flip, launch, box, voltage, count, mixer, reversed, fix, source, oriented, silent;
    uint16_t news;
    float deflection[3];
    positionEstimate3d_t estimate;
    int cleared, undisturbed;
} bf = {.sensors = SENSOR_GYRO | SENSOR_ACC | SENSOR_GPS, .radio = 1, .voltage = 1600, .count = 4, .mixer = MIXER_QUADX,
        .fix = 1, .oriented = 1};

bool sensors(uint32_t mask) { return bf.sensors & mask; }
bool featureIsEnabled(const uint32_t mask) { return bf.features & mask; }
bool isRxReceivingSignal(void) { return bf.radio; }
bool failsafeIsActive(void) { return bf.failsafe; }
bool isCrashFlipModeActive(void) { return bf.flip; }
bool isLaunchControlActive(void) { return bf.launch; }
bool IS_RC_MODE_ACTIVE(boxId_e boxId) { return boxId == BOXUSER1 && bf.box; }
void runawayTakeoffTemporaryDisable(uint8_t disableFlag) { bf.undisturbed = disableFlag; }
void pidResetIterm(void) { ++bf.cleared; }
float getRcDeflection(int axis) { return bf.deflection[axis]; }
uint16_t getBatteryVoltage(void) { return (uint16_t)bf.voltage; }
uint8_t getMotorCount(void) { return (uint8_t)bf.count; }
mixerMode_e getMixerMode(void) { return (mixerMode_e)bf.mixer; }
const mixerConfig_t *mixerConfig(void) {
    static mixerConfig_t config;
    config.yaw_motors_reversed = bf.reversed;
    return &config;
}
/* Digital motors, as DSHOT has them: 48 to 2047, idle at 5.5 %. */
float getMotorOutputLow(void) { return 158.0f; }
float getMotorOutputHigh(void) { return 2047.0f; }
float motorConvertFromExternal(uint16_t externalValue) {
    return externalValue <= 1000 ? 0.0f : 48.0f + (float)(externalValue - 1001) * (1999.0f / 999.0f);
}
const positionEstimate3d_t *positionEstimatorGetEstimate(void) { return &bf.estimate; }
const posHoldConfig_t *posHoldConfig(void) {
    static posHoldConfig_t config;
    config.positionSource = (uint8_t)bf.source;
    return &config;
}
bool imuIsHeadingValid(void) { return bf.oriented; }
bool gpsHasNewData(uint16_t *stamp) {
    const bool news = *stamp != bf.news;
    *stamp = bf.news;
    return news;
}

void bench_set(int what, int value) {
    int *const fields[] = {&bf.sensors, &bf.features, &bf.radio, &bf.failsafe, &bf.flip,   &bf.launch,   &bf.box,   &bf.voltage,
                           &bf.count,   &bf.mixer,    &bf.reversed, &bf.fix,   &bf.source, &bf.oriented, &bf.silent};
    *fields[what] = value;
}
void bench_flags(int armed, int modes) {
    armingFlags = armed ? ARMED : 0;
    flightModeFlags = (uint16_t)modes;
}
void bench_sticks(float roll, float pitch, float throttle) {
    bf.deflection[FD_ROLL] = roll;
    bf.deflection[FD_PITCH] = pitch;
    rcData[THROTTLE] = throttle;
}
/* Position and velocity (east, north, up; cm), rotation, rates (degrees/s); trusts and validity of the estimate. */
void bench_tick(uint32_t now, const float *state, float trust, int valid) {
    for (int i = 0; i < 3; ++i) {
        bf.estimate.position.v[i] = state[i];
        bf.estimate.velocity.v[i] = state[3 + i];
        for (int k = 0; k < 3; ++k) rMat.m[i][k] = state[6 + 3 * i + k];
        gyro.gyroADCf[i] = state[15 + i];
    }
    bf.estimate.trustXY = trust;
    bf.estimate.trustZ = 0.95f;
    bf.estimate.isValidXY = valid & 1;
    bf.estimate.isValidZ = valid & 2;
    stateFlags = bf.fix ? GPS_FIX : 0;
    if (bf.fix && !bf.silent) ++bf.news;
    for (int i = 0; i < 4; ++i) motor[i] = -1.0f; /* what the mixer says */
    sim2metalUpdate(now);
}
void bench_motors(float *to) {
    for (int i = 0; i < 4; ++i) to[i] = motor[i];
}
/* A target that sticks move for so many steps, from a place with the nose at (north, west); then position and velocity of
 * the target, in the world of the flight. Numbers only: nothing of sim2metal.c is asked. */
void bench_target(const float *place, const float *nose, const float *sticks, const int *steps, int legs, float *to) {
    static flight f;
    static flight_seen seen;
    quadrotor_signals told;
    seen = (flight_seen){.rotation = {nose[0], -nose[1], 0, nose[1], nose[0], 0, 0, 0, 1}, .volts = 16, .placed = 1, .allowed = 1};
    for (int i = 0; i < 3; ++i) seen.position[i] = place[i];
    flight_init(&f);
    if (flight_begin(&f, &seen, 0) != FLIGHT_FINE) return;
    for (int leg = 0; leg < legs; ++leg) {
        for (int i = 0; i < 3; ++i) seen.sticks[i] = sticks[3 * leg + i];
        for (int step = 0; step < steps[leg]; ++step) signals_read(&told, &f, &seen);
    }
    for (int i = 0; i < 3; ++i) {
        to[i] = told.target_position[i];
        to[3 + i] = told.target_velocity[i];
    }
}
const char *bench_reason(void) { return flight_says((flight_reason)sim2metalReason()); }
int bench_cleared(void) { return bf.cleared; }
int bench_undisturbed(void) { return bf.undisturbed; }
