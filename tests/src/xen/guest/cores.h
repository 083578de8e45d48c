// Starts the second vCPU of a PVH guest, by hypercalls with the instruction of AMD's processors, which QEMU emulates.

// `struct vcpu_hvm_context` of xen/include/public/hvm/hvm_vcpu.h, for 64 bits.
struct context {
    uint32_t mode, padding;
    uint64_t rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, rip, rflags, cr0, cr3, cr4, efer;
};

extern uint8_t other_stack_top[], level4[];

void run_other(void) {
    volatile uint64_t mark = 0;
    work();
    mark++;
}

static int64_t vcpu_op(uint64_t command, uint64_t vcpu, void *argument) {
    int64_t result;
    __asm__ volatile("vmmcall" : "=a"(result), "+D"(command), "+S"(vcpu), "+d"(argument) : "a"(24) : "memory");
    return result;
}

static inline __attribute__((always_inline)) void start_cores(void) {
    static struct context context;
    uint64_t top = (uint64_t)other_stack_top + 0xffff800000000000 - 8;
    *(volatile uint64_t *)top = 0;  // a return address of 0 ends every call chain
    uint64_t cr0, cr4;
    __asm__ volatile("mov %%cr0, %0\n mov %%cr4, %1" : "=r"(cr0), "=r"(cr4));
    context = (struct context){.mode = 1, .rsp = top, .rip = (uint64_t)run_other, .rflags = 2,
                               .cr0 = cr0, .cr3 = (uint64_t)level4, .cr4 = cr4, .efer = 0x500};
    vcpu_op(0, 1, &context);  // VCPUOP_initialise
    vcpu_op(1, 1, 0);         // VCPUOP_up
}
