#include "module.hpp"

#include <math.h>
#include <string.h>

#define MODE_NAME "Policy"

ModuleBase::Descriptor Sim2metalPolicy::desc{task_spawn, custom_command, print_usage};

namespace
{
constexpr float HOLD_MAIN = 4.0f, HOLD_SUB = 3.0f, LAND_SUB = 6.0f; /* px4_custom_mode.h: auto, loiter, land */

void copy(float *to, const float *from, int n)
{
    for (int i = 0; i < n; ++i) {
        to[i] = from[i];
    }
}
} // namespace

Sim2metalPolicy::Sim2metalPolicy() : ScheduledWorkItem(MODULE_NAME, px4::wq_configurations::rate_ctrl) {}

bool Sim2metalPolicy::init()
{
    flight_init(&_flight);

    if (_flight.selftest != FLIGHT_FINE) {
        PX4_ERR("%s: %s", policy_info()->name, flight_says(_flight.selftest));
        return false;
    }

    if (!_rates_sub.registerCallback()) {
        PX4_ERR("callback registration failed");
        return false;
    }

    ScheduleDelayed(BACKUP);
    return true;
}

/* What has arrived since the last call, and when. */
void Sim2metalPolicy::listen(hrt_abstime now)
{
    vehicle_angular_velocity_s rates{};

    if (_rates_sub.update(&rates)) {
        copy(_seen.rates, rates.xyz, 3);
        _seen.rates_at = now;
    }

    vehicle_local_position_s position{};

    if (_position_sub.update(&position) && position.xy_valid && position.z_valid && position.v_xy_valid
        && position.v_z_valid) {
        const float place[3] = {position.x, position.y, position.z}, speed[3] = {position.vx, position.vy, position.vz};
        copy(_seen.position, place, 3);
        copy(_seen.velocity, speed, 3);
        _seen.resets[0] = position.xy_reset_counter;
        _seen.resets[1] = position.z_reset_counter;
        _seen.resets[2] = position.vxy_reset_counter;
        _seen.resets[3] = position.vz_reset_counter;
        _seen.position_at = now;
    }

    vehicle_attitude_s attitude{};

    if (_attitude_sub.update(&attitude)) {
        copy(_seen.attitude, attitude.q, 4);
        _seen.resets[4] = attitude.quat_reset_counter;
        _seen.attitude_at = now;
    }

    trajectory_setpoint_s setpoint{};

    if (_setpoint_sub.update(&setpoint)) {
        copy(_seen.target, setpoint.position, 3);
        copy(_seen.target_velocity, setpoint.velocity, 3);
        _seen.target_at = now;
    }
}

/* The mode, with the commander: asked for again while it has none, for the commander may start later than we do. */
void Sim2metalPolicy::enroll(hrt_abstime now)
{
    if (_mode >= 0) {
        return;
    }

    register_ext_component_reply_s reply{};

    /* An earlier start of this module may have left one behind. */
    if (_reply_sub.update(&reply) && reply.request_id == REQUEST && _first != 0 && reply.timestamp >= _first) {
        if (reply.success) {
            _mode = reply.mode_id;
            _check = reply.arming_check_id;
            PX4_INFO("%s: mode %d", policy_info()->name, _mode);
            return;
        }

        PX4_ERR("%s: the commander refused the mode", policy_info()->name);
    }

    if (_requested == 0 || now - _requested >= ENROLL) {
        register_ext_component_request_s request{};
        request.timestamp = now;
        strncpy(request.name, MODE_NAME, sizeof(request.name) - 1);
        request.request_id = REQUEST;
        request.px4_ros2_api_version = register_ext_component_request_s::LATEST_PX4_ROS2_API_VERSION;
        request.register_arming_check = true;
        request.register_mode = true;
        _request_pub.publish(request);
        _requested = now;
        _first = _first == 0 ? now : _first;
    }
}

/* Without an answer the commander takes the mode away: so it learns of a module that hangs, too. */
void Sim2metalPolicy::answer()
{
    arming_check_request_s request{};

    if (!_check_sub.update(&request)) {
        return;
    }

    arming_check_reply_s reply{};
    reply.timestamp = hrt_absolute_time();
    reply.request_id = request.request_id;
    reply.registration_id = static_cast<uint8_t>(_check);
    reply.health_component_index = arming_check_reply_s::HEALTH_COMPONENT_INDEX_NONE;
    reply.can_arm_and_run = _reason == FLIGHT_FINE && flight_ready(&_flight, &_seen, reply.timestamp) == FLIGHT_FINE;
    reply.mode_req_angular_velocity = true;
    reply.mode_req_attitude = true;
    reply.mode_req_local_position = true;
    reply.mode_req_local_alt = true;
    _check_pub.publish(reply);
}

/* The motors are ours in this mode. */
void Sim2metalPolicy::configure(hrt_abstime now)
{
#ifdef HAS_SETPOINT_CONFIG
    setpoint_config_s config{};
    config.type = setpoint_config_s::TYPE_DIRECT_ACTUATORS;
    config.should_apply = true;
#else
    vehicle_control_mode_s config{};
    config.flag_control_termination_enabled = true; /* all other controllers, and the allocation, are off */
#endif
    config.timestamp = now;
    config.source_id = static_cast<uint8_t>(_mode);
    _config_pub.publish(config);
}

void Sim2metalPolicy::enter(hrt_abstime now)
{
    _reason = flight_begin(&_flight, &_seen, now);
    _handed = _asked = 0;

    if (_reason == FLIGHT_FINE) {
        configure(now);
    }
}

/* To PX4's own controllers: it holds its place; or lands, for hold is refused without a global position.
 * Until the commander follows, the motors keep the last good command. */
void Sim2metalPolicy::hand_back(hrt_abstime now, flight_reason reason)
{
    if (_handed == 0) {
        PX4_ERR("%s: handed back: %s", policy_info()->name, flight_says(reason));
        _handed = now;
    }

    if (_asked == 0 || now - _asked >= AGAIN) {
        vehicle_command_s command{};
        command.timestamp = now;
        command.command = vehicle_command_s::VEHICLE_CMD_DO_SET_MODE;
        command.param1 = 1.0f; /* as the autopilot counts modes */
        command.param2 = HOLD_MAIN;
        command.param3 = now - _handed < HOLD ? HOLD_SUB : LAND_SUB;
        command.target_system = command.source_system = _system;
        command.target_component = command.source_component = _component;
        _command_pub.publish(command);
        _asked = now;
    }
}

void Sim2metalPolicy::publish(hrt_abstime now)
{
    actuator_motors_s motors{};
    motors.timestamp = now;
    motors.timestamp_sample = now;

    for (int i = 0; i < actuator_motors_s::NUM_CONTROLS; ++i) {
        motors.control[i] = i < 4 ? _flight.motors[i] : NAN;
    }

    _motors_pub.publish(motors);
}

void Sim2metalPolicy::fly(hrt_abstime now)
{
    if (_reason == FLIGHT_FINE) {
        _reason = flight_step(&_flight, &_seen, now);
    }

    if (_reason != FLIGHT_FINE) {
        hand_back(now, _reason);
    }

    if (_flight.stepped) {
        publish(now);
    }
}

/* A flight is while it is armed in our mode. */
void Sim2metalPolicy::follow(hrt_abstime now)
{
    vehicle_status_s status{};

    if (!_status_sub.update(&status)) {
        return;
    }

    _system = status.system_id;
    _component = status.component_id;
    const bool active = status.nav_state == _mode;
    const bool flying = active && status.arming_state == vehicle_status_s::ARMING_STATE_ARMED;

    if (active && !_active) {
        _seen.target_at = 0; /* it was for the mode before */

        if (!flying) {
            configure(now);
        }
    }

    if (flying && !_flying) {
        enter(now);

    } else if (!flying) {
        _reason = FLIGHT_FINE;
        flight_end(&_flight);
    }

    _active = active;
    _flying = flying;
}

void Sim2metalPolicy::Run()
{
    if (should_exit()) {
        _rates_sub.unregisterCallback();
        ScheduleClear();

        if (_mode >= 0) {
            unregister_ext_component_s leave{};
            leave.timestamp = hrt_absolute_time();
            strncpy(leave.name, MODE_NAME, sizeof(leave.name) - 1);
            leave.arming_check_id = static_cast<int8_t>(_check);
            leave.mode_id = static_cast<int8_t>(_mode);
            leave.mode_executor_id = -1;
            _leave_pub.publish(leave);
        }

        exit_and_cleanup(desc);
        return;
    }

    const hrt_abstime now = hrt_absolute_time();
    listen(now);
    enroll(now);

    if (_mode >= 0) {
        answer();
        follow(now);

        if (_flying) {
            fly(now);
        }
    }

    ScheduleDelayed(BACKUP); /* without the gyroscope nothing else would call */
}

int Sim2metalPolicy::task_spawn(int, char *[])
{
    Sim2metalPolicy *instance = new Sim2metalPolicy();

    if (instance) {
        desc.object.store(instance);
        desc.task_id = task_id_is_work_queue;

        if (instance->init()) {
            return PX4_OK;
        }

    } else {
        PX4_ERR("alloc failed");
    }

    delete instance;
    desc.object.store(nullptr);
    desc.task_id = -1;
    return PX4_ERROR;
}

int Sim2metalPolicy::print_status()
{
    PX4_INFO("%s, sha256 %.16s: mode %d, %s", policy_info()->name, policy_info()->sha256, _mode, flight_says(_reason));
    return 0;
}

int Sim2metalPolicy::custom_command(int, char *[]) { return print_usage("unknown command"); }

int Sim2metalPolicy::print_usage(const char *reason)
{
    if (reason) {
        PX4_WARN("%s", reason);
    }

    PRINT_MODULE_DESCRIPTION("A policy as a flight mode, from the estimate to the motors.");
    PRINT_MODULE_USAGE_NAME("sim2metal_policy", "controller");
    PRINT_MODULE_USAGE_COMMAND("start");
    PRINT_MODULE_USAGE_DEFAULT_COMMANDS();
    return 0;
}

extern "C" __EXPORT int sim2metal_policy_main(int argc, char *argv[])
{
    return ModuleBase::main(Sim2metalPolicy::desc, argc, argv);
}
