/* A residual beside a verified policy, learned in flight: what the policy commands, and a bounded amount more.
 *
 * residual_step is policy_step with that. Before residual_begin, and once anything is not finite, it is policy_step alone.
 */
#ifndef RESIDUAL_H
#define RESIDUAL_H

#include "policy.h"

typedef enum { RESIDUAL_OFF, RESIDUAL_LEARNING, RESIDUAL_KEPT, RESIDUAL_BROKEN } residual_status;

typedef struct {
    uint8_t status, alone; /* alone: far from the target, where the policy flies by itself */
    uint8_t zeros[2];
    uint32_t updates;
    float share, mean, deviation; /* of the command's range: added now; what is learned, and explored around it */
} residual_report;

/* A flight begins, by the policy alone. */
void residual_reset(void);

/* From now on learn for so many control steps, then keep what was learned. */
void residual_begin(uint32_t seed, uint32_t steps);

/* One control step. False when the policy refuses: a signal or its result is not finite. */
bool residual_step(policy_state *state, const policy_signals *signals, policy_commands *commands);

residual_report residual_tell(void);

#endif
