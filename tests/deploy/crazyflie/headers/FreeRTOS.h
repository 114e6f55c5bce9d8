#pragma once
#include <stdint.h>

typedef uint32_t TickType_t; /* ms */
#define M2T(X) ((unsigned int)(X))
