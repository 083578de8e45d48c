//! Changes of protobuf messages: fields of any depth, with the lengths around them corrected.

use fastrand::Rng;

use super::{interesting, pick, plain};

/// Maximum depth of nested messages.
const DEPTH_MAX: u32 = 8;

#[derive(Debug, Clone)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Debug, Clone)]
enum Value {
    Varint(u64),
    Fixed(u8, Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The fields of a message, if it is one. Text may look like a message, which is harmless.
fn parse(bytes: &[u8], depth: u32) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let key = varint(bytes, &mut at)?;
        let mut take = |count: usize| {
            let part = bytes.get(at..at.checked_add(count)?)?;
            at += count;
            Some(part.to_vec())
        };
        let value = match key & 7 {
            0 => Value::Varint(varint(bytes, &mut at)?),
            1 => Value::Fixed(1, take(8)?),
            5 => Value::Fixed(5, take(4)?),
            2 => {
                let length = usize::try_from(varint(bytes, &mut at)?).ok()?;
                let inner = bytes.get(at..at.checked_add(length)?)?;
                at += length;
                match parse(inner, depth + 1) {
                    Some(message) if depth < DEPTH_MAX && !message.is_empty() => Value::Message(message),
                    _ => Value::Bytes(inner.to_vec()),
                }
            }
            _ => return None,
        };
        (key >> 3 > 0).then_some(())?;
        fields.push(Field { number: key >> 3, value });
    }
    Some(fields)
}

fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Field { number, value } in fields {
        let mut key = |kind| put_varint(&mut bytes, number << 3 | kind);
        match value {
            Value::Varint(value) => {
                key(0);
                put_varint(&mut bytes, *value);
            }
            Value::Fixed(kind, value) => {
                key(u64::from(*kind));
                bytes.extend(value);
            }
            Value::Bytes(value) => {
                key(2);
                put_varint(&mut bytes, value.len() as u64);
                bytes.extend(value);
            }
            Value::Message(fields) => {
                key(2);
                let inner = write(fields);
                put_varint(&mut bytes, inner.len() as u64);
                bytes.extend(inner);
            }
        }
    }
    bytes
}

/// Changes one field, or one message's list of fields, somewhere in the tree.
fn change(fields: &mut Vec<Field>, corpus: &[Vec<u8>], rng: &mut Rng) {
    if fields.is_empty() {
        return;
    }
    let (one, other) = (rng.usize(..fields.len()), rng.usize(..fields.len()));
    if let Value::Message(inner) = &mut fields[one].value
        && rng.u32(..8) > 0
    {
        return change(inner, corpus, rng);
    }
    match rng.u32(..8) {
        0 => drop(fields.remove(one)),
        1 => {
            let copy = fields[one].clone();
            fields.insert(other, copy);
        }
        2 => fields.swap(one, other),
        3 => fields[one].number = *pick(rng, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 61, 66, 60_001]),
        4 => {
            let value = fields[other].value.clone();
            fields[one].value = value;
        }
        _ => match &mut fields[one].value {
            Value::Varint(value) => {
                *value = match rng.u32(..3) {
                    0 => value.wrapping_add(rng.u64(..9)).wrapping_sub(4),
                    _ => interesting(rng),
                }
            }
            Value::Fixed(_, bytes) => rng.fill(bytes),
            Value::Bytes(bytes) => plain(bytes, corpus, rng),
            Value::Message(inner) => {
                let mut bytes = write(inner);
                plain(&mut bytes, corpus, rng);
                fields[one].value = Value::Bytes(bytes);
            }
        },
    }
}

/// Changes a message, or occasionally just bytes of it.
pub fn protobuf(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    match parse(bytes, 0) {
        Some(mut fields) if rng.u32(..6) > 0 => {
            change(&mut fields, corpus, rng);
            *bytes = write(&fields);
        }
        _ => plain(bytes, corpus, rng),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_apart_is_put_together_again() {
        for bytes in crate::corpus::recordings() {
            let fields = parse(&bytes, 0).expect("a recording is a message");
            assert!(fields.len() > 3);
            assert_eq!(write(&fields), bytes);
        }
    }
}
