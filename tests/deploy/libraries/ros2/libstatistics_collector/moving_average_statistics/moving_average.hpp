#pragma once

#include "types.hpp"

namespace libstatistics_collector::moving_average_statistics {

class MovingAverageStatistics {
public:
    void AddMeasurement(double) {}
    void Reset() {}
    double GetAverage() const { return 0.0; }
    StatisticData GetStatistics() const { return {}; }
};

} // namespace libstatistics_collector::moving_average_statistics
