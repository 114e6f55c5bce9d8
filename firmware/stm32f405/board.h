/* The few registers of the STM32F405 that the image uses (RM0090), and what main.c needs of the board. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))

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
#define SYSTICK_CTRL REGISTER(0xe000e010u)
#define SYSTICK_LOAD REGISTER(0xe000e014u)
#define SYSTICK_VAL REGISTER(0xe000e018u)
#define CPACR REGISTER(0xe000ed88u)
#define AIRCR REGISTER(0xe000ed0cu)
#define DEMCR REGISTER(0xe000edfcu)
#define DWT_CTRL REGISTER(0xe0001000u)
#define DWT_CYCCNT REGISTER(0xe0001004u)

#define BAUD 921600u

/* 168 MHz from the internal oscillator, USART1 on PA9 (out) and PA10 (in), 1 ms ticks, the cycle counter. */
void board_start(void);

/* The next received byte, or -1. */
int board_receive(void);

void board_send(const uint8_t *bytes, int count);

/* Milliseconds since the start. Must be called more often than that to keep count. */
uint32_t board_milliseconds(void);

void board_restart(void);

/* Called when there is nothing to do; the emulator returns to its caller here. */
void board_idle(void);

#endif
