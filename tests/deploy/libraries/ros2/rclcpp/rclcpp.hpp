/* What the controller uses of rclcpp, declared as there (rolling, 2026): for tests. Parameters come from the bench, the
 * log is kept, and a subscription is called by hand. */
#pragma once

#include <cxxabi.h> /* this one, chrono, cstdlib and optional: the headers of ros2_control take them from here */

#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace rclcpp {

class Time {
public:
    explicit Time(std::int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
    std::int64_t nanoseconds() const { return nanoseconds_; }
    double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_); }

private:
    std::int64_t nanoseconds_;
};

class Duration {
public:
    explicit Duration(std::int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
    double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_); }

private:
    std::int64_t nanoseconds_;
};

class Logger {
public:
    explicit Logger(std::string *kept) : kept_(kept) {}
    __attribute__((format(printf, 3, 4))) void say(const char *level, const char *format, ...) const {
        char text[1000];
        va_list values;
        va_start(values, format);
        std::vsnprintf(text, sizeof text, format, values);
        va_end(values);
        *kept_ += std::string(level) + ": " + text + "; ";
    }

private:
    std::string *kept_;
};

inline Logger get_logger(const std::string &) {
    static std::string kept;
    return Logger(&kept);
}

class NodeOptions {
public:
    NodeOptions &enable_logger_service(bool) { return *this; }
};

class QoS {};
class SystemDefaultsQoS : public QoS {};

using Value = std::variant<double, std::vector<double>, std::vector<std::string>>;

class Parameter {
public:
    explicit Parameter(const Value &value) : value_(value) {}
    double as_double() const { return std::get<double>(value_); }
    std::vector<double> as_double_array() const { return std::get<std::vector<double>>(value_); }
    std::vector<std::string> as_string_array() const { return std::get<std::vector<std::string>>(value_); }
    template <typename T> T get_value() const { return std::get<T>(value_); }

private:
    Value value_;
};

template <typename Message> class Subscription {
public:
    using SharedPtr = std::shared_ptr<Subscription>;
    std::function<void(std::shared_ptr<const Message>)> heard;
};

} // namespace rclcpp

#define RCLCPP_DEBUG(logger, ...) (logger).say("debug", __VA_ARGS__)
#define RCLCPP_WARN_EXPRESSION(logger, condition, ...) ((condition) ? (logger).say("warning", __VA_ARGS__) : (void)0)
#define RCLCPP_INFO(logger, ...) (logger).say("info", __VA_ARGS__)
#define RCLCPP_WARN(logger, ...) (logger).say("warning", __VA_ARGS__)
#define RCLCPP_ERROR(logger, ...) (logger).say("error", __VA_ARGS__)

namespace std_msgs::msg {
struct Float64MultiArray;
}

namespace rclcpp_lifecycle {

class LifecycleNode {
public:
    explicit LifecycleNode(std::string name) : name_(std::move(name)) {}
    const char *get_name() const { return name_.c_str(); }
    rclcpp::Logger get_logger() { return rclcpp::Logger(&log); }
    bool has_parameter(const std::string &name) const { return declared_.count(name) > 0; }
    template <typename T> T declare_parameter(const std::string &name, const T &usual) {
        const auto given = overrides.find(name);
        declared_.emplace(name, given == overrides.end() ? rclcpp::Value(usual) : given->second);
        return std::get<T>(declared_.at(name));
    }
    rclcpp::Parameter get_parameter(const std::string &name) const {
        if (!has_parameter(name)) throw std::runtime_error("not declared: " + name);
        return rclcpp::Parameter(declared_.at(name));
    }
    template <typename Message, typename Callback>
    typename rclcpp::Subscription<Message>::SharedPtr create_subscription(const std::string &topic, const rclcpp::QoS &,
                                                                          Callback &&callback) {
        auto made = std::make_shared<rclcpp::Subscription<Message>>();
        made->heard = std::forward<Callback>(callback);
        topics[topic] = made;
        return made;
    }

    std::string log;
    std::map<std::string, rclcpp::Value> overrides;
    std::map<std::string, std::shared_ptr<rclcpp::Subscription<std_msgs::msg::Float64MultiArray>>> topics;

private:
    std::string name_;
    std::map<std::string, rclcpp::Value> declared_;
};

} // namespace rclcpp_lifecycle
