/* What the image needs of any board. Each board's own board.c has its clock and its serial port; the folder of its family
 * of cores (cortex_m, riscv) has the way from reset to main. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

#define BAUD 921600u
#define PATIENCE 100000 /* turns to wait for a clock; emulators have none to start */

/* The clock, the serial port, and what counts milliseconds and cycles. */
void board_start(void);

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
