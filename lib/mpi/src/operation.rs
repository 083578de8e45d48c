//! Operations of reductions: the predefined ones on each predefined type that the standard allows, and the program's own.

use crate::basic::{Basic, Value};
use crate::datatype::Datatype;
use crate::error::Error;
use crate::sys::each;
use alloc::rc::Rc;
use core::fmt;

/// A function of the program: combines each of `count` elements of the first with the same of the second, into the second.
pub type UserFunction = dyn Fn(&mut [u8], &mut [u8], usize, &Rc<Datatype>);

/// How a reduction combines two elements.
#[derive(Clone)]
pub enum Operation {
    /// A predefined one.
    Predefined(Predefined),
    /// A function of the program, and whether it commutes.
    User(Rc<UserFunction>, bool),
}

/// The predefined operations.
#[allow(missing_docs)] // The names are the standard's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predefined {
    Sum,
    Min,
    Max,
    Prod,
    BitAnd,
    BitOr,
    BitXor,
    And,
    Or,
    Xor,
    MinLoc,
    MaxLoc,
    Replace,
    NoOp,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Predefined(operation) => write!(f, "{operation:?}"),
            Operation::User(_, commutes) => write!(f, "User(commutes: {commutes})"),
        }
    }
}

/// Combines bytes of elements: the first with the second, into the second.
pub type Fold = fn(&[u8], &mut [u8]);

impl Operation {
    /// Whether the order of the two does not matter.
    pub fn commutes(&self) -> bool {
        match self {
            Operation::Predefined(operation) => !matches!(operation, Predefined::Replace | Predefined::NoOp),
            Operation::User(_, commutes) => *commutes,
        }
    }

    /// Fails unless it is defined for the type.
    pub fn check(&self, datatype: &Datatype) -> Result<(), Error> {
        match self {
            Operation::User(..) => Ok(()),
            Operation::Predefined(_) => self.fold(datatype).map(drop).ok_or(Error::Op),
        }
    }

    /// The function for buffers of this type, if the operation is predefined.
    pub fn fold(&self, datatype: &Datatype) -> Option<Fold> {
        match (self, datatype.basic()?) {
            (Operation::Predefined(operation), (basic, _)) => operation.fold(basic),
            (Operation::User(..), _) => None,
        }
    }

    /// Combines `count` elements, laid out as in the program's buffers.
    pub fn combine(&self, first: &mut [u8], second: &mut [u8], count: usize, datatype: &Rc<Datatype>) {
        match self {
            Operation::User(function, _) => function(first, second, count, datatype),
            Operation::Predefined(_) => {
                if let Some(fold) = self.fold(datatype) {
                    fold(first, second);
                }
            }
        }
    }
}

impl Predefined {
    fn fold(self, basic: Basic) -> Option<Fold> {
        use Predefined::*;
        Some(match (self, basic) {
            (Replace, _) => replace,
            (NoOp, _) => no_op,
            (MinLoc | MaxLoc, Basic::Pair(value)) => pair(self, value)?,
            (Sum | Prod | Min | Max, Basic::Float(4)) => float32(self)?,
            (Sum | Prod | Min | Max, Basic::Float(8)) => float64(self)?,
            (Sum | Prod, Basic::Complex(8)) => complex32(self)?,
            (Sum | Prod, Basic::Complex(16)) => complex64(self)?,
            (And | Or | Xor, Basic::Logical(n) | Basic::Int(n) | Basic::Unsigned(n)) => logical(self, n)?,
            (BitAnd | BitOr | BitXor, Basic::Byte) => integer::u8(self)?,
            (_, Basic::Int(1)) => integer::i8(self)?,
            (_, Basic::Int(2)) => integer::i16(self)?,
            (_, Basic::Int(4)) => integer::i32(self)?,
            (_, Basic::Int(8)) => integer::i64(self)?,
            (_, Basic::Unsigned(1)) => integer::u8(self)?,
            (_, Basic::Unsigned(2)) => integer::u16(self)?,
            (_, Basic::Unsigned(4)) => integer::u32(self)?,
            (_, Basic::Unsigned(8)) => integer::u64(self)?,
            _ => return None,
        })
    }
}

/// A function over elements of a number type.
macro_rules! over {
    ($number:ty, $a:ident, $b:ident, $result:expr) => {{
        fn fold(first: &[u8], second: &mut [u8]) {
            each(first, second, |a, b| {
                let ($a, $b) = (<$number>::from_ne_bytes(a), <$number>::from_ne_bytes(b));
                let result: $number = $result;
                result.to_ne_bytes()
            });
        }
        fold as Fold
    }};
}

mod integer {
    use super::{Fold, Predefined, each};

    macro_rules! integers {
        ($($number:ident)*) => { $(
            pub(super) fn $number(operation: Predefined) -> Option<Fold> {
                Some(match operation {
                    Predefined::Sum => over!($number, a, b, a.wrapping_add(b)),
                    Predefined::Prod => over!($number, a, b, a.wrapping_mul(b)),
                    Predefined::Min => over!($number, a, b, a.min(b)),
                    Predefined::Max => over!($number, a, b, a.max(b)),
                    Predefined::BitAnd => over!($number, a, b, a & b),
                    Predefined::BitOr => over!($number, a, b, a | b),
                    Predefined::BitXor => over!($number, a, b, a ^ b),
                    _ => return None,
                })
            }
        )* };
    }
    integers!(i8 i16 i32 i64 u8 u16 u32 u64);
}

fn logical(operation: Predefined, bytes: u8) -> Option<Fold> {
    macro_rules! of {
        ($number:ty) => {
            Some(match operation {
                Predefined::And => over!($number, a, b, <$number>::from(a != 0 && b != 0)),
                Predefined::Or => over!($number, a, b, <$number>::from(a != 0 || b != 0)),
                _ => over!($number, a, b, <$number>::from((a != 0) != (b != 0))),
            })
        };
    }
    match bytes {
        1 => of!(u8),
        2 => of!(u16),
        4 => of!(u32),
        8 => of!(u64),
        _ => None,
    }
}

macro_rules! floats {
    ($name:ident, $complex:ident, $number:ty, $bytes:literal) => {
        fn $name(operation: Predefined) -> Option<Fold> {
            Some(match operation {
                Predefined::Sum => over!($number, a, b, a + b),
                Predefined::Prod => over!($number, a, b, a * b),
                Predefined::Min => over!($number, a, b, if a < b { a } else { b }),
                Predefined::Max => over!($number, a, b, if a > b { a } else { b }),
                _ => return None,
            })
        }

        fn $complex(operation: Predefined) -> Option<Fold> {
            // Real and imaginary part are added each for itself.
            fn product(first: &[u8], second: &mut [u8]) {
                const HALF: usize = $bytes / 2;
                let part = |bytes: &[u8; $bytes], at: usize| {
                    let mut half = [0; HALF];
                    half.copy_from_slice(&bytes[at..at + HALF]);
                    <$number>::from_ne_bytes(half)
                };
                each(first, second, |a: [u8; $bytes], b: [u8; $bytes]| {
                    let (ar, ai, br, bi) = (part(&a, 0), part(&a, HALF), part(&b, 0), part(&b, HALF));
                    let mut result = [0; $bytes];
                    result[..HALF].copy_from_slice(&(ar * br - ai * bi).to_ne_bytes());
                    result[HALF..].copy_from_slice(&(ar * bi + ai * br).to_ne_bytes());
                    result
                });
            }
            match operation {
                Predefined::Sum => Some(over!($number, a, b, a + b)),
                Predefined::Prod => Some(product),
                _ => None,
            }
        }
    };
}

floats!(float32, complex32, f32, 8);
floats!(float64, complex64, f64, 16);

fn replace(first: &[u8], second: &mut [u8]) {
    second.copy_from_slice(first);
}

fn no_op(_: &[u8], _: &mut [u8]) {}

/// MINLOC and MAXLOC: the smaller or larger value, of equal ones that with the smaller index.
fn pair(operation: Predefined, value: Value) -> Option<Fold> {
    macro_rules! of {
        ($number:ty, $size:literal, $extent:literal, $index:literal, $better:tt) => {{
            fn fold(first: &[u8], second: &mut [u8]) {
                let value = |bytes: &[u8; $extent]| {
                    let mut part = [0; $size];
                    part.copy_from_slice(&bytes[..$size]);
                    <$number>::from_ne_bytes(part)
                };
                let index = |bytes: &[u8; $extent]| {
                    i32::from_ne_bytes([bytes[$index], bytes[$index + 1], bytes[$index + 2], bytes[$index + 3]])
                };
                each(first, second, |a: [u8; $extent], b: [u8; $extent]| {
                    let (x, y) = (value(&a), value(&b));
                    if x $better y || (x == y && index(&a) < index(&b)) { a } else { b }
                });
            }
            fold as Fold
        }};
    }
    macro_rules! either {
        ($number:ty, $size:literal, $extent:literal, $index:literal) => {
            match operation {
                Predefined::MinLoc => of!($number, $size, $extent, $index, <),
                _ => of!($number, $size, $extent, $index, >),
            }
        };
    }
    Some(match value {
        Value::F32 => either!(f32, 4, 8, 4),
        Value::F64 => either!(f64, 8, 16, 8),
        Value::I64 => either!(i64, 8, 16, 8),
        Value::I32 => either!(i32, 4, 8, 4),
        Value::I16 => either!(i16, 2, 8, 4),
        Value::F80 => return None,
    })
}
