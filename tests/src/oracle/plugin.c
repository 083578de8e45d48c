/* A plugin for QEMU's TCG: counts how often each translation block of the guest is executed and how
 * much time passes in it, exactly. Arguments: counts=PATH, and merge=BITS: all blocks at addresses of at most so many bits are one
 * with the address 0, as those of all processes of a guest, which share addresses. The counts are in that file, which is mapped and may be
 * read at any time:
 *   u64 blocks          records that are in use
 *   u64 lost            blocks for which there was no record left
 *   u64 idle_ticks      time in which the vCPU was halted or stopped
 *   u64 reserved
 *   struct block record[BLOCKS_MAX]
 *   u64 slices          slice records that are in use
 *   u64 slices_lost     slices for which there was no record left
 *   struct slice slice[SLICES_MAX]
 * Times are ticks of the time stamp counter. One vCPU only.
 *
 * The slices are the time in which the vCPU was not idle, in order: a long time within one block (a device's register
 * was accessed, the host ran something else, a profiler held the thread), or SLICE_TICKS_MIN of short blocks, which count as
 * the last of them. Their time is part of the blocks' ticks; a reader who has the intervals in which the thread was
 * held can take that time away.
 * Source of the interface: QEMU 7.2, include/qemu/qemu-plugin.h, version 1; Debian ships no header,
 * so what is used of it is declared here.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef struct qemu_info_t qemu_info_t;
enum { QEMU_PLUGIN_CB_NO_REGS };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_idle_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned));
void qemu_plugin_register_vcpu_resume_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);

EXPORT int qemu_plugin_version = 1;

#define BLOCKS_MAX 1048576
#define SLICES_MAX 16777216
/* Some 10 us. */
#define SLICE_TICKS_MIN 25000

struct block {
    uint64_t address;
    uint64_t instructions;
    uint64_t executions;
    uint64_t ticks;
};

struct slice {
    uint64_t block;      /* index of its record */
    uint64_t ticks;
    uint64_t end_ticks;  /* the counter at its end */
    uint64_t end_ns;     /* the same moment by CLOCK_BOOTTIME */
};

struct counts {
    uint64_t blocks;
    uint64_t lost;
    uint64_t idle_ticks;
    uint64_t reserved;
    struct block record[BLOCKS_MAX];
    uint64_t slices;
    uint64_t slices_lost;
    struct slice slice[SLICES_MAX];
};

static struct counts *counts;
static struct block *current;
/* Blocks at addresses below this one are one. */
static uint64_t merged_end;
static struct block *merged;
static uint64_t since;
/* End of the last slice. */
static uint64_t sliced;

/* The time from the last slice to `end` is one of the current block. */
static void add_slice(uint64_t end)
{
    uint64_t ticks = end - sliced;
    sliced = end;
    if (counts->slices == SLICES_MAX) {
        counts->slices_lost++;
        return;
    }
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    struct slice *slice = &counts->slice[counts->slices];
    slice->block = current - counts->record;
    slice->ticks = ticks;
    slice->end_ticks = end;
    slice->end_ns = time.tv_sec * 1000000000ull + time.tv_nsec;
    __atomic_store_n(&counts->slices, counts->slices + 1, __ATOMIC_RELEASE);
}

/* The time up to now belongs to the block that was executed last. */
static void end_block(uint64_t now)
{
    if (!current) {
        sliced = now;
        return;
    }
    current->ticks += now - since;
    if (now - sliced >= SLICE_TICKS_MIN)
        add_slice(now);
}

static void on_block(unsigned vcpu, void *block)
{
    uint64_t now = __rdtsc();
    end_block(now);
    since = now;
    current = block;
    current->executions++;
}

/* A new record, if there is room. */
static struct block *add_block(uint64_t address, uint64_t instructions)
{
    if (counts->blocks == BLOCKS_MAX) {
        counts->lost++;
        return NULL;
    }
    struct block *block = &counts->record[counts->blocks];
    block->address = address;
    block->instructions = instructions;
    counts->blocks++;
    return block;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    uint64_t address = qemu_plugin_tb_vaddr(tb);
    struct block *block;
    if (address < merged_end) {
        /* Its number of instructions is that of none of its parts. */
        if (!merged)
            merged = add_block(0, 0);
        block = merged;
    } else {
        block = add_block(address, qemu_plugin_tb_n_insns(tb));
    }
    if (block)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
}

static void on_idle(qemu_plugin_id_t id, unsigned vcpu)
{
    uint64_t now = __rdtsc();
    end_block(now);
    since = now;
    current = NULL;
}

static void on_resume(qemu_plugin_id_t id, unsigned vcpu)
{
    uint64_t now = __rdtsc();
    counts->idle_ticks += now - since;
    since = now;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc < 1 || argc > 2 || strncmp(argv[0], "counts=", 7) != 0)
        return -1;
    if (argc == 2) {
        if (strncmp(argv[1], "merge=", 6) != 0)
            return -1;
        merged_end = 1ull << atoi(argv[1] + 6);
    }
    int file = open(argv[0] + 7, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, sizeof *counts) != 0)
        return -1;
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (counts == MAP_FAILED)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_idle_cb(id, on_idle);
    qemu_plugin_register_vcpu_resume_cb(id, on_resume);
    return 0;
}
