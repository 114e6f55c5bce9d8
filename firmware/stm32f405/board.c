/* STM32F405 (RM0090): 168 MHz from the internal oscillator, USART1 on PA9 (out) and PA10 (in). */
#include "core.h"

#define RCC_CR REGISTER(0x40023800u)
#define RCC_PLLCFGR REGISTER(0x40023804u)
#define RCC_CFGR REGISTER(0x40023808u)
#define RCC_AHB1ENR REGISTER(0x40023830u)
#define RCC_APB2ENR REGISTER(0x40023844u)
#define FLASH_ACR REGISTER(0x40023c00u)
#define GPIOA_MODER REGISTER(0x40020000u)
#define GPIOA_PUPDR REGISTER(0x4002000cu)
#define GPIOA_AFRH REGISTER(0x40020024u)
#define USART1_SR REGISTER(0x40011000u)
#define USART1_DR REGISTER(0x40011004u)
#define USART1_BRR REGISTER(0x40011008u)
#define USART1_CR1 REGISTER(0x4001100cu)

#define SR_RECEIVED (1u << 5)
#define SR_SENDABLE (1u << 7)
#define CLOCK 168000000u

static void start_clock(void) { /* QEMU has none to start, it runs at 168 MHz from the beginning */
    /* 16 MHz / 16 * 336 / 2 = 168 MHz; /7 = 48 MHz for USB, which is not used. */
    RCC_PLLCFGR = 16u | 336u << 6 | 0u << 16 | 7u << 24;
    RCC_CR |= 1u << 24;
    for (int turn = 0; turn < PATIENCE; ++turn) {
        if (!(RCC_CR & 1u << 25)) continue;
        FLASH_ACR = 5u | 1u << 8 | 1u << 9 | 1u << 10;    /* five wait states; prefetch and both caches */
        RCC_CFGR = 5u << 10 | 4u << 13 | 2u;              /* APB1 42 MHz, APB2 84 MHz, run from the PLL */
        return;
    }
}

void board_start(void) {
    start_clock();
    RCC_AHB1ENR |= 1u;      /* GPIOA */
    RCC_APB2ENR |= 1u << 4; /* USART1 */
    GPIOA_MODER = (GPIOA_MODER & ~(0xfu << 18)) | 0xau << 18; /* PA9, PA10: alternate function */
    GPIOA_AFRH = (GPIOA_AFRH & ~(0xffu << 4)) | 0x77u << 4;   /* 7: USART1 */
    GPIOA_PUPDR = (GPIOA_PUPDR & ~(0x3u << 20)) | 0x1u << 20; /* PA10 pulled up: silence when nothing is connected */
    USART1_BRR = (CLOCK / 2u + BAUD / 2u) / BAUD;
    USART1_CR1 = 1u << 13 | 1u << 3 | 1u << 2; /* on, send, receive: bytes that come earlier are lost */
    core_start(CLOCK);
}

int board_receive(void) { return USART1_SR & SR_RECEIVED ? (int)(USART1_DR & 0xffu) : -1; }

void board_send(const uint8_t *bytes, int count) {
    for (int i = 0; i < count; ++i) {
        while (!(USART1_SR & SR_SENDABLE)) {
        }
        USART1_DR = bytes[i];
    }
}
