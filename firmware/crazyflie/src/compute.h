/* The policy's steps: at once, where they are asked for, or, when the stabilizer's millisecond is too short for one
 * (POLICY_TASK in vehicle.h), in a task of their own below it and below the estimator. */
#ifndef COMPUTE_H
#define COMPUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "policy.h"

/* Before the first step; again does nothing. */
void compute_init(void);

/* The policy's self-test: the largest disagreement as a share of the tolerated. Before the first step. */
float compute_selftest(void);

/* The next step is the first of its episode; whatever is still under way is not heard. */
void compute_forget(void);

/* Begins a step; false while another one is under way. */
bool compute_ask(const policy_signals *inputs);

/* True once for every step, when it is through. `sound`: it has commands. `duration`: us, in a task of its own with what
 * others took meanwhile. */
bool compute_answer(policy_commands *commands, bool *sound, uint32_t *duration);

#endif
