/* From reset to main: no interrupts, what happens on a fault, the stack, floating point, memory. */
#include "board.h"

extern uint32_t data_start, data_end, data_load, bss_start, bss_end;
int main(void);

/* The first instruction. Chips whose faults and interrupts always go through a table want it at a multiple of 256. */
__asm__(".section .start, \"ax\", %progbits\n"
        ".globl reset_handler\n"
        ".type reset_handler, %function\n"
        "reset_handler:\n"
        ".option push\n"
        ".option arch, +zicsr\n"
        "    csrci mstatus, 8\n"
        "    la t0, traps\n"
        "    ori t0, t0, 1\n"
        "    csrw mtvec, t0\n"
        "    la sp, stack_top\n"
#ifdef __riscv_flen
        "    li t0, 0x2000\n" /* the floating point unit: on */
        "    csrs mstatus, t0\n"
#endif
        "    j start\n"
        ".option pop\n"
        ".section .text.traps, \"ax\", %progbits\n"
        ".option push\n"
        ".option norvc\n" /* four bytes each */
        ".balign 256\n"
        "traps:\n"
        ".rept 32\n"
        "    j fault_handler\n"
        ".endr\n"
        ".option pop\n"
        ".text\n");

__attribute__((noreturn, used)) void start(void) {
    for (uint32_t *to = &data_start, *from = &data_load; to < &data_end;) *to++ = *from++;
    for (uint32_t *to = &bss_start; to < &bss_end;) *to++ = 0u;
    main();
    for (;;) {
    }
}

/* A fault, or an interrupt that nobody asked for: reset, and announce READY again. */
__attribute__((noreturn, used)) void fault_handler(void) {
    board_restart();
    for (;;) {
    }
}
