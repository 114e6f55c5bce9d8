/* RP2350 (datasheet of 2024), its Cortex-M33: 150 MHz from the crystal of 12 MHz, UART0 on GPIO 0 (out) and 1 (in). */
#define CLOCKS 0x40010000u
#define RESET 0x40020000u
#define IO 0x40028000u
#define PADS 0x40038000u
#define XOSC 0x40048000u
#define PLL 0x40050000u
#define UART 0x40070000u

#define CLOCK 150000000u
#define POST 5u
#define NEEDED (1u << 6 | 1u << 9 | 1u << 14) /* of RESETS: IO, pads, the PLL */
#define UART0 (1u << 26) /* of RESETS, too: it comes out once clk_peri runs */
#include "core.h"
#include "rp2.h"

/* What the boot ROM looks for in the first 4 kB: an executable for the Arm core, secure; one block, which is the last. */
__attribute__((section(".told"), used)) static const uint32_t told[] = {
    0xffffded3u, 0x10210142u, 0x000001ffu, 0x00000000u, 0xab123579u,
};

void board_start(void) {
    start();
    core_start(CLOCK);
}
