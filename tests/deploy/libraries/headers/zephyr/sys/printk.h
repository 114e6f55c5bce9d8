#pragma once

void printk(const char *format, ...) __attribute__((format(printf, 1, 2)));
