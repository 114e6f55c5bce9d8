/* The policy on the chip, asked over a serial line. deploy/mcu/policy.py speaks the other side.
 *
 * Frame: a5 5a, length of the payload (2 bytes), kind, sequence number, payload, CRC-16/CCITT (2 bytes) over all but
 * the first two; little-endian. Damage is skipped byte by byte until a whole frame fits; a frame that is not finished
 * after 20 ms is dropped. From the host:
 *   H            -> R: version, self-test passed, sizes of signals and commands (2 bytes each), SHA-256 of the policy (hex)
 *   B            -> B: the state is reset, a flight begins
 *   X            -> the chip restarts
 *   L seed steps -> L: from now on a residual is learned for so many control steps (4 bytes each), where it can
 *   M            -> M: what was learned until now (residual_report)
 *   S signals    -> C: status, 3 zeros, cycles (4 bytes), commands
 * A repeated S (the same number) gets the same answer again, without a second step. R is sent unasked ten times a second
 * until the host speaks. Status 1: no flight has begun since the last reset, or 200 ms passed between two S: the chip
 * answers no commands before a new B. Status 2: a signal or a command was not finite. Status 3: the self-test failed.
 */
#include "board.h"
#include "policy.h"
#if __has_include("residual.h") /* in the folder of a policy beside which something is learned */
#include "residual.h"
#define STEP residual_step
#define RESET_MORE residual_reset()
#else
#define STEP policy_step
#define RESET_MORE ((void)0)
#endif

#define VERSION 1
#define FRAME_MS 20u
#define SILENCE_MS 200u
#define ANNOUNCE_MS 100u
#define HEADER 6
#define HASH 64
#define INPUT_SIZE (HEADER + (int)sizeof(policy_signals) + 2)

enum { OK, NOT_BEGUN, NOT_FINITE, SELFTEST_FAILED };

typedef struct {
    uint8_t status, zeros[3];
    uint32_t cycles;
    policy_commands commands;
} answer;

static policy_state state;
static policy_signals signals;
static bool sound;
static enum { NONE, BEGUN, FLYING } flight; /* FLYING: since the first S */
static uint32_t heard;                      /* ms: the last S */

static uint8_t input[INPUT_SIZE], output[HEADER + sizeof(answer) + HASH + 8];
static int received;
static int output_size, answered = -1; /* the last answer to an S, and its number */

static uint16_t crc16(const uint8_t *bytes, int count) {
    uint16_t crc = 0xffffu;
    for (int i = 0; i < count; ++i) {
        uint16_t x = (uint16_t)(crc >> 8 ^ bytes[i]);
        x ^= x >> 4;
        crc = (uint16_t)(crc << 8 ^ x << 12 ^ x << 5 ^ x);
    }
    return crc;
}

static void copy(void *to, const void *from, int count) {
    for (int i = 0; i < count; ++i) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
}

static void send(uint8_t kind, uint8_t sequence, const void *payload, int count) {
    output[0] = 0xa5;
    output[1] = 0x5a;
    output[2] = (uint8_t)count;
    output[3] = (uint8_t)(count >> 8);
    output[4] = kind;
    output[5] = sequence;
    copy(output + HEADER, payload, count);
    const uint16_t crc = crc16(output + 2, count + HEADER - 2);
    output[HEADER + count] = (uint8_t)crc;
    output[HEADER + count + 1] = (uint8_t)(crc >> 8);
    output_size = HEADER + count + 2;
    board_send(output, output_size);
}

static void announce(uint8_t sequence) {
    uint8_t text[6 + HASH] = {VERSION, sound, (uint8_t)sizeof signals, (uint8_t)(sizeof signals >> 8),
                              (uint8_t)sizeof(policy_commands), (uint8_t)(sizeof(policy_commands) >> 8)};
    copy(text + 6, policy_info()->sha256, HASH);
    send('R', sequence, text, sizeof text);
    answered = -1;
}

static void step(uint8_t sequence, uint32_t now) {
    if (answered == sequence) { /* the answer was lost: once more, the policy must not step twice */
        board_send(output, output_size);
        return;
    }
    answer reply = {.status = sound ? OK : SELFTEST_FAILED};
    if (flight == FLYING && now - heard > SILENCE_MS) flight = NONE;
    if (reply.status == OK && flight == NONE) reply.status = NOT_BEGUN;
    if (reply.status == OK) {
        copy(&signals, input + HEADER, sizeof signals);
        const uint32_t began = board_cycles();
        if (!STEP(&state, &signals, &reply.commands)) reply.status = NOT_FINITE;
        reply.cycles = board_cycles() - began;
        heard = now;
        flight = FLYING;
    }
    send('C', sequence, &reply, sizeof reply);
    answered = sequence;
}

static void obey(uint8_t kind, uint8_t sequence, int count, uint32_t now) {
    if (kind == 'H' && count == 0) announce(sequence);
    if (kind == 'B' && count == 0) {
        policy_reset(&state);
        RESET_MORE;
        flight = BEGUN;
        send('B', sequence, "", 0);
        answered = -1;
    }
    if (kind == 'X' && count == 0) board_restart();
    if (kind == 'S' && count == (int)sizeof signals) step(sequence, now);
#ifdef RESIDUAL_H
    if (kind == 'L' && count == 8) {
        uint32_t told[2];
        copy(told, input + HEADER, sizeof told);
        residual_begin(told[0], told[1]);
        send('L', sequence, "", 0);
        answered = -1;
    }
    if (kind == 'M' && count == 0) {
        const residual_report report = residual_tell();
        send('M', sequence, &report, sizeof report);
        answered = -1;
    }
#endif
}

static void drop(int count) {
    for (int i = count; i < received; ++i) input[i - count] = input[i];
    received -= count;
}

/* True when the bytes so far ended in a frame, which was obeyed. */
static bool parse(uint32_t now) {
    bool found = false;
    while (received > 0) {
        if (input[0] != 0xa5 || (received > 1 && input[1] != 0x5a)) {
            drop(1);
            continue;
        }
        if (received < HEADER) break;
        const int count = input[2] | input[3] << 8;
        if (count > (int)sizeof signals) {
            drop(1);
            continue;
        }
        if (received < HEADER + count + 2) break;
        if (crc16(input + 2, HEADER - 2 + count) != (input[HEADER + count] | input[HEADER + count + 1] << 8)) {
            drop(1);
            continue;
        }
        obey(input[4], input[5], count, now);
        drop(HEADER + count + 2);
        found = true;
    }
    return found;
}

int main(void) {
    board_start();
    sound = policy_init(&state);
    bool spoken_to = false;
    uint32_t announced = board_milliseconds() - ANNOUNCE_MS, last_byte = 0;
    for (;;) {
        const uint32_t now = board_milliseconds();
        for (int byte; (byte = board_receive()) >= 0;) {
            input[received++] = (uint8_t)byte;
            last_byte = now;
            spoken_to |= parse(now);
        }
        if (received && now - last_byte > FRAME_MS) { /* never finished: perhaps its beginning was not one */
            drop(1);
            spoken_to |= parse(now);
        }
        if (!spoken_to && now - announced >= ANNOUNCE_MS) {
            announced = now;
            announce(0);
        }
        board_idle();
    }
}
