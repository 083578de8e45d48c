/* The expression that finds the caller's frame jumps to its own start: DW_CFA_def_cfa_expression, 3 bytes, DW_OP_skip -3. */
__asm__(".text\n.globl outer\n.type outer, @function\nouter:\n.cfi_startproc\n.cfi_escape 0x0f, 3, 0x2f, 0xfd, 0xff\n"
        "nop\nnop\n1: jmp 1b\n.cfi_endproc\n.size outer, . - outer\n");
void outer(void);
int main(void) {
    outer();
    return 0;
}
