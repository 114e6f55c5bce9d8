/* A controller manager for tests: loads a controller as a shared object, obeys lines on its standard input, and counts
 * what is allocated while the controller updates, by anybody in this process. Numbers travel as hexadecimal floats. */
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>

#include "controller_interface/chainable_controller_interface.hpp"
#include "std_msgs/msg/float64_multi_array.hpp"

static long allocated;
static double slept; /* s that the computer is said to have slept */
static double busy_for; /* s for which somebody else runs before the next look at its clock */
extern "C" {
int clock_gettime(clockid_t clock, timespec *to) {
    if (clock == CLOCK_BOOTTIME && busy_for > 0.0) {
        usleep(static_cast<useconds_t>(1e6 * busy_for));
        busy_for = 0.0;
    }
    const int how = static_cast<int>(syscall(SYS_clock_gettime, clock, to));
    if (clock == CLOCK_BOOTTIME) {
        const long long all = static_cast<long long>(to->tv_sec * 1e9 + to->tv_nsec + 1e9 * slept);
        *to = {static_cast<time_t>(all / 1000000000), static_cast<long>(all % 1000000000)};
    }
    return how;
}
void *__libc_malloc(std::size_t size);
void *__libc_calloc(std::size_t count, std::size_t size);
void *__libc_realloc(void *at, std::size_t size);
void *malloc(std::size_t size) {
    ++allocated;
    return __libc_malloc(size);
}
void *calloc(std::size_t count, std::size_t size) {
    ++allocated;
    return __libc_calloc(count, size);
}
void *realloc(void *at, std::size_t size) {
    ++allocated;
    return __libc_realloc(at, size);
}
}

using controller_interface::CallbackReturn;
using controller_interface::ChainableControllerInterface;
using hardware_interface::CommandInterface;
using hardware_interface::InterfaceDescription;
using hardware_interface::InterfaceInfo;
using hardware_interface::StateInterface;

static ChainableControllerInterface *controller;
static std::map<std::string, StateInterface::SharedPtr> states;
static std::map<std::string, CommandInterface::SharedPtr> commands, references;
static std::vector<StateInterface::ConstSharedPtr> told;
static std::vector<std::string> state_order, command_order, reference_order;

static double number(const std::string &text) { return std::strtod(text.c_str(), nullptr); }

template <typename T> static std::shared_ptr<T> made(const std::string &name) {
    InterfaceInfo info{};
    const auto slash = name.rfind('/');
    info.name = name.substr(slash + 1);
    return std::make_shared<T>(InterfaceDescription(name.substr(0, slash), info));
}

static std::string ended(CallbackReturn how) {
    std::string said = how == CallbackReturn::SUCCESS ? "success " : "failure ";
    said += controller->get_node()->log;
    controller->get_node()->log.clear();
    return said;
}

static std::string configured(unsigned rate) {
    controller->update_rate = rate;
    if (controller->on_init() != CallbackReturn::SUCCESS) return "failure in on_init";
    const CallbackReturn how = controller->on_configure({});
    if (how != CallbackReturn::SUCCESS) return ended(how);
    for (const auto &one : controller->export_reference_interfaces()) {
        references[one->get_name()] = one;
        reference_order.push_back(one->get_name());
    }
    told = controller->export_state_interfaces();
    state_order = controller->state_interface_configuration().names;
    command_order = controller->command_interface_configuration().names;
    return ended(how);
}

/* `without`: the name of an interface that the hardware does not have. */
static std::string activated(const std::string &without) {
    std::vector<hardware_interface::LoanedStateInterface> read;
    std::vector<hardware_interface::LoanedCommandInterface> written;
    for (const auto &name : state_order) {
        if (!states.count(name)) states[name] = made<StateInterface>(name);
        if (name != without) read.emplace_back(states[name]);
    }
    for (const auto &name : command_order) {
        if (!commands.count(name)) commands[name] = made<CommandInterface>(name);
        if (name != without) written.emplace_back(commands[name]);
    }
    controller->assign_interfaces(std::move(written), std::move(read));
    return ended(controller->on_activate({}));
}

static std::string updated(long long now) {
    const rclcpp::Time time(now);
    const rclcpp::Duration period(0);
    const long before = allocated;
    const auto how = controller->update(time, period);
    const long during = allocated - before;
    std::string said = how == controller_interface::return_type::OK ? "OK " : "ERROR ";
    return said + std::to_string(during);
}

static void show(std::ostringstream &to, double value) {
    char text[60];
    std::snprintf(text, sizeof text, " %a", value);
    to << text;
}

int main(int count, char **arguments) {
    void *library = count > 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    const auto make = reinterpret_cast<ChainableControllerInterface *(*)()>(dlsym(library, "sim2metal_made"));
    controller = make();
    controller->node = std::make_shared<rclcpp_lifecycle::LifecycleNode>(arguments[2]);
    auto &node = *controller->node;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string verb, name, word;
        words >> verb;
        std::vector<std::string> rest;
        std::vector<double> numbers;
        if (verb == "strings" || verb == "doubles" || verb == "double") words >> name;
        while (words >> word) rest.push_back(word);
        if (verb != "strings")
            for (const auto &text : rest) numbers.push_back(number(text));
        std::ostringstream reply;
        if (verb == "strings") node.overrides[name] = rest;
        if (verb == "doubles") node.overrides[name] = numbers;
        if (verb == "double") node.overrides[name] = numbers.at(0);
        if (verb == "sleep") slept += numbers.at(0);
        if (verb == "preempt") busy_for = numbers.at(0);
        if (verb == "configure") reply << configured(static_cast<unsigned>(numbers.at(0)));
        if (verb == "activate") reply << activated(rest.empty() ? "" : rest[0]);
        if (verb == "deactivate") reply << ended(controller->on_deactivate({}));
        if (verb == "chained") controller->set_chained_mode(numbers.at(0) != 0.0);
        if (verb == "names")
            for (const auto *names : {&state_order, &command_order, &reference_order}) {
                for (const auto &one : *names) reply << one << " ";
                reply << "| ";
            }
        if (verb == "states")
            for (std::size_t i = 0; i < state_order.size(); ++i) (void)states[state_order[i]]->set_value(numbers.at(i));
        if (verb == "state") (void)states.at(rest.at(0))->set_value(numbers.at(1));
        if (verb == "busy") states.at(rest.at(0))->busy = numbers.at(1) != 0.0;
        if (verb == "unwritable") commands.at(rest.at(0))->busy = numbers.at(1) != 0.0;
        if (verb == "lead") /* as another controller does that is chained before this one */
            for (std::size_t i = 0; i < reference_order.size(); ++i)
                (void)references[reference_order[i]]->set_value(numbers.at(i));
        if (verb == "publish") {
            auto message = std::make_shared<std_msgs::msg::Float64MultiArray>();
            message->data = numbers;
            node.topics.at("~/reference")->heard(message);
            reply << node.log;
            node.log.clear();
        }
        if (verb == "update") {
            reply << updated(std::strtoll(rest.at(0).c_str(), nullptr, 10));
            for (const auto &one : command_order) show(reply, commands[one]->kept());
        }
        if (verb == "told")
            for (const auto &one : told) {
                reply << one->get_name();
                show(reply, one->kept());
                reply << " ";
            }
        std::cout << reply.str() << std::endl;
    }
    return 0;
}
