//! ELF files that expand to far more than they have, for what reads untrusted ones.

/// The sections that names and lines are read from.
pub const DEBUG_SECTIONS: [&str; 11] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
    ".debug_ranges",
    ".debug_rnglists",
];

const HEADER_BYTES: usize = 64;
const SHT_PROGBITS: u32 = 1;
const SHF_COMPRESSED: u64 = 0x800;
/// `ch_type` of Zstandard.
const ZSTD: u32 = 2;

/// Zeros in a frame of Zstandard (RFC 8878) whose blocks each repeat one byte: 4 bytes for 128 KiB.
pub fn zeros(bytes: u64) -> Vec<u8> {
    repeated(&[], 0, bytes)
}

/// The same of another byte, after a few others.
pub fn repeated(first: &[u8], byte: u8, bytes: u64) -> Vec<u8> {
    const BLOCK_BYTES: u64 = 128 << 10;
    // The magic number; no size of the content, no checksum; a window of 1 MiB.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
    if !first.is_empty() {
        frame.extend(&((first.len() as u32) << 3).to_le_bytes()[..3]);
        frame.extend(first);
    }
    let mut left = bytes;
    loop {
        let block = left.min(BLOCK_BYTES);
        left -= block;
        let header = (block as u32) << 3 | 1 << 1 | u32::from(left == 0);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(byte);
        if left == 0 {
            return frame;
        }
    }
}

/// A program with further sections, all compressed by Zstandard: each has a name, a size that it claims, and what is compressed. Those
/// that have the same content share it. Sections of these names that were there get other names.
pub fn with_sections(program: &[u8], sections: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let number = |at: usize, bytes: usize| {
        program[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let (table, count, names_index) = (number(40, 8), number(60, 2), number(62, 2));
    let mut headers: Vec<Vec<u8>> =
        program[table..table + HEADER_BYTES * count].chunks(HEADER_BYTES).map(<[u8]>::to_vec).collect();
    let word =
        |header: &[u8], at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes")) as usize;
    let names_at = word(&headers[names_index], 24);
    let mut names = program[names_at..names_at + word(&headers[names_index], 32)].to_vec();
    let mut output = program.to_vec();
    for header in &mut headers {
        let name = number_of(header);
        let is_new = |(new, ..): &(&str, u64, &[u8])| names[name..].starts_with(&[new.as_bytes(), &[0]].concat());
        if sections.iter().any(is_new) {
            header[..4].fill(0);
        }
    }
    let mut places: Vec<(u64, &[u8], usize)> = Vec::new();
    for (name, claimed, content) in sections {
        let known =
            places.iter().find(|(size, bytes, _)| (size, bytes) == (claimed, content)).map(|(.., place)| *place);
        let place = known.unwrap_or_else(|| {
            output.resize(output.len().next_multiple_of(8), 0);
            let place = output.len();
            output.extend([ZSTD, 0].map(u32::to_le_bytes).concat());
            output.extend([*claimed, 1].map(u64::to_le_bytes).concat());
            output.extend(*content);
            places.push((*claimed, content, place));
            place
        });
        let mut header = [names.len() as u32, SHT_PROGBITS].map(u32::to_le_bytes).concat();
        header.extend(
            [SHF_COMPRESSED, 0, place as u64, content.len() as u64 + 24, 0, 1, 0].map(u64::to_le_bytes).concat(),
        );
        names.extend([name.as_bytes(), &[0]].concat());
        headers.push(header);
    }
    let place = output.len() as u64;
    headers[names_index][24..32].copy_from_slice(&place.to_le_bytes());
    headers[names_index][32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
    output.extend(names);
    output.resize(output.len().next_multiple_of(8), 0);
    let place = output.len() as u64;
    output[40..48].copy_from_slice(&place.to_le_bytes());
    output[60..62].copy_from_slice(&(headers.len() as u16).to_le_bytes());
    output.extend(headers.concat());
    output
}

fn number_of(header: &[u8]) -> usize {
    u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize
}
