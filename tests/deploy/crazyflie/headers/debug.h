#pragma once
void consolePrintf(const char *format, ...);
#define DEBUG_PRINT(fmt, ...) consolePrintf(DEBUG_MODULE ": " fmt, ##__VA_ARGS__)
