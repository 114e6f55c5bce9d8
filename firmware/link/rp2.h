/* What the RP2040 and the RP2350 have alike: clocks from the crystal of 12 MHz, UART0 on GPIO 0 (out) and 1 (in).
 *
 * Included once, by a board.c that has defined where CLOCKS, RESET, IO, PADS, XOSC, PLL and UART begin, its CLOCK (Hz), the
 * PLL's divider POST, and of its resets' bits what it NEEDED and UART0. */
#include "board.h"

#define CLK_REF_CTRL REGISTER(CLOCKS + 0x30u)
#define CLK_REF_SELECTED REGISTER(CLOCKS + 0x38u)
#define CLK_SYS_CTRL REGISTER(CLOCKS + 0x3cu)
#define CLK_SYS_SELECTED REGISTER(CLOCKS + 0x44u)
#define CLK_PERI_CTRL REGISTER(CLOCKS + 0x48u)
#define RESETS REGISTER(RESET)
#define RESET_DONE REGISTER(RESET + 0x08u)
#define GPIO_CTRL(n) REGISTER(IO + 0x04u + 8u * (n))
#define PAD(n) REGISTER(PADS + 0x04u + 4u * (n))
#define XOSC_CTRL REGISTER(XOSC)
#define XOSC_STATUS REGISTER(XOSC + 0x04u)
#define XOSC_STARTUP REGISTER(XOSC + 0x0cu)
#define PLL_CS REGISTER(PLL)
#define PLL_PWR REGISTER(PLL + 0x04u)
#define PLL_FBDIV REGISTER(PLL + 0x08u)
#define PLL_PRIM REGISTER(PLL + 0x0cu)
#define UART_DR REGISTER(UART)
#define UART_FR REGISTER(UART + 0x18u)
#define UART_IBRD REGISTER(UART + 0x24u)
#define UART_FBRD REGISTER(UART + 0x28u)
#define UART_LCR REGISTER(UART + 0x2cu)
#define UART_CR REGISTER(UART + 0x30u)

#define FR_EMPTY (1u << 4)
#define FR_FULL (1u << 5)

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
    PLL_PRIM = POST << 16 | 2u << 12;  /* / POST / 2 */
    PLL_PWR = 1u << 2;
    CLK_SYS_CTRL = 0u << 5 | 1u;       /* the PLL */
    wait(&CLK_SYS_SELECTED, 1u << 1);
    CLK_PERI_CTRL = 1u << 11;          /* on, from the system's clock */
}

/* All but what the core needs. */
static void start(void) {
    release(NEEDED);
    start_clock();
    release(UART0);
    GPIO_CTRL(0u) = GPIO_CTRL(1u) = 2u; /* UART0 */
    PAD(0u) = 1u << 4 | 1u << 6;        /* 4 mA, input on; no longer isolated, where they were */
    PAD(1u) = 1u << 3 | 1u << 6;        /* pulled up: silence when nothing is connected */
    const uint32_t divisor = (CLOCK * 4u + BAUD / 2u) / BAUD; /* 64ths of clock / (16 baud) */
    UART_IBRD = divisor >> 6;
    UART_FBRD = divisor & 63u;
    UART_LCR = 3u << 5 | 1u << 4;       /* 8 bits, with the FIFOs */
    UART_CR = 1u | 1u << 8 | 1u << 9;
}

int board_receive(void) { return UART_FR & FR_EMPTY ? -1 : (int)(UART_DR & 0xffu); }

void board_send(const uint8_t *bytes, int count) {
    for (int i = 0; i < count; ++i) {
        while (UART_FR & FR_FULL) {
        }
        UART_DR = bytes[i];
    }
}
