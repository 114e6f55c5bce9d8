/* What the sample needs of Zephyr, for the tests: what is printed is kept, and the first nap ends it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

uint32_t k_cycle_get_32(void);
uint32_t k_cyc_to_us_floor32(uint32_t cycles);
int32_t k_msleep(int32_t ms);
