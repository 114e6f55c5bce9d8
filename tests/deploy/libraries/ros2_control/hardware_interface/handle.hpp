/* What the controller uses of hardware_interface, declared as there (kilted and master of 2026): for tests. A handle
 * that is `busy` is locked by somebody else. */
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace hardware_interface {

struct InterfaceInfo {
    std::string name;
    std::string data_type = "double";
};

struct InterfaceDescription {
    InterfaceDescription(const std::string &prefix, const InterfaceInfo &info)
        : prefix_name(prefix), interface_info(info), interface_name(prefix + "/" + info.name) {}
    std::string prefix_name;
    InterfaceInfo interface_info;
    std::string interface_name;
};

class Handle {
public:
    explicit Handle(const InterfaceDescription &of) : name_(of.interface_name), prefix_(of.prefix_name) {}
    const std::string &get_name() const { return name_; }
    const std::string &get_prefix_name() const { return prefix_; }
    template <typename T = double> [[nodiscard]] std::optional<T> get_optional() const {
        return busy ? std::nullopt : std::optional<T>(value_);
    }
    template <typename T> [[nodiscard]] bool set_value(const T &value) {
        if (!busy) value_ = value;
        return !busy;
    }
    double kept() const { return value_; } /* for the bench: whoever holds it */
    bool busy = false;

private:
    std::string name_, prefix_;
    double value_ = 0.0;
};

class StateInterface : public Handle {
public:
    using Handle::Handle;
    using SharedPtr = std::shared_ptr<StateInterface>;
    using ConstSharedPtr = std::shared_ptr<const StateInterface>;
};

class CommandInterface : public Handle {
public:
    using Handle::Handle;
    using SharedPtr = std::shared_ptr<CommandInterface>;
};

class LoanedStateInterface {
public:
    explicit LoanedStateInterface(StateInterface::ConstSharedPtr of) : of_(std::move(of)) {}
    LoanedStateInterface(LoanedStateInterface &&other) = default;
    LoanedStateInterface(const LoanedStateInterface &other) = delete;
    const std::string &get_name() const { return of_->get_name(); }
    template <typename T = double> [[nodiscard]] std::optional<T> get_optional(unsigned int = 10) const {
        return of_->get_optional<T>();
    }

private:
    StateInterface::ConstSharedPtr of_;
};

class LoanedCommandInterface {
public:
    explicit LoanedCommandInterface(CommandInterface::SharedPtr of) : of_(std::move(of)) {}
    LoanedCommandInterface(LoanedCommandInterface &&other) = default;
    LoanedCommandInterface(const LoanedCommandInterface &other) = delete;
    const std::string &get_name() const { return of_->get_name(); }
    template <typename T> [[nodiscard]] bool set_value(const T &value, unsigned int = 10) {
        return of_->set_value(value);
    }

private:
    CommandInterface::SharedPtr of_;
};

} // namespace hardware_interface
