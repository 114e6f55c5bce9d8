/* RP2350 (datasheet of 2024), its Cortex-M33: 150 MHz from the crystal of 12 MHz, UART0 on GPIO 0 (out) and 1 (in). */
#include "board.h"

#define CLK_REF_CTRL REGISTER(0x40010030u)
#define CLK_REF_SELECTED REGISTER(0x40010038u)
#define CLK_SYS_CTRL REGISTER(0x4001003cu)
#define CLK_SYS_SELECTED REGISTER(0x40010044u)
#define CLK_PERI_CTRL REGISTER(0x40010048u)
#define RESETS REGISTER(0x40020000u)
#define RESET_DONE REGISTER(0x40020008u)
#define GPIO_CTRL(n) REGISTER(0x40028004u + 8u * (n))
#define PAD(n) REGISTER(0x40038004u + 4u * (n))
#define XOSC_CTRL REGISTER(0x40048000u)
#define XOSC_STATUS REGISTER(0x40048004u)
#define XOSC_STARTUP REGISTER(0x4004800cu)
#define PLL_CS REGISTER(0x40050000u)
#define PLL_PWR REGISTER(0x40050004u)
#define PLL_FBDIV REGISTER(0x40050008u)
#define PLL_PRIM REGISTER(0x4005000cu)
#define UART_DR REGISTER(0x40070000u)
#define UART_FR REGISTER(0x40070018u)
#define UART_IBRD REGISTER(0x40070024u)
#define UART_FBRD REGISTER(0x40070028u)
#define UART_LCR REGISTER(0x4007002cu)
#define UART_CR REGISTER(0x40070030u)

#define CLOCK 150000000u
#define NEEDED (1u << 6 | 1u << 9 | 1u << 14) /* of RESETS: IO, pads, the PLL */
#define UART0 (1u << 26) /* of RESETS, too: it comes out once clk_peri runs */
#define FR_EMPTY (1u << 4)
#define FR_FULL (1u << 5)

/* What the boot ROM looks for in the first 4 kB: an executable for the Arm core, secure; one block, which is the last. */
__attribute__((section(".told"), used)) static const uint32_t told[] = {
    0xffffded3u, 0x10210142u, 0x000001ffu, 0x00000000u, 0xab123579u,
};

static void wait(volatile uint32_t *at, uint32_t bits) {
    for (int turn = 0; turn < PATIENCE && (*at & bits) != bits; ++turn) {
    }
}

static void release(uint32_t bits) {
    RESETS &= ~bits;
    wait(&RESET_DONE, bits);
}

static void start_clock(void) {
    XOSC_STARTUP = 47u * 64u;                 /* 1 ms, and as much again and again for slow crystals */
    XOSC_CTRL = 0xaa0u | 0xfabu << 12;        /* 1 to 15 MHz, on */
    wait(&XOSC_STATUS, 1u << 31);             /* stable */
    CLK_REF_CTRL = 2u;                        /* the crystal */
    wait(&CLK_REF_SELECTED, 1u << 2);
    CLK_SYS_CTRL &= ~1u;                      /* from there, while the PLL changes */
    wait(&CLK_SYS_SELECTED, 1u);
    PLL_PWR = 0x2du;                          /* off */
    PLL_CS = 1u;                              /* 12 MHz / 1 */
    PLL_FBDIV = 125u;                         /* * 125 = 1500 MHz */
    PLL_PWR = 1u << 3 | 1u << 2;              /* on, without its dividers */
    wait(&PLL_CS, 1u << 31);                  /* locked */
    PLL_PRIM = 5u << 16 | 2u << 12;           /* / 5 / 2 = 150 MHz */
    PLL_PWR = 1u << 2;
    CLK_SYS_CTRL = 0u << 5 | 1u;              /* the PLL */
    wait(&CLK_SYS_SELECTED, 1u << 1);
    CLK_PERI_CTRL = 1u << 11;                 /* on, from the system's clock */
}

void board_start(void) {
    release(NEEDED);
    start_clock();
    release(UART0);
    GPIO_CTRL(0u) = GPIO_CTRL(1u) = 2u; /* UART0 */
    PAD(0u) = 1u << 4 | 1u << 6;        /* 4 mA, input on; no longer isolated */
    PAD(1u) = 1u << 3 | 1u << 6;        /* pulled up: silence when nothing is connected */
    const uint32_t divisor = (CLOCK * 4u + BAUD / 2u) / BAUD; /* 64ths of clock / (16 baud) */
    UART_IBRD = divisor >> 6;
    UART_FBRD = divisor & 63u;
    UART_LCR = 3u << 5 | 1u << 4;       /* 8 bits, with the FIFOs */
    UART_CR = 1u | 1u << 8 | 1u << 9;
    core_start(CLOCK);
}

int board_receive(void) { return UART_FR & FR_EMPTY ? -1 : (int)(UART_DR & 0xffu); }

void board_send(const uint8_t *bytes, int count) {
    for (int i = 0; i < count; ++i) {
        while (UART_FR & FR_FULL) {
        }
        UART_DR = bytes[i];
    }
}
