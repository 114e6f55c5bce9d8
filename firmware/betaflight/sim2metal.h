/* A policy in place of Betaflight's mixer, while the pilot's switch USER1 says so. */
#pragma once

#include "common/time.h"

/* At every turn of the PID loop, after mixTable(): where the policy flies, `motor` is what it commands. */
void sim2metalUpdate(timeUs_t now);

/* Why it does not fly, or stopped: a flight_reason. */
int sim2metalReason(void);
