#include "compute.h"

#include "usec_time.h"
#include "vehicle.h"

typedef struct {
    policy_signals inputs;
    policy_commands commands;
    uint32_t duration; /* us */
    bool anew, sound;
} step;

static policy_state memory;
static step current;
static bool anew; /* the next step is the first */

static void run(void) {
    const uint64_t started = usecTimestamp();
    if (current.anew) policy_reset(&memory);
    current.sound = policy_step(&memory, &current.inputs, &current.commands);
    current.duration = (uint32_t)(usecTimestamp() - started);
}

#if POLICY_TASK

#include "FreeRTOS.h"
#include "task.h"

#define PRIORITY 1 /* the estimator has 2, the stabilizer 5 */
#define STACK (150 + POLICY_STACK / 4) /* words; 150 is the firmware's least */

/* Who may touch `current`: the stabilizer's task while IDLE or ANSWERED, the policy's own while ASKED. */
enum { IDLE, ASKED, ANSWERED };
static uint8_t stage;
static bool unheard; /* what is under way was forgotten */
static StackType_t stack[STACK];
static StaticTask_t block;
static TaskHandle_t worker;

static uint8_t now_at(void) { return __atomic_load_n(&stage, __ATOMIC_ACQUIRE); }

static void pass_to(uint8_t next) { __atomic_store_n(&stage, next, __ATOMIC_RELEASE); }

static void work(void *nothing) {
    (void)nothing;
    while (true) {
        ulTaskNotifyTake(pdTRUE, portMAX_DELAY);
        if (now_at() != ASKED) continue;
        run();
        pass_to(ANSWERED);
    }
}

void compute_init(void) {
    if (!worker) worker = xTaskCreateStatic(work, "POLICY", STACK, 0, PRIORITY, stack, &block);
}

static bool busy(void) {
    const uint8_t at = now_at();
    const bool dropped = at == ANSWERED && unheard;
    if (dropped) pass_to(IDLE);
    unheard = unheard && at == ASKED;
    return at != IDLE && !dropped;
}

void compute_forget(void) {
    anew = unheard = true;
    busy();
}

static void begin(void) {
    pass_to(ASKED);
    xTaskNotifyGive(worker);
}

static bool through(void) {
    if (!busy() || now_at() != ANSWERED) return false;
    pass_to(IDLE); /* who asks and who hears is one task */
    return true;
}

#else

static bool waits; /* an answer */

void compute_init(void) {}

static bool busy(void) { return false; }

void compute_forget(void) {
    anew = true;
    waits = false;
}

static void begin(void) {
    run();
    waits = true;
}

static bool through(void) {
    const bool is = waits;
    waits = false;
    return is;
}

#endif

float compute_selftest(void) { return policy_selftest(&memory); }

bool compute_ask(const policy_signals *inputs) {
    if (busy()) return false;
    current.inputs = *inputs;
    current.anew = anew;
    anew = false;
    begin();
    return true;
}

bool compute_answer(policy_commands *commands, bool *sound, uint32_t *duration) {
    if (!through()) return false;
    *commands = current.commands;
    *sound = current.sound;
    *duration = current.duration;
    return true;
}
