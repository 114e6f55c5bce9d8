/* RP2040 (datasheet of 2024): 125 MHz from the crystal of 12 MHz, UART0 on GPIO 0 (out) and 1 (in). */
#define CLOCKS 0x40008000u
#define RESET 0x4000c000u
#define IO 0x40014000u
#define PADS 0x4001c000u
#define XOSC 0x40024000u
#define PLL 0x40028000u
#define UART 0x40034000u

#define CLOCK 125000000u
#define POST 6u
#define NEEDED (1u << 5 | 1u << 8 | 1u << 12 | 1u << 21) /* of RESETS: IO, pads, the PLL, the timer */
#define UART0 (1u << 22) /* of RESETS, too: it comes out once clk_peri runs */
#include "rp2.h"

#define TIMER_LOW REGISTER(0x40054028u) /* us, since it was let out of reset */
#define WATCHDOG_TICK REGISTER(0x4005802cu)

/* The second stage, which the boot ROM copies to RAM and runs: 252 bytes and their checksum (the CRC-32 of MPEG-2). It
 * has the flash read by its plainest command, 03h, at a quarter of the clock, and goes on as a reset would, by the table
 * of vectors behind it. Written from sections 2.7 and 4.10 of the datasheet. */
__asm__(".section .boot, \"a\", %progbits\n"
        ".syntax unified\n"
        ".thumb\n"
        ".balign 4\n"
        "second_stage:\n"
        "    ldr r0, 1f\n"      /* the flash's interface: */
        "    movs r2, #0\n"
        "    str r2, [r0, #8]\n" /* off */
        "    str r2, [r0, #4]\n" /* a word at a time */
        "    movs r1, #4\n"
        "    str r1, [r0, #20]\n" /* an even divisor of the clock */
        "    ldr r1, 2f\n"
        "    str r1, [r0, #0]\n"
        "    ldr r1, 3f\n"
        "    movs r3, #0xf4\n"
        "    str r1, [r0, r3]\n"
        "    movs r1, #1\n"
        "    str r1, [r0, #8]\n" /* on */
        "    ldr r0, 4f\n"
        "    ldr r1, 5f\n"
        "    str r0, [r1]\n" /* where the vectors are */
        "    ldmia r0!, {r1, r2}\n"
        "    msr msp, r1\n"
        "    bx r2\n"
        ".balign 4\n"
        "1:  .word 0x18000000\n"
        "2:  .word 31 << 16 | 3 << 8\n"         /* one line, 32 bits, a command and then what is read */
        "3:  .word 0x03 << 24 | 2 << 8 | 6 << 2\n" /* 03h: 8 bits of command, 24 of address */
        "4:  .word 0x10000100\n"
        "5:  .word 0xe000ed08\n"
        ".org 252\n"
        "    .word 0x91670ca7\n"
        ".text\n");

void board_start(void) {
    start();
    WATCHDOG_TICK = 1u << 9 | 12u; /* the timer's microsecond, of the crystal */
}

/* A Cortex-M0+ has no counter of cycles, and a step may take longer than a turn of its SysTick. */
uint32_t board_milliseconds(void) {
    static uint32_t milliseconds, counted;
    const uint32_t passed = (TIMER_LOW - counted) / 1000u;
    counted += 1000u * passed;
    milliseconds += passed;
    return milliseconds;
}

uint32_t board_cycles(void) { return TIMER_LOW * (CLOCK / 1000000u); }
