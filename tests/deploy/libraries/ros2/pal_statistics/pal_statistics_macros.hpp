#pragma once

#include "pal_statistics/pal_statistics_utils.hpp"

#define REGISTER_ENTITY(...)
#define UNREGISTER_ENTITY(...)
