#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

char said[500];
static uint32_t cycles;
static _Alignas(16) unsigned char out[512];

int vsnprintf(char *to, __SIZE_TYPE__ size, const char *format, __builtin_va_list values);
int _setjmp(void *) __attribute__((returns_twice));
void longjmp(void *, int) __attribute__((noreturn));
int sample(void);
void bench(void);

uint32_t k_cycle_get_32(void) { return cycles += 64000; }
uint32_t k_cyc_to_us_floor32(uint32_t count) { return count / 64; }
int32_t k_msleep(int32_t ms) {
    (void)ms;
    longjmp(out, 1);
}
void printk(const char *format, ...) {
    __builtin_va_list values;
    __builtin_va_start(values, format);
    vsnprintf(said, sizeof said, format, values);
    __builtin_va_end(values);
}
void bench(void) {
    if (_setjmp(out) == 0) sample();
}
