//! Loops over elements, in the CPU's wide registers where it has them and the system saves them. A VM of ours saves none.

pub(crate) use super::arch::each;

/// Combines elements of N bytes each, the first with the second, into the second.
#[inline(always)]
pub(super) fn combine_all<const N: usize>(
    first: &[u8],
    second: &mut [u8],
    combine: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (first, _) = first.as_chunks::<N>();
    let (second, _) = second.as_chunks_mut::<N>();
    for (a, b) in first.iter().zip(second) {
        *b = combine(*a, *b);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Whichever of the two loops the CPU runs: any length, and buffers that start anywhere.
    #[test]
    fn all_whole_elements_are_combined_and_nothing_else() {
        for (bytes, start) in [(0, 0), (3, 0), (4, 1), (63, 0), (64, 3), (1001, 5)] {
            let first: Vec<u8> = (0..start + bytes).map(|byte| byte as u8).collect();
            let mut second: Vec<u8> = (0..start + bytes).map(|byte| (byte * 7) as u8).collect();
            let mut expected = second.clone();
            let whole = bytes / 4 * 4;
            for at in (start..start + whole).step_by(4) {
                let word = |of: &[u8]| u32::from_le_bytes([of[at], of[at + 1], of[at + 2], of[at + 3]]);
                let sum = word(&first).wrapping_add(word(&expected));
                expected[at..at + 4].copy_from_slice(&sum.to_le_bytes());
            }
            let sum = |a: [u8; 4], b: [u8; 4]| u32::from_le_bytes(a).wrapping_add(u32::from_le_bytes(b)).to_le_bytes();
            let mut portable = second.clone();
            combine_all(&first[start..], &mut portable[start..], sum);
            each(&first[start..], &mut second[start..], sum);
            assert_eq!(portable, expected, "{bytes} bytes from {start}");
            assert_eq!(second, expected, "{bytes} bytes from {start}");
        }
    }
}
