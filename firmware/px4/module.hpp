/* A policy as a flight mode of PX4: made for main of 2026 (ModuleBase with a descriptor). */
#pragma once

#include <drivers/drv_hrt.h>
#include <px4_platform_common/defines.h>
#include <px4_platform_common/log.h>
#include <px4_platform_common/module.h>
#include <px4_platform_common/px4_work_queue/ScheduledWorkItem.hpp>

#include <uORB/Publication.hpp>
#include <uORB/Subscription.hpp>
#include <uORB/SubscriptionCallback.hpp>
#include <uORB/topics/actuator_motors.h>
#include <uORB/topics/arming_check_reply.h>
#include <uORB/topics/arming_check_request.h>
#include <uORB/topics/register_ext_component_reply.h>
#include <uORB/topics/register_ext_component_request.h>
#if __has_include(<uORB/topics/setpoint_config.h>)
#include <uORB/topics/setpoint_config.h>
#define HAS_SETPOINT_CONFIG
#endif
#include <uORB/topics/trajectory_setpoint.h>
#include <uORB/topics/unregister_ext_component.h>
#include <uORB/topics/vehicle_angular_velocity.h>
#include <uORB/topics/vehicle_attitude.h>
#include <uORB/topics/vehicle_command.h>
#include <uORB/topics/vehicle_control_mode.h>
#include <uORB/topics/vehicle_local_position.h>
#include <uORB/topics/vehicle_status.h>

extern "C" {
#include "flight.h"
}

class Sim2metalPolicy : public ModuleBase, public px4::ScheduledWorkItem
{
public:
    static ModuleBase::Descriptor desc;

    Sim2metalPolicy();
    ~Sim2metalPolicy() override = default;

    static int task_spawn(int argc, char *argv[]);
    static int custom_command(int argc, char *argv[]);
    static int print_usage(const char *reason = nullptr);

    bool init();
    int print_status() override;

private:
    static constexpr uint64_t REQUEST = 0x73696d32u; /* ours, of the mode's registration */
    static constexpr hrt_abstime AGAIN = 50000;      /* us until hand-back is asked for again */
    static constexpr hrt_abstime HOLD = 200000;      /* us that hold is asked for; then land */
    static constexpr hrt_abstime ENROLL = 1000000;   /* us until the mode is asked for again */
    static constexpr uint32_t BACKUP = 10000;        /* us until it runs without a sample of the gyroscope */

    void Run() override;
    void listen(hrt_abstime now);
    void enroll(hrt_abstime now);
    void answer();
    void configure(hrt_abstime now);
    void follow(hrt_abstime now);
    void enter(hrt_abstime now);
    void fly(hrt_abstime now);
    void hand_back(hrt_abstime now, flight_reason reason);
    void publish(hrt_abstime now);

    flight _flight{};
    flight_seen _seen{};
    flight_reason _reason{FLIGHT_FINE}; /* why it handed back; until the mode is left */
    hrt_abstime _first{0}, _requested{0}; /* when the mode was asked for, first and last; 0: not yet */
    hrt_abstime _handed{0}, _asked{0};    /* when it handed back, and asked for that last; 0: not yet */
    bool _active{false}, _flying{false};  /* our mode is chosen; and armed */
    int _mode{-1}, _check{-1};
    uint8_t _system{1}, _component{1};

    uORB::SubscriptionCallbackWorkItem _rates_sub{this, ORB_ID(vehicle_angular_velocity)};
    uORB::Subscription _position_sub{ORB_ID(vehicle_local_position)};
    uORB::Subscription _attitude_sub{ORB_ID(vehicle_attitude)};
    uORB::Subscription _setpoint_sub{ORB_ID(trajectory_setpoint)};
    uORB::Subscription _status_sub{ORB_ID(vehicle_status)};
    uORB::Subscription _reply_sub{ORB_ID(register_ext_component_reply)};
    uORB::Subscription _check_sub{ORB_ID(arming_check_request)};
    uORB::Publication<actuator_motors_s> _motors_pub{ORB_ID(actuator_motors)};
    uORB::Publication<arming_check_reply_s> _check_pub{ORB_ID(arming_check_reply)};
    uORB::Publication<register_ext_component_request_s> _request_pub{ORB_ID(register_ext_component_request)};
    uORB::Publication<unregister_ext_component_s> _leave_pub{ORB_ID(unregister_ext_component)};
    uORB::Publication<vehicle_command_s> _command_pub{ORB_ID(vehicle_command)};
#ifdef HAS_SETPOINT_CONFIG
    uORB::Publication<setpoint_config_s> _config_pub{ORB_ID(setpoint_config)};
#else
    uORB::Publication<vehicle_control_mode_s> _config_pub{ORB_ID(config_control_setpoints)};
#endif
};
