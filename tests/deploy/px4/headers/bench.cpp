/* Runs the module as PX4 would, for a test in Python. */
#include <stdarg.h>

#define protected public /* Run is the scheduler's to call */
#define private public
#include "module.hpp"
#undef private
#undef protected

hrt_abstime stub_now;
char stub_said[4000];
void stub_say(const char *format, ...)
{
    const size_t length = strlen(stub_said);
    va_list values;
    va_start(values, format);
    vsnprintf(stub_said + length, sizeof(stub_said) - length - 1, format, values);
    va_end(values);
    strcat(stub_said, "\n");
}
#define STUB_DEFINE(name, type) orb_metadata orb_##name;
STUB_TOPICS(STUB_DEFINE)

extern "C" int sim2metal_policy_main(int argc, char *argv[]);

namespace
{
template <typename T> void put(orb_metadata &topic, const T &message)
{
    memcpy(topic.data, &message, sizeof(T));
    ++topic.generation;
}
template <typename T> T get(const orb_metadata &topic)
{
    T message;
    memcpy(&message, topic.data, sizeof(T));
    return message;
}
uint8_t resets[5];
Sim2metalPolicy *module() { return static_cast<Sim2metalPolicy *>(Sim2metalPolicy::desc.object.held); }
} // namespace

extern "C" {
int bench_start() { return sim2metal_policy_main(0, nullptr); }

const char *bench_said() { return stub_said; }

/* position, velocity, quaternion, rates: 13 numbers in PX4's axes; `hears`: bits of what is heard this time. As PX4's
 * work queue does, it calls only by the gyroscope or when that was scheduled. */
void bench_tick(uint64_t now, const float *state, int hears)
{
    stub_now = now;
    const float *p = state, *v = state + 3, *q = state + 6, *w = state + 10;
    if (hears & 1) put(orb_vehicle_local_position, vehicle_local_position_s{now, now, true, true, true, true, p[0], p[1], p[2], v[0], v[1], v[2], resets[0], resets[1], resets[2], resets[3]});
    if (hears & 2) put(orb_vehicle_attitude, vehicle_attitude_s{now, now, {q[0], q[1], q[2], q[3]}, resets[4]});
    if (hears & 4) put(orb_vehicle_angular_velocity, vehicle_angular_velocity_s{now, now, {w[0], w[1], w[2]}});
    const hrt_abstime due = module()->stub_due;
    if ((hears & 4) || (due != 0 && now >= due)) {
        module()->stub_due = 0;
        module()->Run();
    }
}

void bench_register(int mode) { put(orb_register_ext_component_reply, register_ext_component_reply_s{stub_now, get<register_ext_component_request_s>(orb_register_ext_component_request).request_id, true, 3, static_cast<int8_t>(mode)}); }

void bench_refuse() { put(orb_register_ext_component_reply, register_ext_component_reply_s{stub_now, get<register_ext_component_request_s>(orb_register_ext_component_request).request_id, false, -1, -1}); }

/* A reply that an earlier start of the module left behind. */
void bench_stale_reply(uint64_t then, uint64_t request) { put(orb_register_ext_component_reply, register_ext_component_reply_s{then, request, true, 9, 29}); }

void bench_reset(int counter) { ++resets[counter]; }

void bench_mode(int mode, int armed) { put(orb_vehicle_status, vehicle_status_s{stub_now, armed ? vehicle_status_s::ARMING_STATE_ARMED : vehicle_status_s::ARMING_STATE_DISARMED, static_cast<uint8_t>(mode), 1, 1}); }

void bench_target(const float *t) { put(orb_trajectory_setpoint, trajectory_setpoint_s{stub_now, {t[0], t[1], t[2]}, {t[3], t[4], t[5]}, 0.0f}); }

int bench_check() /* whether the commander may run the mode */
{
    put(orb_arming_check_request, arming_check_request_s{stub_now, 7});
    module()->Run();
    const arming_check_reply_s reply = get<arming_check_reply_s>(orb_arming_check_reply);
    return reply.request_id == 7 && reply.registration_id == 3 && reply.can_arm_and_run;
}

void bench_motors(float *to) { memcpy(to, get<actuator_motors_s>(orb_actuator_motors).control, 12 * sizeof(float)); }

/* How often: motors, commands, the mode's configurations, registrations, departures were published. */
void bench_counts(int *to)
{
    to[0] = static_cast<int>(orb_actuator_motors.generation);
    to[1] = static_cast<int>(orb_vehicle_command.generation);
    to[2] = static_cast<int>(orb_setpoint_config.generation + orb_config_control_setpoints.generation);
    to[3] = static_cast<int>(orb_register_ext_component_request.generation);
    to[4] = static_cast<int>(orb_unregister_ext_component.generation);
}

void bench_command(float *to)
{
    const vehicle_command_s c = get<vehicle_command_s>(orb_vehicle_command);
    to[0] = static_cast<float>(c.command);
    to[1] = c.param1;
    to[2] = c.param2;
    to[3] = c.param3;
}

void bench_stop()
{
    module()->stub_exit = true;
    module()->Run();
}
}
