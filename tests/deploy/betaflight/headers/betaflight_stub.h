/* What the module uses of Betaflight 2026.6, as its headers declare it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define QUAD_MOTOR_COUNT 4
#define USE_RUNAWAY_TAKEOFF
#define USE_GPS
#define USE_POSITION_HOLD
#define ARMED 1
#define GPS_RESCUE_MODE (1 << 11)
#define FEATURE_3D (1 << 12)
#define ARMING_FLAG(mask) (armingFlags & (mask))
#define FLIGHT_MODE(mask) (flightModeFlags & (mask))
#define GPS_FIX (1 << 1)
#define STATE(mask) (stateFlags & (mask))
#define DEGREES_TO_RADIANS(angle) ((angle) * (3.14159265358979323846f / 180.0f))

typedef uint32_t timeUs_t;
typedef enum { BOXARM, BOXUSER1 = 40 } boxId_e;
typedef enum { MIXER_QUADX = 3, MIXER_QUADX_1234 = 26 } mixerMode_e;
enum { FD_ROLL, FD_PITCH, FD_YAW };
enum { ROLL, PITCH, YAW, THROTTLE };
enum { ENU_E, ENU_N, ENU_U };
enum { SENSOR_GYRO = 1, SENSOR_ACC = 2, SENSOR_GPS = 1 << 5, SENSOR_OPTICALFLOW = 1 << 7 };
enum { POSHOLD_SOURCE_AUTO, POSHOLD_SOURCE_GPS_ONLY, POSHOLD_SOURCE_OPTICALFLOW_ONLY };

typedef struct {
    float m[3][3];
} matrix33_t;
typedef union {
    float v[3];
    struct {
        float x, y, z;
    };
} vector3_t;
typedef struct {
    vector3_t position, velocity;
    float trustXY, trustZ;
    bool isValidXY, isValidZ;
} positionEstimate3d_t;
typedef struct {
    uint8_t mixerMode;
    bool yaw_motors_reversed;
} mixerConfig_t;
typedef struct {
    uint8_t positionSource;
} posHoldConfig_t;
typedef struct {
    float gyroADCf[3];
} gyro_t;

extern uint8_t armingFlags, stateFlags;
extern uint16_t flightModeFlags;
extern matrix33_t rMat;
extern gyro_t gyro;
extern float rcData[18], motor[8];

bool sensors(uint32_t mask);
bool featureIsEnabled(const uint32_t mask);
bool isRxReceivingSignal(void);
bool failsafeIsActive(void);
bool isCrashFlipModeActive(void);
bool isLaunchControlActive(void);
bool IS_RC_MODE_ACTIVE(boxId_e boxId);
void runawayTakeoffTemporaryDisable(uint8_t disableFlag);
void pidResetIterm(void);
float getRcDeflection(int axis);
uint16_t getBatteryVoltage(void);
uint8_t getMotorCount(void);
mixerMode_e getMixerMode(void);
const mixerConfig_t *mixerConfig(void);
float getMotorOutputLow(void);
float getMotorOutputHigh(void);
float motorConvertFromExternal(uint16_t externalValue);
const positionEstimate3d_t *positionEstimatorGetEstimate(void);
const posHoldConfig_t *posHoldConfig(void);
bool imuIsHeadingValid(void);
bool gpsHasNewData(uint16_t *stamp);
