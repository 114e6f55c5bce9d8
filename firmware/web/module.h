#ifndef MODULE_H
#define MODULE_H

#include "policy.h"

#define EXPORTED(name) __attribute__((export_name(name)))

extern policy_signals signals;
extern policy_commands commands;

void module_reset(void);
bool module_step(void);

#endif
