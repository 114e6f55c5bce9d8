/* RP2040 (datasheet of 2024): 125 MHz from the crystal of 12 MHz, UART0 on GPIO 0 (out) and 1 (in). */
#include "board.h"

#define CLK_REF_CTRL REGISTER(0x40008030u)
#define CLK_REF_SELECTED REGISTER(0x40008038u)
#define CLK_SYS_CTRL REGISTER(0x4000803cu)
#define CLK_SYS_SELECTED REGISTER(0x40008044u)
#define CLK_PERI_CTRL REGISTER(0x40008048u)
#define RESETS REGISTER(0x4000c000u)
#define RESET_DONE REGISTER(0x4000c008u)
#define GPIO_CTRL(n) REGISTER(0x40014004u + 8u * (n))
#define PAD(n) REGISTER(0x4001c004u + 4u * (n))
#define XOSC_CTRL REGISTER(0x40024000u)
#define XOSC_STATUS REGISTER(0x40024004u)
#define XOSC_STARTUP REGISTER(0x4002400cu)
#define PLL_CS REGISTER(0x40028000u)
#define PLL_PWR REGISTER(0x40028004u)
#define PLL_FBDIV REGISTER(0x40028008u)
#define PLL_PRIM REGISTER(0x4002800cu)
#define UART_DR REGISTER(0x40034000u)
#define UART_FR REGISTER(0x40034018u)
#define UART_IBRD REGISTER(0x40034024u)
#define UART_FBRD REGISTER(0x40034028u)
#define UART_LCR REGISTER(0x4003402cu)
#define UART_CR REGISTER(0x40034030u)
#define TIMER_LOW REGISTER(0x40054028u) /* us, since it was let out of reset */
#define WATCHDOG_TICK REGISTER(0x4005802cu)

#define CLOCK 125000000u
#define NEEDED (1u << 5 | 1u << 8 | 1u << 12 | 1u << 21) /* of RESETS: IO, pads, the PLL, the timer */
#define UART0 (1u << 22) /* of RESETS, too: it comes out once clk_peri runs */
#define FR_EMPTY (1u << 4)
#define FR_FULL (1u << 5)

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

static void wait(volatile uint32_t *at, uint32_t bits) {
    for (int turn = 0; turn < PATIENCE && (*at & bits) != bits; ++turn) {
    }
}

static void release(uint32_t bits) {
    RESETS &= ~bits;
    wait(&RESET_DONE, bits);
}

static void start_clock(void) {
    XOSC_STARTUP = 47u * 64u;          /* 1 ms, and as much again and again for slow crystals */
    XOSC_CTRL = 0xaa0u | 0xfabu << 12; /* 1 to 15 MHz, on */
    wait(&XOSC_STATUS, 1u << 31);      /* stable */
    CLK_REF_CTRL = 2u;                 /* the crystal */
    wait(&CLK_REF_SELECTED, 1u << 2);
    CLK_SYS_CTRL &= ~1u;               /* from there, while the PLL changes */
    wait(&CLK_SYS_SELECTED, 1u);
    PLL_PWR = 0x2du;                   /* off */
    PLL_CS = 1u;                       /* 12 MHz / 1 */
    PLL_FBDIV = 125u;                  /* * 125 = 1500 MHz */
    PLL_PWR = 1u << 3 | 1u << 2;       /* on, without its dividers */
    wait(&PLL_CS, 1u << 31);           /* locked */
    PLL_PRIM = 6u << 16 | 2u << 12;    /* / 6 / 2 = 125 MHz */
    PLL_PWR = 1u << 2;
    CLK_SYS_CTRL = 0u << 5 | 1u;       /* the PLL */
    wait(&CLK_SYS_SELECTED, 1u << 1);
    CLK_PERI_CTRL = 1u << 11;          /* on, from the system's clock */
    WATCHDOG_TICK = 1u << 9 | 12u;     /* the timer's microsecond, of the crystal */
}

void board_start(void) {
    release(NEEDED);
    start_clock();
    release(UART0);
    GPIO_CTRL(0u) = GPIO_CTRL(1u) = 2u; /* UART0 */
    PAD(0u) = 1u << 4 | 1u << 6;        /* 4 mA, input on */
    PAD(1u) = 1u << 3 | 1u << 6;        /* pulled up: silence when nothing is connected */
    const uint32_t divisor = (CLOCK * 4u + BAUD / 2u) / BAUD; /* 64ths of clock / (16 baud) */
    UART_IBRD = divisor >> 6;
    UART_FBRD = divisor & 63u;
    UART_LCR = 3u << 5 | 1u << 4;       /* 8 bits, with the FIFOs */
    UART_CR = 1u | 1u << 8 | 1u << 9;
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

int board_receive(void) { return UART_FR & FR_EMPTY ? -1 : (int)(UART_DR & 0xffu); }

void board_send(const uint8_t *bytes, int count) {
    for (int i = 0; i < count; ++i) {
        while (UART_FR & FR_FULL) {
        }
        UART_DR = bytes[i];
    }
}
