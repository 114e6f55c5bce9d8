#pragma once
#include <stdint.h>

typedef uint32_t TickType_t; /* ms */
typedef uint32_t StackType_t;
typedef long BaseType_t;
typedef unsigned long UBaseType_t;
typedef struct {
    void *owner;
} StaticTask_t;
#define M2T(X) ((unsigned int)(X))
#define pdTRUE ((BaseType_t)1)
#define portMAX_DELAY ((TickType_t)0xffffffffUL)
