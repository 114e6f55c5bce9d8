/* What the image needs of any board with a Cortex-M, and the registers that all of them have (ARMv6-M to ARMv8-M).
 * Each board's own board.c has its clock and its serial port; core.c has the rest. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

#define SYSTICK_CTRL REGISTER(0xe000e010u)
#define SYSTICK_LOAD REGISTER(0xe000e014u)
#define SYSTICK_VAL REGISTER(0xe000e018u)
#define CPACR REGISTER(0xe000ed88u)
#define AIRCR REGISTER(0xe000ed0cu)
#define DEMCR REGISTER(0xe000edfcu)
#define DWT_CTRL REGISTER(0xe0001000u)
#define DWT_CYCCNT REGISTER(0xe0001004u)

#define BAUD 921600u
#define PATIENCE 100000 /* turns to wait for a clock; emulators have none to start */

/* The clock, the serial port, and then core_start. */
void board_start(void);

/* Ticks of 1 ms, and the cycle counter, of a processor that runs at `clock` Hz. */
void core_start(uint32_t clock);

/* The next received byte, or -1. */
int board_receive(void);

void board_send(const uint8_t *bytes, int count);

/* Milliseconds since the start. Must be called more often than that to keep count. */
uint32_t board_milliseconds(void);

/* Cycles of the processor, which wrap; 0 where nobody counts them. */
uint32_t board_cycles(void);

void board_restart(void);

/* Called when there is nothing to do; the emulator returns to its caller here. */
void board_idle(void);

#endif
