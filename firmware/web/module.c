/* A policy as a WebAssembly module that imports nothing: one controller, with its state, per instance of the module.
 *
 * Where the members of signals and commands lie is said in the module's section "sim2metal" (deploy/web/wasm.py);
 * policy.mjs reads it. */
#include "module.h"

static policy_state state, scratch;
policy_signals signals;
policy_commands commands;

EXPORTED("signals") policy_signals *module_signals(void) { return &signals; }

EXPORTED("commands") policy_commands *module_commands(void) { return &commands; }

EXPORTED("reset") void module_reset(void) { policy_reset(&state); }

/* Commands for the signals; false: something is not finite, and nothing has changed. */
EXPORTED("step") bool module_step(void) { return policy_step(&state, &signals, &commands); }

/* The largest disagreement with the file's test vectors, as a share of what is tolerated. */
EXPORTED("selftest") float module_selftest(void) { return policy_selftest(&scratch); }

/* Take `steps` steps of another controller under the present signals, for a clock; how many it could not take. */
EXPORTED("idle") int module_idle(int steps) {
    policy_commands made;
    int failed = 0;
    policy_reset(&scratch);
    for (int k = 0; k < steps; ++k) failed += !policy_step(&scratch, &signals, &made);
    return failed;
}
