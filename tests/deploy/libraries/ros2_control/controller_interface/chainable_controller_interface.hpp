/* What the controller has from controller_interface, declared as there (jazzy to master of 2026): for tests. */
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hardware_interface/handle.hpp"
#include "rclcpp/rclcpp.hpp"
#include "rclcpp_lifecycle/state.hpp"

namespace controller_interface {

using CallbackReturn = rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface::CallbackReturn;

enum class return_type : std::uint8_t { OK = 0, ERROR = 1 };
enum class interface_configuration_type : std::uint8_t { ALL = 0, INDIVIDUAL = 1, NONE = 2 };

struct InterfaceConfiguration {
    interface_configuration_type type = interface_configuration_type::NONE;
    std::vector<std::string> names = {};
};

class ControllerInterfaceBase : public rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface {
public:
    virtual InterfaceConfiguration command_interface_configuration() const = 0;
    virtual InterfaceConfiguration state_interface_configuration() const = 0;
    virtual CallbackReturn on_init() = 0;
    virtual return_type update(const rclcpp::Time &time, const rclcpp::Duration &period) = 0;
    virtual void assign_interfaces(std::vector<hardware_interface::LoanedCommandInterface> &&command_interfaces,
                                   std::vector<hardware_interface::LoanedStateInterface> &&state_interfaces) {
        command_interfaces_ = std::move(command_interfaces);
        state_interfaces_ = std::move(state_interfaces);
    }
    std::shared_ptr<rclcpp_lifecycle::LifecycleNode> get_node() { return node; }
    unsigned int get_update_rate() const { return update_rate; }
    template <typename ParameterT> auto auto_declare(const std::string &name, const ParameterT &default_value) {
        if (!get_node()->has_parameter(name)) return get_node()->declare_parameter<ParameterT>(name, default_value);
        return get_node()->get_parameter(name).get_value<ParameterT>();
    }

    std::shared_ptr<rclcpp_lifecycle::LifecycleNode> node; /* the bench's */
    unsigned int update_rate = 0;

protected:
    std::vector<hardware_interface::LoanedCommandInterface> command_interfaces_;
    std::vector<hardware_interface::LoanedStateInterface> state_interfaces_;
};

class ChainableControllerInterface : public ControllerInterfaceBase {
public:
    return_type update(const rclcpp::Time &time, const rclcpp::Duration &period) final {
        if (!is_in_chained_mode()) {
            const return_type heard = update_reference_from_subscribers(time, period);
            if (heard != return_type::OK) return heard;
        }
        return update_and_write_commands(time, period);
    }
    std::vector<hardware_interface::StateInterface::ConstSharedPtr> export_state_interfaces() {
        ordered_exported_state_interfaces_ = named(on_export_state_interfaces_list());
        return {ordered_exported_state_interfaces_.begin(), ordered_exported_state_interfaces_.end()};
    }
    std::vector<hardware_interface::CommandInterface::SharedPtr> export_reference_interfaces() {
        return ordered_exported_reference_interfaces_ = named(on_export_reference_interfaces_list());
    }
    bool set_chained_mode(bool chained_mode) {
        if (!on_set_chained_mode(chained_mode)) return false;
        in_chained_mode_ = chained_mode;
        return true;
    }
    bool is_in_chained_mode() const { return in_chained_mode_; }

protected:
    virtual std::vector<hardware_interface::StateInterface::SharedPtr> on_export_state_interfaces_list() { return {}; }
    virtual std::vector<hardware_interface::CommandInterface::SharedPtr> on_export_reference_interfaces_list() {
        return {};
    }
    virtual bool on_set_chained_mode(bool) { return true; }
    virtual return_type update_reference_from_subscribers(const rclcpp::Time &time, const rclcpp::Duration &period) = 0;
    virtual return_type update_and_write_commands(const rclcpp::Time &time, const rclcpp::Duration &period) = 0;

    std::vector<hardware_interface::StateInterface::SharedPtr> ordered_exported_state_interfaces_;
    std::vector<hardware_interface::CommandInterface::SharedPtr> ordered_exported_reference_interfaces_;

private:
    /* As the real one: the names of a controller's interfaces begin with its own. */
    template <typename T> std::vector<T> named(std::vector<T> made) {
        for (const auto &one : made)
            if (one->get_prefix_name().find(get_node()->get_name()) != 0) throw std::runtime_error(one->get_name());
        return made;
    }
    bool in_chained_mode_ = false;
};

} // namespace controller_interface
