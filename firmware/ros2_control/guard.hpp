/* Between a policy and its robot: deploy/guard.py for one robot that nobody lands, in C++. Change both; the tests hold
 * one against the other, bit for bit. Nothing here allocates, throws or calls back. */
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "interfaces.hpp"

namespace policy_controller {

enum Reason { /* the numbers of deploy.guard.REASONS */
    FINE = 0,
    STALE = 1,
    NON_FINITE = 2,
    OUT_OF_RANGE = 3,
    NO_COMMAND = 4,
    FENCE = 5,
    TILT = 6,
    SPEED = 7,
    BODY_RATE = 8,
    BATTERY = 9,
    DEADLINES = 10,
    CLOCK = 11,
};

inline const char *says(int reason) {
    static const char *const texts[] = {"nothing", "stale signal", "non-finite signal", "signal out of range",
                                        "non-finite command", "geofence", "tilt", "speed", "body rate",
                                        "low battery", "deadlines missed", "clock jump"};
    return reason >= FINE && reason <= CLOCK ? texts[reason] : "?";
}

class Guard {
public:
    std::array<float, NUMBERS> clean{};     /* what the policy gets: where a signal is bad, its last good value */
    std::array<float, COMMAND_NUMBERS> sent{}; /* the last commands that were let out: finite, within the limits */
    std::array<float, COMMANDS> low{}, high{}; /* of the commands; an owner may narrow them */
    std::array<double, SIGNALS> max_age{};     /* s */
    int latched = FINE; /* why the robot was stopped: until it is activated anew */
    int bad = FINE;     /* what is wrong now */
    int held = 0;       /* steps in a row that the last command stood in */
    bool has_sent = false; /* whether there is a last command */
    unsigned long interventions = 0, missed = 0;

    Guard() {
        for (int c = 0; c < COMMANDS; ++c) {
            low[at(c)] = commands[c].low;
            high[at(c)] = commands[c].high;
        }
        for (int s = 0; s < SIGNALS; ++s) max_age[at(s)] = signals[s].max_age;
        begin();
    }

    void begin() {
        latched = bad = FINE;
        held = late_in_a_row_ = low_voltage_ = 0;
        has_sent = false;
        interventions = missed = 0;
        late_.fill(false);
        turn_ = late_count_ = 0;
        before_ = std::numeric_limits<double>::quiet_NaN();
        spare_ = std::numeric_limits<double>::infinity();
        clean.fill(0.0f);
        std::copy(SAFE.begin(), SAFE.end(), stay_.begin());
        std::copy(SAFE.begin(), SAFE.end(), sent.begin());
    }

    void stop(int reason) {
        if (latched == FINE) latched = reason;
    }

    /* A control step begins, at `now` (s); `late`: the one before took too long, or this one comes too late. */
    void tick(double now, bool late) {
        late_in_a_row_ = late ? late_in_a_row_ + 1 : 0;
        late_count_ += static_cast<int>(late) - static_cast<int>(late_[at(turn_)]);
        late_[at(turn_)] = late;
        turn_ = (turn_ + 1) % WINDOW;
        missed += late;
        if (late_in_a_row_ >= MISSED_IN_A_ROW || late_count_ >= MISSED_OF_100) stop(DEADLINES);
        const double pause = now - before_;
        before_ = now;
        if (pause < 0.0 || pause > LONGEST_PAUSE) stop(CLOCK);
    }

    /* Whether a signal is what it should be: all its numbers finite, within its range, not older than it may be. */
    static bool sound(int s, const float *values, double age, double most) {
        bool finite = true;
        return whole(s, values, finite) && most - std::fabs(age) >= 0.0;
    }

    /* `values`: all numbers; `ages` (s): one for every signal. Fills `clean`. */
    void screen(const float *values, const double *ages) {
        bad = FINE;
        spare_ = std::numeric_limits<double>::infinity();
        for (int s = 0; s < SIGNALS; ++s) {
            bool finite = true;
            const bool possible = whole(s, values + signals[s].first, finite);
            const double spare = max_age[at(s)] - std::fabs(ages[s]);
            const bool fresh = spare >= 0.0;
            if (possible && fresh) {
                std::copy_n(values + signals[s].first, signals[s].size, clean.begin() + signals[s].first);
                spare_ = std::min(spare_, spare);
                continue;
            }
            if (!possible) bad = OUT_OF_RANGE;
            if (!finite) bad = NON_FINITE;
            if (!fresh) bad = STALE;
        }
        for (int c = 0; c < COMMANDS; ++c) {
            if (commands[c].place < 0 || bad != FINE || latched != FINE) continue;
            for (int i = 0; i < commands[c].size; ++i) {
                const float here = clean[at(signals[commands[c].place].first + i)];
                stay_[at(commands[c].first + i)] = clipped(here, commands[c].reach_low, commands[c].reach_high);
            }
        }
        if (bad == FINE) watch(); /* a stand-in value proves nothing */
        else low_voltage_ = 0;
    }

    /* `given`: the policy's commands, where `computed`; `elapsed` (s) since the signals were read. Fills `sent`. */
    void filter(const float *given, bool computed, double elapsed) {
        if (elapsed > spare_ && bad == FINE) bad = STALE;
        if (bad == FINE && !(computed && all_finite(given, COMMAND_NUMBERS))) bad = NO_COMMAND;
        if (bad == FINE && latched == FINE) {
            held = 0;
            for (int c = 0; c < COMMANDS; ++c) limited(c, given);
            has_sent = true;
            return;
        }
        held = bad != FINE ? held + 1 : 0;
        if (bad != FINE && (held > HOLD_STEPS || !has_sent)) stop(bad);
        ++interventions;
        if (latched != FINE) finish(); /* else `sent` stays as it is: held */
    }

    /* The safe commands into `sent`. */
    void finish() {
        for (int c = 0; c < COMMANDS; ++c) {
            if (commands[c].last && has_sent) continue;
            const auto &from = commands[c].place >= 0 ? stay_ : SAFE;
            std::copy_n(from.begin() + commands[c].first, commands[c].size, sent.begin() + commands[c].first);
        }
    }

private:
    static constexpr int WINDOW = 100;
    std::array<float, COMMAND_NUMBERS> stay_{};
    std::array<bool, WINDOW> late_{};
    int turn_ = 0, late_count_ = 0, late_in_a_row_ = 0, low_voltage_ = 0;
    double before_ = 0.0, spare_ = 0.0; /* s: the last step; until the first signal is too old */

    static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
    static float clipped(float x, float least, float most) { return std::min(std::max(x, least), most); }

    static bool all_finite(const float *x, int n) {
        for (int i = 0; i < n; ++i)
            if (!std::isfinite(x[i])) return false;
        return true;
    }

    static bool whole(int s, const float *values, bool &finite) {
        finite = all_finite(values, signals[s].size);
        for (int i = 0; finite && i < signals[s].size; ++i)
            if (!(values[i] >= signals[s].low && values[i] <= signals[s].high)) return false;
        return finite;
    }

    [[maybe_unused]] double length(int first) const {
        double sum = 0.0;
        for (int i = 0; i < 3; ++i) sum += static_cast<double>(clean[at(first + i)]) * clean[at(first + i)];
        return std::sqrt(sum);
    }

    void watch() {
        if constexpr (POSITION >= 0)
            for (int i = 0; i < 3; ++i) {
                const double x = clean[at(POSITION + i)];
                if (x < FENCE_LOW[at(i)] || x > FENCE_HIGH[at(i)]) stop(FENCE);
            }
        if constexpr (ROTATION >= 0)
            if (clean[at(ROTATION + 8)] < LEAST_UPRIGHT) stop(TILT);
        if constexpr (LINEAR_VELOCITY >= 0)
            if (length(LINEAR_VELOCITY) > MAX_SPEED) stop(SPEED);
        if constexpr (ANGULAR_VELOCITY >= 0)
            if (length(ANGULAR_VELOCITY) > MAX_BODY_RATE) stop(BODY_RATE);
        if constexpr (VOLTAGE >= 0) {
            const auto cells = clean.begin() + VOLTAGE;
            low_voltage_ = *std::min_element(cells, cells + CELLS) < MIN_VOLTAGE ? low_voltage_ + 1 : 0;
            if (low_voltage_ >= LOW_VOLTAGE_STEPS) stop(BATTERY);
        }
    }

    void limited(int c, const float *given) {
        const float least = low[at(c)], most = high[at(c)], change = MAX_CHANGE * (most - least);
        for (int i = commands[c].first; i < commands[c].first + commands[c].size; ++i) {
            float value = clipped(given[i], least, most);
            if (MAX_CHANGE < 1.0f && has_sent && std::isfinite(most - least))
                value = clipped(clipped(value, sent[at(i)] - change, sent[at(i)] + change), least, most);
            sent[at(i)] = value;
        }
    }
};

} // namespace policy_controller
