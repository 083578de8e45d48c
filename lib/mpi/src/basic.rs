//! The predefined types of numbers and characters.

/// What a predefined type holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basic {
    /// Bytes without a meaning: no arithmetic.
    Byte,
    /// A signed integer of 1, 2, 4, 8 bytes.
    Int(u8),
    /// An unsigned integer of 1, 2, 4, 8 bytes.
    Unsigned(u8),
    /// A floating-point number of 4 or 8 bytes; of 16, C's `long double` of x86, which only moves.
    Float(u8),
    /// Two floating-point numbers, of 8, 16 or 32 bytes together.
    Complex(u8),
    /// A truth value of 1, 2, 4 or 8 bytes.
    Logical(u8),
    /// A character: no arithmetic.
    Character(u8),
    /// A value and an `int` as C lays out the struct of both.
    Pair(Value),
}

/// The value of a [`Basic::Pair`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// `float`
    F32,
    /// `double`
    F64,
    /// `long`
    I64,
    /// `int`
    I32,
    /// `short`
    I16,
    /// `long double`, which only moves.
    F80,
}

impl Basic {
    /// Its bytes, without padding.
    pub fn size(self) -> usize {
        match self {
            Basic::Byte => 1,
            Basic::Int(n)
            | Basic::Unsigned(n)
            | Basic::Float(n)
            | Basic::Complex(n)
            | Basic::Logical(n)
            | Basic::Character(n) => n.into(),
            Basic::Pair(value) => value.size() + 4,
        }
    }

    /// The bytes of each number in it.
    pub(crate) fn numbers(self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            Basic::Complex(n) => (usize::from(n) / 2, usize::from(n) / 2),
            Basic::Pair(value) => (value.size(), 4),
            other => (other.size(), 0),
        };
        [first, second].into_iter().filter(|bytes| *bytes > 0)
    }

    /// From one to the next in an array.
    pub fn extent(self) -> usize {
        self.size().next_multiple_of(self.alignment())
    }

    /// C's alignment.
    pub fn alignment(self) -> usize {
        match self {
            Basic::Complex(n) => usize::from(n) / 2,
            Basic::Pair(value) => value.size().max(4),
            other => other.size(),
        }
    }
}

impl Value {
    /// Its bytes.
    pub fn size(self) -> usize {
        match self {
            Value::I16 => 2,
            Value::F32 | Value::I32 => 4,
            Value::F64 | Value::I64 => 8,
            Value::F80 => 16,
        }
    }
}
