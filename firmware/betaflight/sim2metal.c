/* Betaflight's side: made for 2026.6; 2025.12 does too, for policies that see no position. */
#include <stdbool.h>
#include <stdint.h>
#ifdef SIMULATOR_BUILD
#include <stdio.h>
#endif

#include "platform.h"

#include "common/axis.h"
#include "common/maths.h"
#include "common/time.h"
#include "config/feature.h"
#include "drivers/motor.h"
#include "fc/core.h"
#include "fc/rc.h"
#include "fc/rc_controls.h"
#include "fc/rc_modes.h"
#include "fc/runtime_config.h"
#include "flight/failsafe.h"
#include "flight/imu.h"
#include "flight/mixer.h"
#include "flight/pid.h"
#include "rx/rx.h"
#include "sensors/battery.h"
#include "sensors/gyro.h"
#include "sensors/sensors.h"

#include "flight.h"
#include "sim2metal.h"

#ifdef NEEDS_POSITION
#if !__has_include("flight/position_estimator.h")
#error "this policy needs to know where it is: Betaflight estimates that since 2026.6"
#endif
#include "flight/position_estimator.h"
#include "io/gps.h"
#include "pg/pos_hold.h"
#endif

#define PWM_SLOWEST 1001 /* Betaflight's external values: 1000 is a motor that stands */

static flight policyFlight;
static bool prepared, flying, handedBack;
static flight_reason reason = FLIGHT_REASONS; /* none yet */

/* Whether nothing of Betaflight's own goes first. */
static bool allowed(void)
{
    return sensors(SENSOR_ACC) && isRxReceivingSignal() && !failsafeIsActive() && !isCrashFlipModeActive()
        && !isLaunchControlActive() && !FLIGHT_MODE(GPS_RESCUE_MODE) && !featureIsEnabled(FEATURE_3D)
        && getMotorCount() == QUAD_MOTOR_COUNT && getMixerMode() == MIXER_QUADX && !mixerConfig()->yaw_motors_reversed;
}

#ifdef NEEDS_POSITION
static bool heard; /* the GPS, lately */

/* At every turn, for what came before a flight is no news of it. Without news Betaflight goes on for 2 s by its
 * accelerometer. */
static void listen(timeUs_t now)
{
#ifdef USE_GPS
    static uint16_t stamp;
    static timeUs_t last;
    if (gpsHasNewData(&stamp)) {
        last = now;
        heard = true;
    } else if (1e-6f * (float)(uint32_t)(now - last) > LIMIT_GPS_AGE) {
        heard = false; /* and stays so: the clock wraps */
    }
#else
    (void)now;
#endif
}

/* By GPS the position is in the world of north and east: an attitude that does not know north is of another. Where both it
 * and optical flow may feed the position, nobody tells which did. */
static bool known(void)
{
#ifdef USE_GPS
    bool byGps = sensors(SENSOR_GPS);
#ifdef USE_POSITION_HOLD
    byGps = byGps && posHoldConfig()->positionSource != POSHOLD_SOURCE_OPTICALFLOW_ONLY;
#endif
    if (byGps) {
        return heard && STATE(GPS_FIX) && imuIsHeadingValid();
    }
#endif
    return true; /* by optical flow, whose own silence ends the position's validity */
}
#endif

static void look(flight_seen *seen)
{
    for (int i = 0; i < 3; ++i) {
        for (int k = 0; k < 3; ++k) {
            seen->rotation[3 * i + k] = rMat.m[i][k];
        }
        seen->rates[i] = DEGREES_TO_RADIANS(gyro.gyroADCf[i]);
        seen->position[i] = seen->velocity[i] = 0.0f;
    }
    seen->placed = false;
    seen->variance = 0.0f;
#ifdef NEEDS_POSITION
    /* East, north, up in cm. */
    const positionEstimate3d_t *estimate = positionEstimatorGetEstimate();
    /* Of a variance v in m^2 the trust is 1 / (1 + v). */
    const float trust = estimate->trustXY < estimate->trustZ ? estimate->trustXY : estimate->trustZ;
    seen->placed = estimate->isValidXY && estimate->isValidZ && trust > 0.0f && known();
    seen->variance = seen->placed ? 1.0f / trust - 1.0f : 0.0f;
    seen->position[0] = 0.01f * estimate->position.v[ENU_N];
    seen->position[1] = -0.01f * estimate->position.v[ENU_E];
    seen->position[2] = 0.01f * estimate->position.v[ENU_U];
    seen->velocity[0] = 0.01f * estimate->velocity.v[ENU_N];
    seen->velocity[1] = -0.01f * estimate->velocity.v[ENU_E];
    seen->velocity[2] = 0.01f * estimate->velocity.v[ENU_U];
#endif
    seen->volts = 0.01f * (float)getBatteryVoltage();
    seen->sticks[0] = getRcDeflection(FD_PITCH);
    seen->sticks[1] = -getRcDeflection(FD_ROLL);
    seen->sticks[2] = (rcData[THROTTLE] - 1500.0f) / 500.0f;
    seen->allowed = allowed();
}

static void command(const float *motors)
{
    const float low = motorConvertFromExternal(PWM_SLOWEST), high = getMotorOutputHigh(), idle = getMotorOutputLow();
    for (int i = 0; i < QUAD_MOTOR_COUNT; ++i) {
        const float told = low + motors[i] * (high - low);
        motor[i] = told < idle ? idle : told > high ? high : told;
    }
}

static void tell(flight_reason why)
{
    if (why != reason) {
        reason = why;
#ifdef SIMULATOR_BUILD
        printf("[%s] %s\n", policy_info()->name, flight_says(why)); /* a board has no console */
        fflush(stdout);
#endif
    }
}

static void letGo(void)
{
    flight_end(&policyFlight);
    if (flying) {
        pidResetIterm(); /* what they summed up was not theirs to correct */
#ifdef USE_RUNAWAY_TAKEOFF
        runawayTakeoffTemporaryDisable(false);
#endif
    }
    flying = false;
}

void sim2metalUpdate(timeUs_t now)
{
    static bool released; /* the switch was off since it was armed */
    released = ARMING_FLAG(ARMED) && (released || !IS_RC_MODE_ACTIVE(BOXUSER1));
    const bool wanted = released && IS_RC_MODE_ACTIVE(BOXUSER1);
#ifdef NEEDS_POSITION
    listen(now);
#endif
    if (!prepared) {
        if (!ARMING_FLAG(ARMED)) {
            flight_init(&policyFlight);
            tell(policyFlight.selftest);
            prepared = true;
        }
        return;
    }
    if (!wanted || handedBack) {
        handedBack = handedBack && wanted; /* until the switch is let go */
        letGo();
        return;
    }
    flight_seen seen;
    look(&seen);
    flight_reason why = flying ? FLIGHT_FINE : flight_begin(&policyFlight, &seen, now);
    if (why == FLIGHT_FINE) {
        why = flight_step(&policyFlight, &seen, now);
    }
    tell(why);
    if (why != FLIGHT_FINE) {
        handedBack = true;
        letGo();
        return;
    }
    flying = true;
    pidResetIterm();
#ifdef USE_RUNAWAY_TAKEOFF
    runawayTakeoffTemporaryDisable(true); /* it knows the pilot's set points, which are not flown */
#endif
    command(policyFlight.motors);
}

int sim2metalReason(void) { return (int)reason; }
