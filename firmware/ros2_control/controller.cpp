#include "controller.hpp"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <utility>

#include "pluginlib/class_list_macros.hpp"

namespace policy_controller {
namespace {

using controller_interface::CallbackReturn;
using controller_interface::return_type;

constexpr double NOTHING = std::numeric_limits<double>::quiet_NaN();
constexpr double LATE = 1.5; /* control periods between two steps */
constexpr double NAP = 0.1;  /* s: less is no sleep, but the time between two looks at a clock */
constexpr double LOOK = 1e-3; /* s that such looks may take: with more, somebody else ran in between */
const char *const REPORTED[] = {"reason", "held", "late", "steps", "period", "execution_time", "longest_execution_time"};

static_assert(sizeof(policy_signals) == READ_NUMBERS * sizeof(float), "signals are floats, in one row");
static_assert(sizeof(policy_commands) == COMMAND_NUMBERS * sizeof(float), "commands are floats, in one row");

/* s from one to another. */
double between(const std::timespec &from, const std::timespec &to) {
    return static_cast<double>(to.tv_sec - from.tv_sec) + 1e-9 * static_cast<double>(to.tv_nsec - from.tv_nsec);
}

/* s that this computer has slept; NaN where it was busy elsewhere between two looks at its clocks: as if it had slept.
 * The manager's clock may stand still meanwhile, and all would look as fresh as before. */
double asleep() {
#ifdef CLOCK_BOOTTIME
    std::timespec before{}, all{}, after{};
    (void)clock_gettime(CLOCK_MONOTONIC, &before);
    (void)clock_gettime(CLOCK_BOOTTIME, &all);
    (void)clock_gettime(CLOCK_MONOTONIC, &after); /* it stands still in a sleep */
    return between(before, after) < LOOK ? between(before, all) : NOTHING;
#else
    return 0.0;
#endif
}

std::size_t at(int i) { return static_cast<std::size_t>(i); }

std::vector<std::string> listed(const char *const *names, int count) { return {names, names + count}; }

std::string joined(const char *group, const char *name) { return std::string(group) + "." + name; }

/* Where a name stands in a list; it is added when it is not there. */
std::size_t place_of(std::vector<std::string> &names, const std::string &name) {
    const auto found = std::find(names.begin(), names.end(), name);
    const auto place = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) names.push_back(name);
    return place;
}

/* The name of element `i` of a set point: target_position.x, target_preview.4, target_turn_rate. */
std::string element(const Signal &signal, int i) {
    static const char *const axes[] = {"x", "y", "z"};
    if (signal.size == 1) return signal.name;
    return joined(signal.name, signal.size <= 3 ? axes[i] : std::to_string(i).c_str());
}

/* Body to world, row-major, of a quaternion x, y, z, w of any length. */
void rotation_of(const double *q, float *to) {
    const double x = q[0], y = q[1], z = q[2], w = q[3], s = 2.0 / (x * x + y * y + z * z + w * w);
    const double rows[9] = {1.0 - s * (y * y + z * z), s * (x * y - w * z), s * (x * z + w * y),
                            s * (x * y + w * z), 1.0 - s * (x * x + z * z), s * (y * z - w * x),
                            s * (x * z - w * y), s * (y * z + w * x), 1.0 - s * (x * x + y * y)};
    for (int i = 0; i < 9; ++i) to[i] = static_cast<float>(rows[i]);
}

} // namespace

CallbackReturn PolicyController::on_init() {
    for (const Signal &signal : signals) {
        auto_declare<std::vector<std::string>>(joined("state_interfaces", signal.name),
                                               listed(signal.interfaces, signal.count));
        auto_declare<double>(joined("max_age", signal.name), signal.max_age);
    }
    for (const Command &command : commands) {
        auto_declare<std::vector<std::string>>(joined("command_interfaces", command.name),
                                               listed(command.interfaces, command.count));
        auto_declare<std::vector<double>>(joined("offset", command.name), {});
        auto_declare<std::vector<double>>(joined("limits", command.name), {command.low, command.high});
    }
    auto_declare<double>("patience", 5.0);
    auto_declare<double>("frozen_after", 0.0);
    return CallbackReturn::SUCCESS;
}

bool PolicyController::configure_signals() {
    state_names_.clear();
    reference_names_.clear();
    for (int s = 0; s < SIGNALS; ++s) {
        const Signal &signal = signals[s];
        Input &input = inputs_[at(s)] = Input{};
        const auto names = get_node()->get_parameter(joined("state_interfaces", signal.name)).as_string_array();
        const int count = static_cast<int>(names.size());
        const bool turns = count == 4 && (signal.size == 9 || (signal.size == 3 && GRAVITY == s));
        if (count == 0 && signal.source == Source::reference) {
            input.form = Form::reference;
            for (int i = 0; i < signal.size; ++i) {
                input.places.push_back(reference_names_.size());
                reference_names_.push_back(element(signal, i));
            }
        } else if (count == 0 && signal.source == Source::last) {
            input.form = Form::last;
        } else if (turns) {
            input.form = signal.size == 9 ? Form::quaternion : Form::gravity;
        } else if (count > 1 && signal.size == 1) {
            input.form = Form::sum;
        } else if (count != signal.size) {
            RCLCPP_ERROR(get_node()->get_logger(), "state_interfaces.%s names %d interfaces; it has %d numbers%s",
                         signal.name, count, signal.size,
                         signal.size == 9 || GRAVITY == s ? ", or is a quaternion of 4: x, y, z, w" : "");
            return false;
        }
        for (const std::string &name : names) input.places.push_back(place_of(state_names_, name));
        const double given = get_node()->get_parameter(joined("max_age", signal.name)).as_double();
        if (!(given > 0.0 && given <= signal.max_age)) {
            RCLCPP_ERROR(get_node()->get_logger(), "max_age.%s is %g s; the policy permits more than 0, up to %g s",
                         signal.name, given, signal.max_age);
            return false;
        }
        guard_.max_age[at(s)] = given;
    }
    raw_.assign(state_names_.size(), NOTHING);
    read_at_.assign(state_names_.size(), NOTHING);
    changed_at_.assign(state_names_.size(), NOTHING);
    told_.assign(reference_names_.size(), NOTHING);
    told_at_.assign(reference_names_.size(), NOTHING);
    heard_.assign(reference_names_.size(), NOTHING);
    return true;
}

bool PolicyController::configure_commands() {
    command_names_.clear();
    for (int c = 0; c < COMMANDS; ++c) {
        const Command &command = commands[c];
        auto &places = outputs_[at(c)];
        places.clear();
        const auto names = get_node()->get_parameter(joined("command_interfaces", command.name)).as_string_array();
        const int count = static_cast<int>(names.size());
        if (count != command.size && !(command.size == 1 && count > 1)) {
            RCLCPP_ERROR(get_node()->get_logger(), "command_interfaces.%s names %d interfaces; it has %d numbers",
                         command.name, count, command.size);
            return false;
        }
        for (const std::string &name : names) {
            const std::size_t before = command_names_.size();
            places.push_back(place_of(command_names_, name));
            if (command_names_.size() == before) {
                RCLCPP_ERROR(get_node()->get_logger(), "the command interface %s is named twice", name.c_str());
                return false;
            }
        }
        const auto offset = get_node()->get_parameter(joined("offset", command.name)).as_double_array();
        if (offset.size() != at(command.size) && (command.offset || !offset.empty())) {
            RCLCPP_ERROR(get_node()->get_logger(),
                         "offset.%s has %zu numbers, not %d: what is added to the command, such as the rest pose",
                         command.name, offset.size(), command.size);
            return false;
        }
        for (int i = 0; i < command.size; ++i)
            offset_[at(command.first + i)] = offset.empty() ? 0.0 : offset[at(i)];
        const auto limits = get_node()->get_parameter(joined("limits", command.name)).as_double_array();
        if (limits.size() != 2 || !(limits[0] < limits[1]) || !(static_cast<float>(limits[0]) >= command.low) ||
            !(static_cast<float>(limits[1]) <= command.high)) {
            RCLCPP_ERROR(get_node()->get_logger(), "limits.%s: needs [low, high] within [%g, %g]", command.name,
                         static_cast<double>(command.low), static_cast<double>(command.high));
            return false;
        }
        guard_.low[at(c)] = static_cast<float>(limits[0]);
        guard_.high[at(c)] = static_cast<float>(limits[1]);
    }
    return true;
}

bool PolicyController::configure_times() {
    const double rate = policy_info()->rate_hz, updates = get_update_rate();
    every_ = static_cast<unsigned>(std::lround(updates / rate));
    if (every_ < 1 || std::fabs(updates / rate - every_) > 0.01 * every_) {
        RCLCPP_ERROR(get_node()->get_logger(), "update_rate is %g Hz; the policy needs a multiple of %g Hz", updates,
                     rate);
        return false;
    }
    period_ = 1.0 / rate;
    patience_ = get_node()->get_parameter("patience").as_double();
    frozen_after_ = get_node()->get_parameter("frozen_after").as_double();
    if (!(patience_ > 0.0) || !(frozen_after_ >= 0.0)) {
        RCLCPP_ERROR(get_node()->get_logger(), "patience is %g s, frozen_after %g s; they need > 0 and >= 0", patience_,
                     frozen_after_);
        return false;
    }
    return true;
}

CallbackReturn PolicyController::on_configure(const rclcpp_lifecycle::State & /*previous_state*/) {
    const float used = policy_selftest(&state_);
    if (!(used <= 1.0f)) {
        RCLCPP_ERROR(get_node()->get_logger(), "the self-test FAILED (%g of the tolerance): this build computes wrongly",
                     static_cast<double>(used));
        return CallbackReturn::FAILURE;
    }
    if (!configure_signals() || !configure_commands() || !configure_times()) return CallbackReturn::FAILURE;
    if (!reference_names_.empty())
        subscription_ = get_node()->create_subscription<Message>(
            "~/reference", rclcpp::SystemDefaultsQoS(), [this](std::shared_ptr<const Message> message) {
                if (message->data.size() != heard_.size()) {
                    RCLCPP_WARN(get_node()->get_logger(), "ignored a reference of %zu numbers; it needs %zu",
                                message->data.size(), heard_.size());
                    return;
                }
                const std::lock_guard<std::mutex> lock(mutex_);
                std::copy(message->data.begin(), message->data.end(), heard_.begin());
                heard_anything_ = true;
            });
    RCLCPP_INFO(get_node()->get_logger(), "%s at %g Hz, every %u. update: self-test passed, %g of the tolerance",
                policy_info()->name, static_cast<double>(policy_info()->rate_hz), every_, static_cast<double>(used));
    return CallbackReturn::SUCCESS;
}

controller_interface::InterfaceConfiguration PolicyController::command_interface_configuration() const {
    return {controller_interface::interface_configuration_type::INDIVIDUAL, command_names_};
}

controller_interface::InterfaceConfiguration PolicyController::state_interface_configuration() const {
    return {controller_interface::interface_configuration_type::INDIVIDUAL, state_names_};
}

std::vector<hardware_interface::CommandInterface::SharedPtr> PolicyController::on_export_reference_interfaces_list() {
    std::vector<hardware_interface::CommandInterface::SharedPtr> made;
    for (const std::string &name : reference_names_) {
        hardware_interface::InterfaceInfo info{};
        info.name = name;
        made.push_back(std::make_shared<hardware_interface::CommandInterface>(
            hardware_interface::InterfaceDescription(get_node()->get_name(), info)));
        (void)made.back()->set_value(NOTHING);
    }
    return made;
}

std::vector<hardware_interface::StateInterface::SharedPtr> PolicyController::on_export_state_interfaces_list() {
    std::vector<hardware_interface::StateInterface::SharedPtr> made;
    for (const char *name : REPORTED) {
        hardware_interface::InterfaceInfo info{};
        info.name = name;
        made.push_back(std::make_shared<hardware_interface::StateInterface>(
            hardware_interface::InterfaceDescription(get_node()->get_name(), info)));
        (void)made.back()->set_value(0.0);
    }
    return made;
}

bool PolicyController::on_set_chained_mode(bool /*chained_mode*/) { return true; }

CallbackReturn PolicyController::on_activate(const rclcpp_lifecycle::State & /*previous_state*/) {
    const auto missing = [this](const auto &loaned, const std::vector<std::string> &names) {
        for (std::size_t i = 0; i < names.size(); ++i)
            if (i >= loaned.size() || loaned[i].get_name() != names[i]) {
                RCLCPP_ERROR(get_node()->get_logger(), "the interface %s is not there", names[i].c_str());
                return true;
            }
        return false;
    };
    if (missing(state_interfaces_, state_names_) || missing(command_interfaces_, command_names_))
        return CallbackReturn::FAILURE;
    try { /* what is no double would throw at every update */
        for (const auto &interface : state_interfaces_) (void)interface.get_optional();
    } catch (const std::exception &error) {
        RCLCPP_ERROR(get_node()->get_logger(), "a state interface that is no number: %s", error.what());
        return CallbackReturn::FAILURE;
    }
    policy_reset(&state_);
    guard_.begin();
    for (auto *values : {&raw_, &read_at_, &changed_at_, &told_, &told_at_})
        std::fill(values->begin(), values->end(), NOTHING);
    for (auto &reference : ordered_exported_reference_interfaces_) (void)reference->set_value(NOTHING);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        heard_anything_ = false;
    }
    begun_ = flying_ = false;
    turn_ = 0;
    steps_ = unwritten_ = 0;
    locked_ = 0;
    stepped_at_ = took_ = longest_ = 0.0;
    return CallbackReturn::SUCCESS;
}

CallbackReturn PolicyController::on_deactivate(const rclcpp_lifecycle::State & /*previous_state*/) {
    if (flying_) { /* it ends as a stop does: in the safe command */
        guard_.finish();
        write();
        RCLCPP_INFO(get_node()->get_logger(),
                    "%lu steps, the longest %.1f us of %.0f; late %lu, held or stopped %lu, not written %lu", steps_,
                    1e6 * longest_, 1e6 * period_, guard_.missed, guard_.interventions, unwritten_);
    }
    if (guard_.latched != FINE) RCLCPP_ERROR(get_node()->get_logger(), "stopped: %s", says(guard_.latched));
    return CallbackReturn::SUCCESS;
}

return_type PolicyController::update_reference_from_subscribers(const rclcpp::Time & /*time*/,
                                                                const rclcpp::Duration & /*period*/) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && heard_anything_) { /* else in the next update */
        heard_anything_ = false;
        for (std::size_t i = 0; i < heard_.size(); ++i)
            (void)ordered_exported_reference_interfaces_[i]->set_value(heard_[i]);
    }
    return return_type::OK;
}

/* Takes what was written since the last update, and leaves NaN: so a set point has an age. */
void PolicyController::take_references(double now) {
    for (std::size_t i = 0; i < told_.size(); ++i) {
        const double value = ordered_exported_reference_interfaces_[i]->get_optional().value_or(NOTHING);
        if (std::isnan(value)) continue;
        if (ordered_exported_reference_interfaces_[i]->set_value(NOTHING)) {
            told_[i] = value;
            told_at_[i] = now;
        }
    }
}

void PolicyController::read_states(double now) {
    for (std::size_t i = 0; i < raw_.size(); ++i) {
        const auto value = state_interfaces_[i].get_optional();
        if (!value.has_value()) continue; /* somebody else holds it: the last value grows older */
        if (std::memcmp(&*value, &raw_[i], sizeof(double)) != 0 || std::isnan(changed_at_[i])) changed_at_[i] = now;
        raw_[i] = *value;
        read_at_[i] = now;
    }
}

void PolicyController::assemble(double now) {
    for (int s = 0; s < SIGNALS; ++s) {
        const Signal &signal = signals[s];
        const Input &input = inputs_[at(s)];
        float *to = values_.data() + signal.first;
        const bool told = input.form == Form::reference;
        double age = 0.0, gathered[4] = {0.0, 0.0, 0.0, 0.0};
        bool frozen = frozen_after_ > 0.0 && !told && !input.places.empty();
        for (std::size_t i = 0; i < input.places.size(); ++i) {
            const std::size_t place = input.places[i];
            const double since = now - (told ? told_at_[place] : read_at_[place]);
            age = since >= age || std::isnan(since) ? since : age;
            frozen = frozen && now - changed_at_[place] > frozen_after_;
            const double value = told ? told_[place] : raw_[place];
            if (input.form == Form::plain || told) to[i] = static_cast<float>(value);
            else if (input.form == Form::sum) gathered[0] += value;
            else gathered[i] = value;
        }
        if (input.form == Form::sum) to[0] = static_cast<float>(gathered[0]);
        if (input.form == Form::last) std::copy_n(guard_.sent.begin() + signal.last_of, signal.size, to);
        if (input.form == Form::quaternion) rotation_of(gathered, to);
        if (input.form == Form::gravity) {
            float rows[9];
            rotation_of(gathered, rows);
            for (int i = 0; i < 3; ++i) to[i] = -rows[6 + i];
        }
        ages_[at(s)] = frozen || std::isnan(age) ? std::numeric_limits<double>::infinity() : age;
    }
}

bool PolicyController::all_sound() const {
    for (int s = 0; s < SIGNALS; ++s)
        if (!Guard::sound(s, values_.data() + signals[s].first, ages_[at(s)], guard_.max_age[at(s)])) return false;
    return true;
}

void PolicyController::step(double now) {
    const auto began = std::chrono::steady_clock::now();
    const double gap = now - stepped_at_;
    assemble(now);
    if (!flying_) {
        if (!all_sound()) { /* nothing is written before every signal has been there */
            if (now > patience_) guard_.stop(STALE);
            return;
        }
        flying_ = true;
    }
    guard_.tick(now, steps_ > 0 && (gap > LATE * period_ || took_ > period_));
    guard_.screen(values_.data(), ages_.data());
    std::memcpy(&seen_, guard_.clean.data(), sizeof seen_);
    const bool computed = policy_step(&state_, &seen_, &wanted_);
    std::array<float, COMMAND_NUMBERS> given;
    std::memcpy(given.data(), &wanted_, sizeof wanted_);
    took_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    guard_.filter(given.data(), computed, took_);
    longest_ = std::max(longest_, took_);
    stepped_at_ = now;
    ++steps_;
    report(gap);
}

void PolicyController::write() {
    const unsigned long before = unwritten_;
    for (int c = 0; c < COMMANDS; ++c) {
        const auto &places = outputs_[at(c)];
        const bool shared = commands[c].size == 1 && places.size() > 1;
        for (std::size_t i = 0; i < places.size(); ++i) {
            const std::size_t from = at(commands[c].first) + (shared ? 0 : i);
            double value = static_cast<double>(guard_.sent[from]) + offset_[from];
            if (shared) value /= static_cast<double>(places.size());
            if (!command_interfaces_[places[i]].set_value(value)) ++unwritten_;
        }
    }
    locked_ = unwritten_ == before ? 0 : locked_ + 1;
    if (locked_ > static_cast<unsigned>(HOLD_STEPS) * every_) guard_.stop(NO_COMMAND); /* an actuator still obeys an older one */
}

void PolicyController::report(double since) {
    const double told[] = {static_cast<double>(guard_.latched != FINE ? guard_.latched : guard_.bad),
                           static_cast<double>(guard_.held), static_cast<double>(guard_.missed),
                           static_cast<double>(steps_), since, took_, longest_};
    for (std::size_t i = 0; i < ordered_exported_state_interfaces_.size(); ++i)
        (void)ordered_exported_state_interfaces_[i]->set_value(told[i]);
}

return_type PolicyController::update_and_write_commands(const rclcpp::Time &time, const rclcpp::Duration & /*period*/) {
    const double sleep = asleep();
    if (!begun_) {
        began_ = time.nanoseconds();
        slept_before_ = slept_ = NOTHING;
    }
    begun_ = true;
    if (std::isnan(slept_)) slept_before_ = slept_ = sleep;
    if (sleep - slept_ > NAP) slept_ = sleep;
    const double slept = std::isnan(slept_) ? 0.0 : slept_ - slept_before_;
    const double now = 1e-9 * static_cast<double>(time.nanoseconds() - began_) + slept;
    take_references(now);
    if (turn_ == 0) {
        read_states(now);
        step(now);
    }
    turn_ = (turn_ + 1) % every_;
    if (flying_) write();
    if (guard_.latched == FINE) return return_type::OK;
    if (!flying_) report(now);
    return return_type::ERROR; /* the controller manager deactivates it, and activates its fallback_controllers */
}

} // namespace policy_controller

PLUGINLIB_EXPORT_CLASS(policy_controller::PolicyController, controller_interface::ChainableControllerInterface)
