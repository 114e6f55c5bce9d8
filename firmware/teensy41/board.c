/* i.MX RT1062 (IMXRT1060RM) of a Teensy 4.1: 600 MHz from the crystal of 24 MHz, LPUART6 on its pins 1 (out) and 0 (in). */
#include "core.h"

#define DCDC_REG0 REGISTER(0x40080000u)
#define DCDC_REG3 REGISTER(0x4008000cu)
#define PLL_ARM REGISTER(0x400d8000u)
#define CCM_CACRR REGISTER(0x400fc010u)
#define CCM_CBCDR REGISTER(0x400fc014u)
#define CCM_CBCMR REGISTER(0x400fc018u)
#define CCM_CSCDR1 REGISTER(0x400fc024u)
#define CCM_CDHIPR REGISTER(0x400fc048u)
#define CCM_CCGR3 REGISTER(0x400fc074u)
#define UART_BAUD REGISTER(0x40198010u)
#define UART_STAT REGISTER(0x40198014u)
#define UART_CTRL REGISTER(0x40198018u)
#define UART_DATA REGISTER(0x4019801cu)
#define MUX_TX REGISTER(0x401f80c4u) /* GPIO_AD_B0_02 */
#define MUX_RX REGISTER(0x401f80c8u) /* GPIO_AD_B0_03 */
#define PAD_TX REGISTER(0x401f82b4u)
#define PAD_RX REGISTER(0x401f82b8u)
#define SELECT_RX REGISTER(0x401f8550u)
#define VTOR REGISTER(0xe000ed08u)
#define CCR REGISTER(0xe000ed14u)
#define MPU_CTRL REGISTER(0xe000ed94u)
#define MPU_RBAR REGISTER(0xe000ed9cu)
#define MPU_RASR REGISTER(0xe000eda0u)
#define ICIALLU REGISTER(0xe000ef50u)
#define DCISW REGISTER(0xe000ef60u)

#define CLOCK 600000000u
#define STAT_SENDABLE (1u << 23)
#define STAT_RECEIVED (1u << 21)
#define STAT_OVERRUN (1u << 19)
#define WAYS 4u
#define SETS 256u /* of 32 bytes: 32 kB */

/* Of a region of the MPU (Armv7-M manual, B3.5): 2^bits bytes, who may do what with them, and how they are kept. */
#define REGIONS 16u
#define SIZE(bits) (((bits) - 1u) << 1 | 1u)
#define NOBODY (1u << 28)
#define CODE (6u << 24 | 1u << 17)             /* read and executed, cached */
#define DATA (1u << 28 | 3u << 24 | 1u << 19)  /* read and written, not cached */
#define DEVICE (1u << 28 | 3u << 24 | 1u << 16)

extern const uint32_t flash_begin[], image_bytes[]; /* the linker's: addresses are values */
extern void *const vectors[];

/* What the boot ROM reads: how the flash is read (the manual's table of the serial NOR's configuration block), and, 4 kB
 * on, what is to be started. The plainest command, 03h on one line at 30 MHz: any such chip answers it. */
typedef struct {
    uint32_t tag, version, zero0, sampling;
    uint32_t zeros1[13], kind, zeros2[2];
    uint32_t size, zeros3[11];
    uint32_t sequences[64], zeros4[16];
    uint32_t page, sector, clock, zero5, block, zeros6[11];
    uint32_t room[896];
    uint32_t header;
    const void *entry;
    uint32_t zeros7[2];
    const void *data, *self;
    uint32_t zeros8[2];
    const void *begin, *length; /* `data` */
    uint32_t plugin;
    uint32_t more[1013];
} boot_table;

_Static_assert(sizeof(boot_table) == 0x2000, "the table is 8 kB");

__attribute__((section(".boot"), used)) static const boot_table boot = {
    .tag = 0x42464346u, /* "FCFB" */
    .version = 0x56010000u,
    .sampling = 0x00030300u, /* hold and setup of 3 clocks each, clocked from inside */
    .kind = 0x00010101u,     /* 30 MHz, one line, a serial NOR */
    .size = 8u << 20,
    .sequences = {(2u << 10 | 24u) << 16 | 1u << 10 | 0x03u, 9u << 10 | 4u}, /* command, address of 24 bits; read */
    .page = 256u,
    .sector = 4096u,
    .clock = 1u, /* 30 MHz */
    .block = 65536u,
    .header = 0x412000d1u,
    .entry = vectors,
    .data = &boot.begin,
    .self = &boot.header,
    .begin = flash_begin,
    .length = image_bytes,
};

static void wait(volatile uint32_t *at, uint32_t bits, uint32_t wanted) {
    for (int turn = 0; turn < PATIENCE && (*at & bits) != wanted; ++turn) {
    }
}

/* A Cortex-M7 reads ahead by guessing, also where nothing answers: behind the flash, or where no memory is connected. So
 * all that is not used is closed to it. Its own registers, from 0xe0000000 on, are always open. */
static void start_protection(void) {
    static const uint32_t regions[][2] = {
        {0x00000000u, NOBODY | SIZE(32u)},
        {0x20000000u, DATA | SIZE(17u)},   /* DTCM */
        {0x40000000u, DEVICE | SIZE(22u)}, /* peripherals */
        {0x60000000u, CODE | SIZE(23u)},   /* the flash */
    };
    MPU_CTRL = 0u;
    for (uint32_t region = 0; region < REGIONS; ++region) {
        const int used = region < sizeof regions / sizeof *regions;
        MPU_RBAR = (used ? regions[region][0] : 0u) | 1u << 4 | region;
        MPU_RASR = used ? regions[region][1] : 0u;
    }
    __asm__ volatile("dsb" ::: "memory");
    MPU_CTRL = 1u;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
}

/* The flash answers slowly: code and weights are kept. RAM is the processor's own and not cached. */
static void start_caches(void) {
    ICIALLU = 0u;
    for (uint32_t set = 0; set < SETS; ++set)
        for (uint32_t way = 0; way < WAYS; ++way) DCISW = way << 30 | set << 5;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    CCR |= 1u << 17 | 1u << 16;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
}

static void start_clock(void) {
    DCDC_REG3 = (DCDC_REG3 & ~0x1fu) | 18u;              /* 0.8 + 18 * 0.025 = 1.25 V */
    wait(&DCDC_REG0, 1u << 31, 1u << 31);
    CCM_CBCMR = (CCM_CBCMR & ~(3u << 12)) | 1u << 12;    /* the crystal, while the PLL changes */
    CCM_CBCDR |= 1u << 25;
    wait(&CCM_CDHIPR, 1u << 5, 0u);
    PLL_ARM = 1u << 12;                                  /* off */
    PLL_ARM = 100u | 1u << 13;                           /* 24 MHz * 100 / 2 = 1200 MHz */
    wait(&PLL_ARM, 1u << 31, 1u << 31);
    CCM_CACRR = 1u;                                      /* / 2 = 600 MHz */
    wait(&CCM_CDHIPR, 1u << 16, 0u);
    CCM_CBCDR = (CCM_CBCDR & ~(7u << 10 | 3u << 8)) | 3u << 8; /* the core / 1; peripherals / 4 = 150 MHz */
    CCM_CBCMR |= 3u << 18;                               /* from the PLL */
    CCM_CBCDR &= ~(1u << 25);
    wait(&CCM_CDHIPR, 1u << 5, 0u);
}

void board_start(void) {
    VTOR = (uint32_t)vectors;
    start_protection();
    start_caches();
    start_clock();
    CCM_CSCDR1 = (CCM_CSCDR1 & ~0x3fu) | 1u << 6; /* serial ports: the crystal */
    CCM_CCGR3 |= 3u << 6;                         /* LPUART6 */
    MUX_TX = MUX_RX = 2u;                         /* LPUART6 */
    SELECT_RX = 1u;                               /* by GPIO_AD_B0_03 */
    PAD_TX = 6u << 3;
    PAD_RX = 1u << 12 | 1u << 13 | 2u << 14 | 1u << 16; /* pulled up by 100 kOhm: silence when nothing is connected */
    UART_CTRL = 0u;
    UART_BAUD = 25u << 24 | 1u;                   /* 24 MHz / 26 / 1: 0.2 % more than 921 600 */
    UART_CTRL = 1u << 19 | 1u << 18;
    core_start(CLOCK);
}

int board_receive(void) {
    const uint32_t status = UART_STAT;
    if (status & STAT_OVERRUN) UART_STAT = STAT_OVERRUN; /* bytes were lost; without this no more would come */
    return status & STAT_RECEIVED ? (int)(UART_DATA & 0xffu) : -1;
}

void board_send(const uint8_t *bytes, int count) {
    for (int i = 0; i < count; ++i) {
        while (!(UART_STAT & STAT_SENDABLE)) {
        }
        UART_DATA = bytes[i];
    }
}
