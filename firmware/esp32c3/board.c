/* ESP32-C3 (registers by ESP-IDF's headers, direct boot by Espressif's example): 160 MHz from the crystal of 40 MHz, UART0
 * on GPIO 21 (out) and 20 (in), without ESP-IDF and without its second stage. */
#include "board.h"

#define UART_FIFO REGISTER(0x60000000u)
#define UART_CLKDIV REGISTER(0x60000014u)
#define UART_STATUS REGISTER(0x6000001cu)
#define UART_CONF0 REGISTER(0x60000020u)
#define UART_CLK_CONF REGISTER(0x60000078u)
#define UART_ID REGISTER(0x60000080u)
#define RTC_OPTIONS0 REGISTER(0x60008000u)
#define RTC_WATCHDOG REGISTER(0x60008090u)
#define RTC_WATCHDOG_KEY REGISTER(0x600080a8u)
#define SUPER_WATCHDOG REGISTER(0x600080acu)
#define SUPER_WATCHDOG_KEY REGISTER(0x600080b0u)
#define PAD_IN REGISTER(0x60009054u)  /* GPIO 20 */
#define PAD_OUT REGISTER(0x60009058u) /* GPIO 21 */
#define ANALOG_CONF0 REGISTER(0x6000e040u)
#define ANALOG_CONFIG REGISTER(0x6000e044u)
#define TIMER_WATCHDOG REGISTER(0x6001f048u)
#define TIMER_WATCHDOG_KEY REGISTER(0x6001f064u)
#define SYSTIMER_OP REGISTER(0x60023004u)
#define SYSTIMER_LOW REGISTER(0x60023044u)
#define SYSTEM_CPU REGISTER(0x600c0008u)
#define SYSTEM_SYSCLK REGISTER(0x600c0058u)

#define CRYSTAL 40000000u
#define CLOCK 160000000u
#define TICK 16000000u /* Hz, of the system timer: the crystal / 2.5, whatever the processor's clock */
#define WATCHDOG_KEY 0x50d83aa1u
#define SUPER_KEY 0x8f1d312au
#define FIFO 128u

/* What the boot ROM (of revision 3 on) looks for where it finds no image of the usual format: "direct boot". It maps the
 * flash and jumps to what follows, which riscv/startup.c has. */
__attribute__((section(".boot"), used)) static const uint32_t boot[2] = {0xaedb041du, 0xaedb041du};

static void wait(volatile uint32_t *at, uint32_t bits, uint32_t wanted) {
    for (int turn = 0; turn < PATIENCE && (*at & bits) != wanted; ++turn) {
    }
}

/* Those that watch over the boot are on. */
static void stop_watchdogs(void) {
    RTC_WATCHDOG_KEY = WATCHDOG_KEY;
    RTC_WATCHDOG = 0u;
    RTC_WATCHDOG_KEY = 0u;
    SUPER_WATCHDOG_KEY = SUPER_KEY;
    SUPER_WATCHDOG |= 1u << 31; /* feeds itself */
    SUPER_WATCHDOG_KEY = 0u;
    TIMER_WATCHDOG_KEY = WATCHDOG_KEY;
    TIMER_WATCHDOG = 1u << 22; /* off; this takes effect */
    TIMER_WATCHDOG_KEY = 0u;
}

/* The PLL hangs on an internal bus that only the boot ROM speaks (rom_i2c_writeReg_Mask): bits of one of its registers. */
typedef void tell(uint8_t block, uint8_t host, uint8_t at, uint8_t highest, uint8_t lowest, uint8_t value);

static void tell_pll(uint8_t at, uint8_t highest, uint8_t lowest, uint8_t value) {
    ((tell *)0x40001960u)(0x66u, 0u, at, highest, lowest, value);
}

/* In ESP-IDF's order and with its numbers. It waits for nothing here, either. */
static void start_clock(void) {
    RTC_OPTIONS0 &= ~(1u << 10 | 1u << 8 | 1u << 6);      /* the PLL and its bus: powered */
    ANALOG_CONFIG &= ~(1u << 17);
    SYSTEM_CPU |= 1u << 2;                                /* it makes 480 MHz */
    ANALOG_CONF0 = (ANALOG_CONF0 & ~(1u << 2)) | 1u << 3; /* it calibrates itself */
    tell_pll(4u, 7u, 0u, 0x6bu);
    tell_pll(2u, 7u, 0u, 5u << 4);
    tell_pll(3u, 7u, 0u, 8u);
    tell_pll(5u, 2u, 0u, 0u);
    tell_pll(5u, 6u, 4u, 0u);
    tell_pll(6u, 7u, 0u, 2u << 6 | 1u << 4 | 3u);
    tell_pll(9u, 1u, 0u, 2u);
    tell_pll(6u, 5u, 4u, 2u);
    tell_pll(6u, 7u, 6u, 1u);
    SYSTEM_CPU = (SYSTEM_CPU & ~3u) | 1u;                 /* / 3 */
    SYSTEM_SYSCLK = (SYSTEM_SYSCLK & ~0xfffu) | 1u << 10; /* run from it */
}

static void start_serial(void) {
    const uint32_t divisor = (16u * CRYSTAL + BAUD / 2u) / BAUD; /* 16ths */
    wait(&UART_ID, 1u << 31, 0u);
    UART_ID &= ~(1u << 30);                                  /* what is written counts when it is told so */
    UART_CLK_CONF = 3u << 20 | 1u << 22 | 1u << 24 | 1u << 25; /* the crystal, to the sender and the receiver */
    UART_CLKDIV = (divisor & 15u) << 20 | divisor >> 4;
    UART_CONF0 = 1u << 28 | 1u << 4 | 3u << 2 | 3u << 17;    /* 8 bits; empty FIFOs */
    UART_CONF0 = 1u << 28 | 1u << 4 | 3u << 2;
    UART_ID |= 1u << 31;
    wait(&UART_ID, 1u << 31, 0u);
    PAD_OUT = 2u << 10;
    PAD_IN = 1u << 9 | 1u << 8; /* pulled up: silence when nothing is connected */
}

void board_start(void) {
    stop_watchdogs();
    start_clock();
    start_serial();
}

int board_receive(void) { return UART_STATUS & 0x3ffu ? (int)(UART_FIFO & 0xffu) : -1; }

void board_send(const uint8_t *bytes, int count) {
    for (int i = 0; i < count; ++i) {
        while ((UART_STATUS >> 16 & 0x3ffu) >= FIFO) {
        }
        UART_FIFO = bytes[i];
    }
}

static uint32_t ticks(void) {
    SYSTIMER_OP = 1u << 30; /* a copy of it all, to be read */
    wait(&SYSTIMER_OP, 1u << 29, 1u << 29);
    return SYSTIMER_LOW;
}

uint32_t board_milliseconds(void) {
    static uint32_t milliseconds, counted;
    const uint32_t passed = (ticks() - counted) / (TICK / 1000u);
    counted += TICK / 1000u * passed;
    milliseconds += passed;
    return milliseconds;
}

/* Ten at a time. */
uint32_t board_cycles(void) { return ticks() * (CLOCK / TICK); }

void board_restart(void) {
    RTC_OPTIONS0 |= 1u << 31;
    for (;;) {
    }
}
