/* Does this build compute what the policy file says, and how long does a step take on this board? One line a second. */
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

#include <policy.h>

#define STEPS 100

static policy_state state;
static policy_signals nothing; /* all zeros: only the time matters */
static policy_commands commands;

int main(void) {
    const float worst = policy_selftest(&state); /* as a share of what is tolerated */
    const int thousandths = worst < 1e6f ? (int)(1000.0f * worst) : -1;
    while (true) {
        policy_reset(&state);
        const uint32_t began = k_cycle_get_32();
        for (int k = 0; k < STEPS; ++k) policy_step(&state, &nothing, &commands);
        const uint32_t spent = k_cycle_get_32() - began;
        printk("%s: self-test %s, worst %d thousandths of the tolerance; %u us a step, of %u us\n", policy_info()->name,
               worst <= 1.0f ? "passed" : "FAILED, do not use it", thousandths,
               (unsigned)(k_cyc_to_us_floor32(spent) / STEPS), (unsigned)(1e6f / policy_info()->rate_hz));
        k_msleep(1000);
    }
}
