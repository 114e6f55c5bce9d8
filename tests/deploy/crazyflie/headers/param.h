#pragma once
#include <stdint.h>

struct param_s {
    uint8_t type;
    const char *name;
    void *address;
};
typedef struct {
    uint16_t id, index;
} __attribute__((packed)) paramVarId_t;
paramVarId_t paramGetVarId(const char *group, const char *name);
void paramSetInt(paramVarId_t varid, int valuei);

#define PARAM_UINT8 0x08
#define PARAM_FLOAT 0x06
#define PARAM_ADD(TYPE, NAME, ADDRESS) {.type = TYPE, .name = #NAME, .address = (void *)(ADDRESS)},
#define PARAM_GROUP_START(NAME) const struct param_s params_##NAME[] = {
#define PARAM_GROUP_STOP(NAME) {.type = 0}};
