/* A plugin for QEMU's TCG: counts the instructions that a guest executes, exactly. Argument: counts=PATH, a file that is
 * mapped and may be read at any time:
 *   u64 instructions    those that count
 *   u64 empty_looks     how often the guest looked for work in vain
 *   u64 shortest        instructions of the shortest look
 * Our kernel looks for work in a loop before it halts and executes PAUSE after each look in vain. How many looks there are
 * depends on how fast the host is, so they are left out: what lies between two PAUSE is one of them if it is hardly
 * longer than the shortest that was ever seen, since a round that does something is several times as long.
 * One vCPU only. Source of the interface: QEMU 7.2, include/qemu/qemu-plugin.h, version 1; Debian ships no header, so what
 * is used of it is declared here.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct qemu_info_t qemu_info_t;
enum { QEMU_PLUGIN_CB_NO_REGS };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

EXPORT int qemu_plugin_version = 1;

struct counts {
    uint64_t instructions;
    uint64_t empty_looks;
    uint64_t shortest;
};

static struct counts *counts;
/* Instructions since the last PAUSE. */
static uint64_t since;

static void on_block(unsigned vcpu, void *instructions)
{
    since += (uintptr_t)instructions;
}

/* PAUSE ends the block that it is in. */
static void on_block_with_pause(unsigned vcpu, void *instructions)
{
    since += (uintptr_t)instructions;
    if (counts->shortest == 0 || since < counts->shortest)
        counts->shortest = since;
    if (since <= counts->shortest + counts->shortest / 2)
        counts->empty_looks++;
    else
        counts->instructions += since;
    since = 0;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    size_t count = qemu_plugin_tb_n_insns(tb);
    struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, count - 1);
    int pauses = qemu_plugin_insn_size(last) == 2 && memcmp(qemu_plugin_insn_data(last), "\xf3\x90", 2) == 0;
    qemu_plugin_register_vcpu_tb_exec_cb(tb, pauses ? on_block_with_pause : on_block, QEMU_PLUGIN_CB_NO_REGS, (void *)count);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc != 1 || strncmp(argv[0], "counts=", 7) != 0)
        return -1;
    int file = open(argv[0] + 7, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, sizeof *counts) != 0)
        return -1;
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (counts == MAP_FAILED)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
