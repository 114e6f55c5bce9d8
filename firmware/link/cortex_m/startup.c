/* From reset to main: vector table, floating point unit, memory. */
#include <stddef.h>
#include <stdint.h>

#include "core.h"

extern uint32_t stack_top, data_start, data_end, data_load, bss_start, bss_end;
int main(void);
void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memset(void *to, int value, size_t count);

/* The names of the ARM run-time ABI, which clang prefers. */
#define COPY(name) \
    __attribute__((used)) void name(void *to, const void *from, size_t count) { memcpy(to, from, count); }
#define CLEAR(name) \
    __attribute__((used)) void name(void *to, size_t count) { memset(to, 0, count); }
COPY(__aeabi_memcpy)
COPY(__aeabi_memcpy4)
COPY(__aeabi_memcpy8)
CLEAR(__aeabi_memclr)
CLEAR(__aeabi_memclr4)
CLEAR(__aeabi_memclr8)

__attribute__((noreturn, used)) void reset_handler(void) {
#ifdef __ARM_FP
    CPACR |= 0xfu << 20; /* full access to the floating point unit, before any code that uses it */
    __asm__ volatile("dsb\n\tisb" ::: "memory");
#endif
    for (uint32_t *to = &data_start, *from = &data_load; to < &data_end;) *to++ = *from++;
    for (uint32_t *to = &bss_start; to < &bss_end;) *to++ = 0u;
    main();
    for (;;) {
    }
}

/* A fault, or an interrupt that nobody asked for: reset, and announce READY again. */
__attribute__((noreturn, used)) static void fault_handler(void) {
    board_restart();
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) void *const vectors[16] = {
    &stack_top,    (void *)reset_handler, (void *)fault_handler, (void *)fault_handler,
    (void *)fault_handler, (void *)fault_handler, (void *)fault_handler, NULL, NULL, NULL, NULL,
    (void *)fault_handler, (void *)fault_handler, NULL, (void *)fault_handler, (void *)fault_handler,
};
