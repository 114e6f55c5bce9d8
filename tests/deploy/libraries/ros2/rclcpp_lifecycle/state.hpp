#pragma once

namespace rclcpp_lifecycle {

class State {};

namespace node_interfaces {

class LifecycleNodeInterface {
public:
    enum class CallbackReturn { SUCCESS = 97, FAILURE = 98, ERROR = 99 };
    virtual ~LifecycleNodeInterface() = default;
    virtual CallbackReturn on_configure(const State &) { return CallbackReturn::SUCCESS; }
    virtual CallbackReturn on_activate(const State &) { return CallbackReturn::SUCCESS; }
    virtual CallbackReturn on_deactivate(const State &) { return CallbackReturn::SUCCESS; }
};

} // namespace node_interfaces
} // namespace rclcpp_lifecycle
