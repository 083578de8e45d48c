// A small VMM for tests: loads a guest's ELF file and runs it by KVM, one thread for each vCPU.
//   vmm GUEST STATUS [vcpus=4] [sealed|plain|anonymous|shared|nodes] [seccomp] [signals=HZ] [gaps] [apic]
// RAM is a memfd that cannot shrink, one that can, memory that only this process has, as solo5-hvt has it
// (shared memory without a file, of which the guest's code is protected), or two memfds of one size. With `seccomp`
// the vCPUs' threads may make no system call but KVM_RUN and the return from a signal. With `signals`
// the first vCPU's thread gets a signal that often, each after the one before has arrived. STATUS is a
// file through which the test sees what has happened, and gives commands. With `gaps` only each second number is that of
// a vCPU, as with APIC ids on machines whose number of cores is no power of two. With `apic` KVM has the APICs, and polls for a second before
// the thread of a halted vCPU sleeps; without, that thread waits here for 50 ms, on a condition, as in QEMU with `kernel-irqchip=off`.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RAM_BYTES (64ul << 20)
#define VCPUS_MAX 4

enum command { NONE, SHRINK_RAM, END_SECOND_VCPU, EXEC, PAUSE, CONTINUE };

struct status {
    volatile uint64_t ready, sent, received, swallowed, interrupted, command, done;
};

static struct status *status;
static int vm, memory_fd = -1, ring_filter, ids_apart = 1, has_apic, misnamed;
static uint8_t *ram;

struct vcpu {
    int index, fd;
    struct kvm_run *run;
    pthread_t thread;
    volatile pid_t id;
    volatile int waits;
};
static struct vcpu vcpus[VCPUS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static volatile int is_paused;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int checked(int result, const char *what) {
    if (result < 0) fail(what);
    return result;
}

static void on_signal(int signal) {
    (void)signal;
    __atomic_fetch_add(&status->received, 1, __ATOMIC_SEQ_CST);
}

static void forbid_other_calls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, KVM_RUN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    checked(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    checked(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

// Waits until the VM is not paused.
static void wait_while_paused(struct vcpu *vcpu) {
    if (!is_paused) return;
    pthread_mutex_lock(&lock);
    vcpu->waits = 1;
    while (is_paused) pthread_cond_wait(&condition, &lock);
    vcpu->waits = 0;
    pthread_mutex_unlock(&lock);
}

// Waits for an interrupt, of which there is none: the vCPU resumes after a while.
static void wait_halted(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    pthread_cond_timedwait(&condition, &lock, &until);
    pthread_mutex_unlock(&lock);
}

static void *run_vcpu(void *argument) {
    struct vcpu *vcpu = argument;
    char name[16];
    snprintf(name, sizeof name, "vcpu %d", vcpu->index ^ misnamed);
    prctl(PR_SET_NAME, name);
    vcpu->id = syscall(SYS_gettid);
    if (ring_filter) forbid_other_calls();
    for (;;) {
        wait_while_paused(vcpu);
        int result = ioctl(vcpu->fd, KVM_RUN, 0);
        if (vcpu->index == 1 && status->command == END_SECOND_VCPU) return 0;
        if (result < 0 && errno == EINTR) {
            __atomic_fetch_add(&status->interrupted, 1, __ATOMIC_SEQ_CST);
        } else if (result < 0 && status->command == SHRINK_RAM) {
            // Its RAM is gone.
            usleep(1000);
        } else if (result < 0) {
            fail("KVM_RUN");
        } else if (vcpu->run->exit_reason == KVM_EXIT_HLT) {
            wait_halted();
        } else if (vcpu->run->exit_reason != KVM_EXIT_INTR && status->command == NONE) {
            fprintf(stderr, "vcpu %d: exit %u\n", vcpu->index, vcpu->run->exit_reason);
            exit(1);
        }
    }
}

// Loads a guest; returns the address of the symbol `other`.
static uint64_t load(const char *path, uint64_t *entry, const char *other) {
    int file = checked(open(path, O_RDONLY), path);
    off_t bytes = lseek(file, 0, SEEK_END);
    uint8_t *elf = mmap(0, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (elf == MAP_FAILED) fail(path);
    Elf64_Ehdr *header = (void *)elf;
    Elf64_Phdr *segments = (void *)(elf + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD)
            memcpy(ram + segments[i].p_paddr, elf + segments[i].p_offset, segments[i].p_filesz);
    *entry = header->e_entry;
    Elf64_Shdr *sections = (void *)(elf + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        Elf64_Sym *symbols = (void *)(elf + sections[i].sh_offset);
        const char *names = (char *)elf + sections[sections[i].sh_link].sh_offset;
        for (size_t j = 0; j < sections[i].sh_size / sizeof *symbols; j++)
            if (!strcmp(names + symbols[j].st_name, other)) return symbols[j].st_value;
    }
    return 0;
}

static void make_vcpu(int kvm, int index, uint64_t entry) {
    struct vcpu *vcpu = &vcpus[index];
    vcpu->index = index;
    vcpu->fd = checked(ioctl(vm, KVM_CREATE_VCPU, index * ids_apart), "KVM_CREATE_VCPU");
    int bytes = checked(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
    vcpu->run = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd, 0);
    if (vcpu->run == MAP_FAILED) fail("kvm_run");
    static union {
        struct kvm_cpuid2 head;
        uint8_t room[sizeof(struct kvm_cpuid2) + 256 * sizeof(struct kvm_cpuid_entry2)];
    } features;
    features.head.nent = 256;
    checked(ioctl(kvm, KVM_GET_SUPPORTED_CPUID, &features), "KVM_GET_SUPPORTED_CPUID");
    checked(ioctl(vcpu->fd, KVM_SET_CPUID2, &features), "KVM_SET_CPUID2");
    // 32-bit protected mode without paging, as the PVH entry is started.
    struct kvm_sregs system;
    checked(ioctl(vcpu->fd, KVM_GET_SREGS, &system), "KVM_GET_SREGS");
    struct kvm_segment code = {.limit = 0xffffffff, .selector = 8, .type = 11, .present = 1, .db = 1, .s = 1, .g = 1};
    struct kvm_segment data = code;
    data.type = 3;
    data.selector = 16;
    system.cs = code;
    system.ds = system.es = system.fs = system.gs = system.ss = data;
    system.cr0 = 0x11;
    system.cr4 = 0;
    system.efer = 0;
    checked(ioctl(vcpu->fd, KVM_SET_SREGS, &system), "KVM_SET_SREGS");
    struct kvm_regs general = {.rip = entry, .rbx = index, .rflags = 2};
    checked(ioctl(vcpu->fd, KVM_SET_REGS, &general), "KVM_SET_REGS");
}

static void add_slot(uint32_t number, uint8_t *memory) {
    struct kvm_userspace_memory_region slot = {
        .slot = number,
        .guest_phys_addr = number * RAM_BYTES,
        .memory_size = RAM_BYTES,
        .userspace_addr = (uint64_t)memory,
    };
    checked(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot), "KVM_SET_USER_MEMORY_REGION");
}

static void make_ram(const char *kind) {
    if (!strcmp(kind, "anonymous")) {
        ram = mmap(0, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        // As other VMMs have it: RAM is a mapping of its own.
        checked(madvise(ram, RAM_BYTES, MADV_DONTDUMP), "madvise");
    } else if (!strcmp(kind, "shared")) {
        ram = mmap(0, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    } else {
        memory_fd = checked(memfd_create("guest_mem", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create");
        checked(ftruncate(memory_fd, RAM_BYTES), "ftruncate");
        if (!strcmp(kind, "sealed")) checked(fcntl(memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), "seal");
        ram = mmap(0, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    }
    if (ram == MAP_FAILED) fail("RAM");
    add_slot(0, ram);
    if (!strcmp(kind, "nodes")) {
        int second_fd = checked(memfd_create("guest_mem", MFD_CLOEXEC), "memfd_create");
        checked(ftruncate(second_fd, RAM_BYTES), "ftruncate");
        uint8_t *second = mmap(0, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, second_fd, 0);
        if (second == MAP_FAILED) fail("RAM");
        add_slot(1, second);
    }
}

// Pauses the VM or continues it, and waits until each vCPU has noticed.
static void set_paused(int cores, int paused) {
    pthread_mutex_lock(&lock);
    is_paused = paused;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < cores; i++)
        while (vcpus[i].waits != paused) {
            // One that was about to enter the guest has not seen the signal before.
            if (paused) syscall(SYS_tgkill, getpid(), vcpus[i].id, SIGUSR1);
            usleep(1000);
        }
}

static void add_apics(void) {
    checked(ioctl(vm, KVM_CREATE_IRQCHIP, 0), "KVM_CREATE_IRQCHIP");
    struct kvm_enable_cap poll = {.cap = KVM_CAP_HALT_POLL, .args = {1000000000}};
    checked(ioctl(vm, KVM_ENABLE_CAP, &poll), "KVM_CAP_HALT_POLL");
}

// Sends a signal and waits until it has arrived, for ten seconds at most: of two that wait at a time one arrives, and an overloaded host may not run a
// vCPU for more than a second.
static void send_one(void) {
    uint64_t before = status->received;
    __atomic_fetch_add(&status->sent, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_tgkill, getpid(), vcpus[0].id, SIGUSR1);
    for (int i = 0; i < 100000 && status->received == before; i++) usleep(100);
    if (status->received == before) status->swallowed++;
}

int main(int count, char **arguments) {
    int cores = 1, rate = 0;
    const char *kind = "sealed";
    if (count < 3) return 2;
    for (int i = 3; i < count; i++) {
        if (!strncmp(arguments[i], "vcpus=", 6)) cores = atoi(arguments[i] + 6);
        else if (!strncmp(arguments[i], "signals=", 8)) rate = atoi(arguments[i] + 8);
        else if (!strcmp(arguments[i], "seccomp")) ring_filter = 1;
        else if (!strcmp(arguments[i], "gaps")) ids_apart = 2;
        else if (!strcmp(arguments[i], "apic")) has_apic = 1;
        // Names of threads: two vCPUs have those of each other.
        else if (!strcmp(arguments[i], "misnamed")) misnamed = 1;
        else kind = arguments[i];
    }
    if (cores < 1 || cores > VCPUS_MAX) return 2;
    // Nothing of a test that has died stays behind.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int status_fd = checked(open(arguments[2], O_RDWR | O_CREAT, 0600), arguments[2]);
    checked(ftruncate(status_fd, 4096), "status");
    status = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, status_fd, 0);
    if (status == MAP_FAILED) fail("status");
    int kvm = checked(open("/dev/kvm", O_RDWR | O_CLOEXEC), "/dev/kvm");
    vm = checked(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
    make_ram(kind);
    if (has_apic) add_apics();
    uint64_t entry, other = load(arguments[1], &entry, "entry_other");
    if (!strcmp(kind, "shared")) checked(mprotect(ram + 0x200000, 4096, PROT_READ), "mprotect");
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < cores; i++) make_vcpu(kvm, i, i ? other : entry);
    for (int i = 0; i < cores; i++) pthread_create(&vcpus[i].thread, 0, run_vcpu, &vcpus[i]);
    while (!vcpus[cores - 1].id) usleep(100);
    status->ready = 1;
    for (uint64_t done = NONE;;) {
        if (rate) send_one();
        usleep(rate ? 1000000 / rate : 1000);
        if (status->command == done) continue;
        done = status->command;
        if (done == PAUSE || done == CONTINUE) {
            set_paused(cores, done == PAUSE);
            status->done = done;
        }
        if (done == SHRINK_RAM) checked(ftruncate(memory_fd, 0), "shrink");
        if (done == EXEC) execlp("sleep", "sleep", "60", (char *)0);
        if (done == END_SECOND_VCPU) {
            syscall(SYS_tgkill, getpid(), vcpus[1].id, SIGUSR1);
            pthread_join(vcpus[1].thread, 0);
        }
    }
}
