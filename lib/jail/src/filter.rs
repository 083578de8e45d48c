//! A filter of system calls as a program for the kernel's machine (Linux, Documentation/userspace-api/seccomp_filter.rst and
//! Documentation/networking/filter.rst).
//!
//! There is one program with a tree of comparisons: the kernel runs it once for each number when it is set, so a list of them, or a program for each
//! action, takes some tenths of a millisecond of the start of each jailed process.

use crate::system_calls::Condition;
use seccompiler::sock_filter;
use std::collections::BTreeMap;

/// What becomes of a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    /// It is allowed if all conditions of one of these rules hold.
    AllowWhere(Vec<Vec<Condition>>),
    /// It fails with this error.
    Refuse(i32),
    /// It ends the process.
    Kill,
}

/// Instructions: load a word of the data, mask it, jump if it is as large, jump if it is equal, jump, return (`linux/filter.h`).
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;
/// The data (`struct seccomp_data`, `linux/seccomp.h`): where the call's number, the architecture and the arguments are. The low half of one is first on
/// each of ours.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;
#[cfg(target_endian = "big")]
compile_error!("the low half of an argument is second here");

fn instruction(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn returns(value: u32) -> sock_filter {
    instruction(RETURN, value)
}

/// The number by which the kernel names this architecture (`linux/audit.h`); `None` on one for which there are no filters.
pub(crate) fn architecture() -> Option<u32> {
    match std::env::consts::ARCH {
        "x86_64" => Some(0xc000_003e),
        "aarch64" => Some(0xc000_00b7),
        _ => None,
    }
}

/// The program that has this verdict on each system call, and ends the process for all others and for those of another architecture.
pub(crate) fn program(verdicts: &BTreeMap<i64, Verdict>, architecture: u32) -> Vec<sock_filter> {
    // From which number on there is which verdict.
    let mut steps = vec![(0, Verdict::Kill)];
    for (number, verdict) in verdicts {
        let number = u32::try_from(*number).expect("the kernel's numbers are small");
        for (from, verdict) in [(number, verdict.clone()), (number + 1, Verdict::Kill)] {
            match steps.last_mut() {
                Some(last) if last.0 == from => last.1 = verdict,
                _ => steps.push((from, verdict)),
            }
        }
    }
    steps.dedup_by(|next, last| next.1 == last.1);
    let mut program = vec![
        instruction(LOAD, ARCHITECTURE),
        sock_filter { jt: 1, ..instruction(JUMP_IF_EQUAL, architecture) },
        returns(libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, NUMBER),
    ];
    program.extend(decide(&steps));
    program
}

/// The part of the program for the numbers of these steps.
fn decide(steps: &[(u32, Verdict)]) -> Vec<sock_filter> {
    if let [(_, verdict)] = steps {
        return end(verdict);
    }
    let (lower, upper) = steps.split_at(steps.len() / 2);
    let compare = instruction(JUMP_IF_AT_LEAST, upper[0].0);
    let (lower, upper) = (decide(lower), decide(upper));
    let mut program = match u8::try_from(lower.len()) {
        Ok(jt) => vec![sock_filter { jt, ..compare }],
        // Only a jump without a condition goes further.
        Err(_) => vec![sock_filter { jf: 1, ..compare }, instruction(JUMP, lower.len() as u32)],
    };
    program.extend(lower);
    program.extend(upper);
    program
}

fn end(verdict: &Verdict) -> Vec<sock_filter> {
    let rules = match verdict {
        Verdict::Allow => return vec![returns(libc::SECCOMP_RET_ALLOW)],
        Verdict::Refuse(error) => return vec![returns(libc::SECCOMP_RET_ERRNO | error.unsigned_abs())],
        Verdict::Kill => return vec![returns(libc::SECCOMP_RET_KILL_PROCESS)],
        Verdict::AllowWhere(rules) => rules,
    };
    let mut program = Vec::new();
    for rule in rules {
        let mut of_rule = Vec::new();
        // From behind, because a condition that does not hold jumps over what is left of the rule.
        of_rule.push(returns(libc::SECCOMP_RET_ALLOW));
        for Condition { argument, mask, value } in rule.iter().rev() {
            let jf = u8::try_from(of_rule.len()).expect("a rule has few conditions");
            of_rule.push(sock_filter { jf, ..instruction(JUMP_IF_EQUAL, value & mask) });
            if *mask != u32::MAX {
                of_rule.push(instruction(AND, *mask));
            }
            of_rule.push(instruction(LOAD, ARGUMENTS + ARGUMENT_BYTES * u32::from(*argument)));
        }
        program.extend(of_rule.into_iter().rev());
    }
    program.push(returns(libc::SECCOMP_RET_KILL_PROCESS));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = 0xc000_003e;

    /// What the kernel's machine returns, and after how many instructions.
    fn run(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let (mut at, mut accumulator, mut count) = (0, 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at].clone();
            (at, count) = (at + 1, count + 1);
            let mut jump = |holds| at += usize::from(if holds { jt } else { jf });
            match code {
                LOAD => {
                    accumulator = match k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        _ => arguments[((k - ARGUMENTS) / ARGUMENT_BYTES) as usize] as u32,
                    };
                }
                AND => accumulator &= k,
                JUMP_IF_AT_LEAST => jump(accumulator >= k),
                JUMP_IF_EQUAL => jump(accumulator == k),
                JUMP => at += k as usize,
                RETURN => return (k, count),
                _ => panic!("the machine has more instructions, and we use none of them"),
            }
        }
    }

    #[test]
    fn each_number_has_its_verdict() {
        let condition = |argument, mask, value| Condition { argument, mask, value };
        let rules = vec![vec![condition(1, u32::MAX, 7)], vec![condition(0, 6, 2), condition(5, 0xff00, 0x1200)]];
        let mut verdicts: BTreeMap<i64, Verdict> =
            (0..600).filter(|n| n % 3 == 0).map(|n| (n, Verdict::Allow)).collect();
        verdicts.extend((100..120).map(|n| (n, Verdict::Refuse(libc::EPERM))));
        verdicts.extend([(5, Verdict::AllowWhere(rules)), (6, Verdict::Refuse(libc::ENOSYS))]);
        let program = program(&verdicts, HERE);
        // The kernel takes no longer ones.
        assert!(program.len() < 4096);
        let (kill, allow) = (libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW);
        for number in 0..700 {
            let (found, count) = run(&program, HERE, number, [0; 6]);
            let expected = match verdicts.get(&i64::from(number)) {
                Some(Verdict::Allow) => allow,
                Some(Verdict::Refuse(error)) => libc::SECCOMP_RET_ERRNO | *error as u32,
                Some(Verdict::AllowWhere(_) | Verdict::Kill) | None => kill,
            };
            assert_eq!(found, expected, "{number}");
            assert!(count < 40, "{number} takes {count} instructions");
            assert_eq!(run(&program, HERE + 1, number, [0; 6]).0, kill);
            // Those of x32.
            assert_eq!(run(&program, HERE, number | 1 << 30, [0; 6]).0, kill);
        }
        assert_eq!(run(&program, HERE, u32::MAX, [0; 6]).0, kill);
        for (arguments, expected) in [
            ([0, 7, 0, 0, 0, 0], allow),
            ([0, 7 | 1 << 32, 0, 0, 0, 0], allow),
            ([0, 8, 0, 0, 0, 0], kill),
            ([3, 0, 0, 0, 0, 0x1255], allow),
            ([4, 0, 0, 0, 0, 0x1255], kill),
            ([3, 0, 0, 0, 0, 0x1355], kill),
        ] {
            assert_eq!(run(&program, HERE, 5, arguments).0, expected, "{arguments:?}");
        }
    }

    #[test]
    fn without_verdicts_each_call_ends_the_process() {
        let program = program(&BTreeMap::new(), HERE);
        assert_eq!(run(&program, HERE, 0, [0; 6]).0, libc::SECCOMP_RET_KILL_PROCESS);
    }
}
