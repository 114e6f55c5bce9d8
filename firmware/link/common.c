/* What every image has beside main.c. */
#include <stddef.h>

#include "board.h"

__attribute__((noinline)) void board_idle(void) { __asm__ volatile("nop"); }

/* Compilers turn loops and initialisers into calls of these. The barrier keeps them from being turned into themselves. */
#define BARRIER __asm__ volatile("" ::: "memory")

__attribute__((used)) void *memcpy(void *restrict to, const void *restrict from, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
        BARRIER;
    }
    return to;
}

__attribute__((used)) void *memset(void *to, int value, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        ((uint8_t *)to)[i] = (uint8_t)value;
        BARRIER;
    }
    return to;
}
