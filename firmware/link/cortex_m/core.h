/* Registers that all Cortex-M have (ARMv6-M to ARMv8-M). */
#ifndef CORE_H
#define CORE_H

#include "board.h"

#define SYSTICK_CTRL REGISTER(0xe000e010u)
#define SYSTICK_LOAD REGISTER(0xe000e014u)
#define SYSTICK_VAL REGISTER(0xe000e018u)
#define CPACR REGISTER(0xe000ed88u)
#define AIRCR REGISTER(0xe000ed0cu)
#define DEMCR REGISTER(0xe000edfcu)
#define DWT_CTRL REGISTER(0xe0001000u)
#define DWT_CYCCNT REGISTER(0xe0001004u)

/* Ticks of 1 ms, and the cycle counter, of a processor that runs at `clock` Hz. */
void core_start(uint32_t clock);

#endif
