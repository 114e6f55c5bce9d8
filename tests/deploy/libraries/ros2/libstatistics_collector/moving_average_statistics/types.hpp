#pragma once

#include <cstdint>

namespace libstatistics_collector::moving_average_statistics {

struct StatisticData {
    double average, min, max, standard_deviation;
    std::uint64_t sample_count;
};

} // namespace libstatistics_collector::moving_average_statistics
