//! How the registers of a caller are computed from those of the function that it called: rules of the unwind
//! tables, made once for an address and then used for each sample.

use gimli::{CfaRule, Encoding, EvaluationResult, RegisterRule, UnwindExpression, UnwindSection, Value};

use super::registers::{Code, Convention, RegisterFile};
use super::{Found, Frames, Plain};

/// How many registers a plain rule can restore: the six that functions of x86-64 preserve, and the return address; of AArch64 there are twelve.
const SAVED_MAX: usize = 12;
/// The most operations of an expression. No compiler writes one with a loop.
const OPERATIONS_MAX: u32 = 128;
/// How many rules are kept.
const CACHED: usize = 1024;

/// Why a rule has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The memory at this address was not copied.
    Unreadable(u64),
    /// It needs a register whose value is not known, is not valid, or its expression has no value.
    Rule,
}

/// What a rule leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The registers are the caller's; the instruction pointer is a return address.
    Caller,
    /// The registers are those of code that a signal has interrupted; the instruction pointer is an instruction.
    Interrupted,
    /// There is no caller.
    End,
}

/// A rule for an address.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// There is no caller.
    End,
    /// Nearly all: the CFA is a register and a number, and each register is saved at a number of words below the CFA.
    Plain { cfa: u8, cfa_offset: i32, count: u8, saved: [(u8, i8); SAVED_MAX] },
    /// All others.
    General(Box<General>),
    /// A signal handler returns to this code, which no table describes: the kernel's record of the interrupted code is at the stack pointer.
    SignalReturn,
    /// It cannot be read.
    Damaged,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct General {
    cfa: CfaRule<usize>,
    registers: Vec<(u8, RegisterRule<usize>)>,
    encoding: Encoding,
    of_debug: bool,
    is_signal: bool,
}

/// Rules that were used lately, by the image, the address, and whether the code there was interrupted or has called. One
/// for all address spaces.
pub(crate) struct Rules {
    cached: Box<[Option<Cached>]>,
    context: Box<gimli::UnwindContext<usize>>,
}

struct Cached {
    image: u32,
    address: u64,
    has_called: bool,
    /// `None` if no table describes the code there.
    rule: Option<Rule>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { cached: std::iter::repeat_with(|| None).take(CACHED).collect(), context: Box::default() }
    }
}

impl Rules {
    /// Goes to the caller of the function at a linked address; `None` if no table describes that. `has_called`: the address
    /// is within a call, and not that of an instruction which was interrupted. `code` copies the machine code at a linked address and
    /// returns how much of it there is.
    pub(crate) fn step<C: Convention>(
        &mut self,
        frames: &Frames,
        code: Code<'_>,
        (address, has_called): (u64, bool),
        registers: &mut RegisterFile<C>,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Option<Result<Step, Failure>> {
        if frames.id == 0 {
            return None;
        }
        // The addresses of one function are neighbours.
        let index = (address ^ address >> 10 ^ u64::from(frames.id) << 5) as usize % CACHED;
        let slot = &mut self.cached[index];
        let is_there =
            |cached: &Cached| (cached.image, cached.address, cached.has_called) == (frames.id, address, has_called);
        if !slot.as_ref().is_some_and(is_there) {
            let rule = match C::returns_from_signal(code, address, has_called) {
                true => Some(Rule::SignalReturn),
                false => frames.rule::<C>(address, &mut self.context),
            };
            *slot = Some(Cached { image: frames.id, address, has_called, rule });
        }
        let rule = slot.as_ref()?.rule.as_ref()?;
        Some(rule.step(frames, registers, !has_called, read))
    }
}

impl Frames {
    /// The rule for a linked address; `None` if no table describes the code there.
    fn rule<C: Convention>(&self, address: u64, context: &mut gimli::UnwindContext<usize>) -> Option<Rule> {
        Some(match self.found(address)? {
            Found::Eh(section, offset) => self.rule_in::<C, _>(&section, offset, address, context, false),
            Found::Debug(section, offset) => self.rule_in::<C, _>(&section, offset, address, context, true),
        })
    }

    fn rule_in<'a, C, S>(
        &'a self,
        section: &S,
        offset: S::Offset,
        address: u64,
        context: &mut gimli::UnwindContext<usize>,
        of_debug: bool,
    ) -> Rule
    where
        C: Convention,
        S: UnwindSection<Plain<'a>>,
    {
        let Ok(entry) = section.fde_from_offset(&self.bases, offset, S::cie_from_offset) else { return Rule::Damaged };
        let Ok(row) = entry.unwind_info_for_address(section, &self.bases, context, address) else {
            return Rule::Damaged;
        };
        let is_signal = entry.is_signal_trampoline();
        let returns = entry.cie().return_address_register();
        let mut registers = Vec::new();
        for (register, rule) in row.registers() {
            // The column of the return address has its own number in a few tables.
            let number = if *register == returns { u16::from(C::RETURN) } else { register.0 };
            if usize::from(number) < RegisterFile::<C>::count() {
                registers.push((number as u8, rule.clone()));
            }
        }
        match registers.iter().find(|(number, _)| *number == C::RETURN) {
            Some((_, RegisterRule::Undefined)) => return Rule::End,
            None if !C::CALLS_BY_REGISTER => return Rule::End,
            None | Some(_) => {}
        }
        // The return address first: without it, nothing else matters.
        registers.sort_by_key(|(number, _)| *number != C::RETURN);
        if let (false, Some(plain)) = (is_signal, plain::<C>(row.cfa(), &registers)) {
            return plain;
        }
        let (cfa, encoding) = (row.cfa().clone(), entry.cie().encoding());
        Rule::General(Box::new(General { cfa, registers, encoding, of_debug, is_signal }))
    }
}

fn plain<C: Convention>(cfa: &CfaRule<usize>, registers: &[(u8, RegisterRule<usize>)]) -> Option<Rule> {
    let CfaRule::RegisterAndOffset { register, offset } = cfa else { return None };
    let mut saved = [(0, 0); SAVED_MAX];
    let mut count = 0;
    for (number, rule) in registers {
        match rule {
            RegisterRule::Offset(offset) if offset % 8 == 0 && *number != C::SP => {
                *saved.get_mut(count)? = (*number, i8::try_from(offset / 8).ok()?);
                count += 1;
            }
            RegisterRule::SameValue if *number != C::RETURN || C::CALLS_BY_REGISTER => {}
            _ => return None,
        }
    }
    let (cfa, cfa_offset) = (u8::try_from(register.0).ok()?, i32::try_from(*offset).ok()?);
    Some(Rule::Plain { cfa, cfa_offset, count: count as u8, saved })
}

impl Rule {
    fn step<C: Convention>(
        &self,
        frames: &Frames,
        registers: &mut RegisterFile<C>,
        is_innermost: bool,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<Step, Failure> {
        let (cfa, moves_up, mut caller, step) = match self {
            Rule::End => return Ok(Step::End),
            Rule::Damaged => return Err(Failure::Rule),
            Rule::SignalReturn => return C::interrupted_at(registers, read),
            Rule::Plain { cfa, cfa_offset, count, saved } => {
                let base = registers.get(*cfa).ok_or(Failure::Rule)?;
                let cfa = base.wrapping_add_signed(i64::from(*cfa_offset));
                let mut caller = *registers;
                caller.set(C::SP, Some(cfa));
                for (number, words) in &saved[..usize::from(*count)] {
                    let at = cfa.wrapping_add_signed(i64::from(*words) * 8);
                    restore(&mut caller, *number, at, registers.sp(), is_innermost, read)?;
                }
                (cfa, true, caller, Step::Caller)
            }
            Rule::General(general) => {
                let (cfa, caller) = match general.of_debug {
                    false => {
                        general.caller(&frames.eh_section().ok_or(Failure::Rule)?, registers, is_innermost, read)?
                    }
                    true => {
                        general.caller(&frames.debug_section().ok_or(Failure::Rule)?, registers, is_innermost, read)?
                    }
                };
                let moves_up = !general.is_signal && matches!(general.cfa, CfaRule::RegisterAndOffset { .. });
                (cfa, moves_up, caller, if general.is_signal { Step::Interrupted } else { Step::Caller })
            }
        };
        if step == Step::Caller {
            caller.return_by_register()?;
        }
        // The addresses of a stack increase.
        if moves_up && !is_innermost && cfa < registers.sp() {
            return Err(Failure::Rule);
        }
        if (caller.sp(), caller.ip()) == (registers.sp(), registers.ip()) {
            return Err(Failure::Rule);
        }
        *registers = caller;
        Ok(if registers.ip() == 0 { Step::End } else { step })
    }
}

/// Sets a register to what is saved at an address.
fn restore<C: Convention>(
    caller: &mut RegisterFile<C>,
    number: u8,
    at: u64,
    sp: u64,
    is_innermost: bool,
    read: &mut dyn FnMut(u64) -> Option<u64>,
) -> Result<(), Failure> {
    match read(at) {
        Some(value) => caller.set(number, Some(value)),
        // An epilogue has restored it already: compilers do not describe each `pop`, and what is below the stack
        // pointer is not copied.
        None if is_innermost && number != C::RETURN && at < sp => {}
        None => return Err(Failure::Unreadable(at)),
    }
    Ok(())
}

impl General {
    /// The CFA, and the registers of the caller.
    fn caller<'a, C: Convention, S: UnwindSection<Plain<'a>>>(
        &self,
        section: &S,
        registers: &RegisterFile<C>,
        is_innermost: bool,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<(u64, RegisterFile<C>), Failure> {
        let value_of = |register: gimli::Register| {
            u8::try_from(register.0).ok().and_then(|number| registers.get(number)).ok_or(Failure::Rule)
        };
        let evaluate = |expression: &UnwindExpression<usize>, initial, read: &mut dyn FnMut(u64) -> Option<u64>| {
            evaluate(section, *expression, self.encoding, registers, initial, read)
        };
        let cfa = match &self.cfa {
            CfaRule::RegisterAndOffset { register, offset } => value_of(*register)?.wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => evaluate(expression, None, read)?,
        };
        let mut caller = *registers;
        caller.set(C::SP, Some(cfa));
        for (number, rule) in &self.registers {
            let (number, is_return) = (*number, *number == C::RETURN);
            let value = match rule {
                RegisterRule::Undefined => None,
                RegisterRule::SameValue if is_return && !C::CALLS_BY_REGISTER => None,
                RegisterRule::SameValue => registers.get(number),
                RegisterRule::Offset(offset) => {
                    let at = cfa.wrapping_add_signed(*offset);
                    restore(&mut caller, number, at, registers.sp(), is_innermost, read)?;
                    continue;
                }
                RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
                RegisterRule::Register(register) => value_of(*register).ok(),
                RegisterRule::Expression(expression) => {
                    let at = evaluate(expression, Some(cfa), read)?;
                    restore(&mut caller, number, at, registers.sp(), is_innermost, read)?;
                    continue;
                }
                RegisterRule::ValExpression(expression) => Some(evaluate(expression, Some(cfa), read)?),
                _ => None,
            };
            if is_return && value.is_none() {
                return Err(Failure::Rule);
            }
            caller.set(number, value);
        }
        Ok((cfa, caller))
    }
}

/// The value of an expression (DWARF 5, 6.4.2: the CFA is on the stack before that of a register's rule).
fn evaluate<'a, C: Convention, S: UnwindSection<Plain<'a>>>(
    section: &S,
    expression: UnwindExpression<usize>,
    encoding: Encoding,
    registers: &RegisterFile<C>,
    initial: Option<u64>,
    read: &mut dyn FnMut(u64) -> Option<u64>,
) -> Result<u64, Failure> {
    let wrong = |_| Failure::Rule;
    let mut evaluation = expression.get(section).map_err(wrong)?.evaluation(encoding);
    evaluation.set_max_iterations(OPERATIONS_MAX);
    if let Some(initial) = initial {
        evaluation.set_initial_value(initial);
    }
    let mut result = evaluation.evaluate();
    loop {
        result = match result.map_err(wrong)? {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, base_type: gimli::UnitOffset(0) } => {
                let number = u8::try_from(register.0).map_err(|_| Failure::Rule)?;
                let value = registers.get(number).ok_or(Failure::Rule)?;
                evaluation.resume_with_register(Value::Generic(value))
            }
            EvaluationResult::RequiresMemory { address, size, space: None, base_type: gimli::UnitOffset(0) } => {
                let word = read(address).ok_or(Failure::Unreadable(address))?;
                let value = if size < 8 { word & ((1 << (8 * u32::from(size))) - 1) } else { word };
                evaluation.resume_with_memory(Value::Generic(value))
            }
            _ => return Err(Failure::Rule),
        };
    }
    let value = evaluation.value_result().ok_or(Failure::Rule)?;
    value.to_u64(u64::MAX).map_err(wrong)
}
