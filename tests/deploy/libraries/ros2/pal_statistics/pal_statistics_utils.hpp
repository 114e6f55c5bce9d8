#pragma once

#include <functional>
#include <string>

namespace pal_statistics {

class RegistrationsRAII {};
struct IdType {};

class StatisticsRegistry {
public:
    template <typename T> IdType registerVariable(const std::string &, const T *, RegistrationsRAII *, bool) {
        return {};
    }
    template <typename T> IdType registerFunction(const std::string &, const T &, RegistrationsRAII *, bool) {
        return {};
    }
};

template <typename T>
IdType customRegister(StatisticsRegistry &, const std::string &, const T *, RegistrationsRAII * = nullptr, bool = true) {
    return {};
}

} // namespace pal_statistics
