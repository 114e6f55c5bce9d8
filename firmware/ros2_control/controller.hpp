/* A policy as a chainable controller of ros2_control: written by `python -m deploy.export target=ros2_control`. */
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "controller_interface/chainable_controller_interface.hpp"
#include "rclcpp/rclcpp.hpp"
#include "rclcpp_lifecycle/state.hpp"
#include "std_msgs/msg/float64_multi_array.hpp"

#include "guard.hpp"
#include "interfaces.hpp"

namespace policy_controller {

class PolicyController : public controller_interface::ChainableControllerInterface {
public:
    controller_interface::CallbackReturn on_init() override;
    controller_interface::CallbackReturn on_configure(const rclcpp_lifecycle::State &previous_state) override;
    controller_interface::CallbackReturn on_activate(const rclcpp_lifecycle::State &previous_state) override;
    controller_interface::CallbackReturn on_deactivate(const rclcpp_lifecycle::State &previous_state) override;
    controller_interface::InterfaceConfiguration command_interface_configuration() const override;
    controller_interface::InterfaceConfiguration state_interface_configuration() const override;

protected:
    std::vector<hardware_interface::CommandInterface::SharedPtr> on_export_reference_interfaces_list() override;
    std::vector<hardware_interface::StateInterface::SharedPtr> on_export_state_interfaces_list() override;
    bool on_set_chained_mode(bool chained_mode) override;
    controller_interface::return_type update_reference_from_subscribers(const rclcpp::Time &time,
                                                                        const rclcpp::Duration &period) override;
    controller_interface::return_type update_and_write_commands(const rclcpp::Time &time,
                                                                const rclcpp::Duration &period) override;

private:
    using Message = std_msgs::msg::Float64MultiArray;
    enum class Form { plain, quaternion, gravity, sum, reference, last }; /* how a signal is made of interfaces */
    struct Input {
        Form form = Form::plain;
        std::vector<std::size_t> places; /* of state interfaces in `raw_`, or of references in `told_` */
    };

    bool configure_signals();
    bool configure_commands();
    bool configure_times();
    void take_references(double now);
    void read_states(double now);
    void assemble(double now);
    bool all_sound() const;
    void step(double now);
    void write();
    void report(double since);

    Guard guard_;
    policy_state state_{};
    policy_signals seen_{};
    policy_commands wanted_{};

    std::vector<std::string> state_names_, command_names_;
    std::array<Input, SIGNALS> inputs_;
    std::array<std::vector<std::size_t>, COMMANDS> outputs_; /* places in `command_names_` */
    std::array<double, COMMAND_NUMBERS> offset_{};

    std::vector<double> raw_, read_at_, changed_at_; /* of the state interfaces: value, and when (s) */
    std::vector<std::string> reference_names_;
    std::vector<double> told_, told_at_; /* of the references */
    std::array<float, NUMBERS> values_{};
    std::array<double, SIGNALS> ages_{};

    std::mutex mutex_; /* of what the subscription heard */
    std::vector<double> heard_;
    bool heard_anything_ = false;
    rclcpp::Subscription<Message>::SharedPtr subscription_;

    double period_ = 0.0, patience_ = 0.0, frozen_after_ = 0.0; /* s */
    unsigned every_ = 1, turn_ = 0;                              /* updates to a step of the policy */
    std::int64_t began_ = 0;                                     /* ns: the first update since it was activated */
    bool begun_ = false, flying_ = false;                        /* updates have come; all signals were there once */
    double slept_before_ = 0.0, slept_ = 0.0;                    /* s of sleep: by then, and so far; NaN: unknown */
    double stepped_at_ = 0.0, took_ = 0.0, longest_ = 0.0;       /* s: the last step, how long one takes */
    unsigned long steps_ = 0, unwritten_ = 0;
    unsigned locked_ = 0; /* updates in a row in which somebody else held a command interface */
};

} // namespace policy_controller
