#pragma once

#include <thread>

namespace realtime_tools {

template <typename T> class AsyncFunctionHandler {};
struct AsyncFunctionHandlerParams {};

} // namespace realtime_tools
