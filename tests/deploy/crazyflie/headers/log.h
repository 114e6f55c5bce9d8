#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef uint16_t logVarId_t;
logVarId_t logGetVarId(const char *group, const char *name);
float logGetFloat(logVarId_t varid);
static inline bool logVarIdIsValid(logVarId_t varId) { return varId != 0xffffu; }

struct log_s {
    uint8_t type;
    const char *name;
    void *address;
};
#define LOG_UINT8 1
#define LOG_UINT32 3
#define LOG_FLOAT 7
#define LOG_ADD(TYPE, NAME, ADDRESS) {.type = TYPE, .name = #NAME, .address = (void *)(ADDRESS)},
#define LOG_GROUP_START(NAME) const struct log_s logs_##NAME[] = {
#define LOG_GROUP_STOP(NAME) {.type = 0}};
