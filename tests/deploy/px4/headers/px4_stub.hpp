/* As much of PX4 as the module uses, for tests on this computer: one thread, topics in memory, a clock that is set.
 * Names and members as in PX4-Autopilot main, 2026; the bodies are ours. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t hrt_abstime;
extern hrt_abstime stub_now;
inline hrt_abstime hrt_absolute_time() { return stub_now; }

#define __EXPORT
#define PX4_OK 0
#define PX4_ERROR (-1)
extern char stub_said[4000];
void stub_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define PX4_INFO(...) stub_say(__VA_ARGS__)
#define PX4_WARN(...) stub_say(__VA_ARGS__)
#define PX4_ERR(...) stub_say(__VA_ARGS__)
#define PRINT_MODULE_DESCRIPTION(text) (void)(text)
#define PRINT_MODULE_USAGE_NAME(name, kind) (void)(name)
#define PRINT_MODULE_USAGE_COMMAND(name) (void)(name)
#define PRINT_MODULE_USAGE_DEFAULT_COMMANDS() (void)0

struct orb_metadata {
    unsigned char data[256];
    unsigned generation;
};
#define ORB_ID(name) (&orb_##name)

namespace px4
{
struct wq_config_t {
};
namespace wq_configurations
{
static constexpr wq_config_t rate_ctrl{};
}
class ScheduledWorkItem
{
public:
    ScheduledWorkItem(const char *, const wq_config_t &) {}
    virtual ~ScheduledWorkItem() = default;
    void ScheduleDelayed(uint32_t us) { stub_due = stub_now + us; }
    void ScheduleClear() { stub_due = 0; }
    hrt_abstime stub_due{0}; /* 0: nothing is scheduled */

protected:
    virtual void Run() = 0;
};
} // namespace px4

constexpr int task_id_is_work_queue = -2;
class ModuleBase
{
public:
    struct Slot {
        ModuleBase *held;
        void store(ModuleBase *item) { held = item; }
    };
    struct Descriptor {
        int (*spawn)(int, char *[]);
        int (*command)(int, char *[]);
        int (*usage)(const char *);
        Slot object{};
        int task_id{-1};
    };
    virtual ~ModuleBase() = default;
    virtual int print_status() { return 0; }
    static int main(Descriptor &desc, int argc, char *argv[]) { return desc.spawn(argc, argv); }
    bool stub_exit{false};

protected:
    bool should_exit() const { return stub_exit; }
    void exit_and_cleanup(Descriptor &desc)
    {
        desc.object.store(nullptr);
        delete this;
    }
};

namespace uORB
{
class Subscription
{
public:
    explicit Subscription(orb_metadata *topic) : _topic(topic) {}
    bool update(void *to)
    {
        if (_seen == _topic->generation) {
            return false;
        }

        _seen = _topic->generation;
        memcpy(to, _topic->data, size_of(_topic));
        return true;
    }

private:
    static size_t size_of(const orb_metadata *topic);
    orb_metadata *_topic;
    unsigned _seen{0};
};
class SubscriptionCallbackWorkItem : public Subscription
{
public:
    SubscriptionCallbackWorkItem(px4::ScheduledWorkItem *, orb_metadata *topic) : Subscription(topic) {}
    bool registerCallback() { return true; }
    void unregisterCallback() {}
};
template <typename T> class Publication
{
public:
    explicit Publication(orb_metadata *topic) : _topic(topic) {}
    bool publish(const T &message)
    {
        static_assert(sizeof(T) <= sizeof(_topic->data), "");
        memcpy(_topic->data, &message, sizeof(T));
        ++_topic->generation;
        return true;
    }

private:
    orb_metadata *_topic;
};
} // namespace uORB

struct vehicle_angular_velocity_s { uint64_t timestamp, timestamp_sample; float xyz[3]; };
struct vehicle_attitude_s { uint64_t timestamp, timestamp_sample; float q[4]; uint8_t quat_reset_counter; };
struct vehicle_local_position_s {
    uint64_t timestamp, timestamp_sample;
    bool xy_valid, z_valid, v_xy_valid, v_z_valid;
    float x, y, z, vx, vy, vz;
    uint8_t xy_reset_counter, z_reset_counter, vxy_reset_counter, vz_reset_counter;
};
struct trajectory_setpoint_s { uint64_t timestamp; float position[3], velocity[3], yaw; };
struct vehicle_status_s {
    static constexpr uint8_t ARMING_STATE_DISARMED = 1, ARMING_STATE_ARMED = 2;
    uint64_t timestamp;
    uint8_t arming_state, nav_state, system_id, component_id;
};
struct register_ext_component_request_s {
    static constexpr uint16_t LATEST_PX4_ROS2_API_VERSION = 1;
    uint64_t timestamp, request_id;
    char name[25];
    uint16_t px4_ros2_api_version;
    bool register_arming_check, register_mode;
};
struct register_ext_component_reply_s { uint64_t timestamp, request_id; bool success; int8_t arming_check_id, mode_id; };
struct unregister_ext_component_s {
    uint64_t timestamp;
    char name[25];
    int8_t arming_check_id, mode_id, mode_executor_id;
};
struct arming_check_request_s { uint64_t timestamp; uint8_t request_id; };
struct arming_check_reply_s {
    static constexpr uint8_t HEALTH_COMPONENT_INDEX_NONE = 0;
    uint64_t timestamp;
    uint8_t request_id, registration_id, health_component_index;
    bool can_arm_and_run, mode_req_angular_velocity, mode_req_attitude, mode_req_local_alt, mode_req_local_position;
};
struct setpoint_config_s {
    static constexpr uint16_t TYPE_DIRECT_ACTUATORS = 1;
    uint64_t timestamp;
    uint16_t type;
    uint8_t source_id;
    bool should_apply;
};
struct vehicle_control_mode_s {
    uint64_t timestamp;
    bool flag_control_allocation_enabled, flag_control_termination_enabled;
    uint8_t source_id;
};
struct vehicle_command_s {
    static constexpr uint16_t VEHICLE_CMD_DO_SET_MODE = 176;
    uint64_t timestamp;
    float param1, param2, param3;
    uint32_t command;
    uint8_t target_system, target_component, source_system;
    uint16_t source_component;
};
struct actuator_motors_s {
    static constexpr int NUM_CONTROLS = 12;
    uint64_t timestamp, timestamp_sample;
    float control[12];
};

#define STUB_TOPICS(X)                                                                                             \
    X(vehicle_angular_velocity, vehicle_angular_velocity_s)                                                        \
    X(vehicle_attitude, vehicle_attitude_s)                                                                        \
    X(vehicle_local_position, vehicle_local_position_s)                                                            \
    X(trajectory_setpoint, trajectory_setpoint_s)                                                                  \
    X(vehicle_status, vehicle_status_s)                                                                            \
    X(register_ext_component_request, register_ext_component_request_s)                                            \
    X(register_ext_component_reply, register_ext_component_reply_s)                                                \
    X(unregister_ext_component, unregister_ext_component_s)                                                        \
    X(arming_check_request, arming_check_request_s)                                                                \
    X(arming_check_reply, arming_check_reply_s)                                                                    \
    X(setpoint_config, setpoint_config_s)                                                                          \
    X(config_control_setpoints, vehicle_control_mode_s)                                                            \
    X(vehicle_command, vehicle_command_s)                                                                          \
    X(actuator_motors, actuator_motors_s)
#define STUB_DECLARE(name, type) extern orb_metadata orb_##name;
STUB_TOPICS(STUB_DECLARE)

inline size_t uORB::Subscription::size_of(const orb_metadata *topic)
{
#define STUB_SIZE(name, type)                                                                                      \
    if (topic == &orb_##name) {                                                                                    \
        return sizeof(type);                                                                                       \
    }
    STUB_TOPICS(STUB_SIZE)
    return 0;
}
