/* Does this build compute what the policy file says, and how long does a step take on this board? One line a second. */
#include <policy.h>

#if defined(__AVR__)
#error "an AVR keeps constants in its RAM, which the weights do not fit"
#endif

static policy_state state;
static policy_signals nothing; /* all zeros: only the time matters */
static policy_commands commands;
static float worst;

void setup() {
    Serial.begin(115200);
    worst = policy_selftest(&state); /* as a share of what is tolerated */
}

void loop() {
    const int steps = 100;
    policy_reset(&state);
    const unsigned long began = micros();
    for (int k = 0; k < steps; ++k) policy_step(&state, &nothing, &commands);
    const float each = (float)(micros() - began) / (float)steps;
    Serial.print(policy_info()->name);
    Serial.print(worst <= 1.0f ? ": self-test passed, worst " : ": self-test FAILED, do not use it: worst ");
    Serial.print(worst, 4);
    Serial.print(" of the tolerance; ");
    Serial.print(each, 1);
    Serial.print(" us a step, of ");
    Serial.print(1e6f / policy_info()->rate_hz, 0);
    Serial.println(" us");
    delay(1000);
}
