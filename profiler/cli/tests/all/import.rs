//! `glass import` and the exports of traces, as a person runs them.

use crate::common::{Folder, complaint, glass, recording};

/// A file of mirage-profile with one packet: thread 1 creates thread 2, labels it, switches to it and is idle.
fn mirage_file() -> Vec<u8> {
    let event = |time: u64, op: u8, words: &[u64], rest: &[u8]| {
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        time.to_le_bytes().into_iter().chain([op]).chain(words).chain(rest.iter().copied()).collect::<Vec<u8>>()
    };
    let body = [
        event(1_000, 7, &[1], &[]),
        event(1_100, 0, &[1, 2], &[1]),
        event(1_110, 5, &[2], b"handler\0"),
        event(1_200, 7, &[2], &[]),
        event(2_000, 7, &[u64::MAX], &[]),
    ]
    .concat();
    let mut bytes = 0xc1fc_1fc1u32.to_le_bytes().to_vec();
    bytes.extend(0x0588_3b8d_521a_487b_b397_456a_b150_680cu128.to_be_bytes());
    let bits = (30 + body.len() as u32) * 8;
    bytes.extend(bits.to_le_bytes().into_iter().chain(1u16.to_le_bytes()).chain(bits.to_le_bytes()));
    bytes.extend(body);
    bytes
}

#[test]
fn an_imported_trace_goes_into_every_format_of_traces() {
    let folder = Folder::new("import");
    let file = folder.write("net.ctf", &mirage_file());
    let imported = folder.file("net.pftrace");
    let output = glass(&["import", &file, "-o", &imported]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("the 5 events of"), "{said}");
    // The report counts what is in the recording.
    let text = String::from_utf8(glass(&["report", "--text", &imported]).stdout).unwrap();
    let recorded = said.split(" are ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(text.contains(&format!("{recorded} events")), "{said}{text}");
    assert!(!text.contains("1970"), "{text}");
    // A file that ends within a packet lacks something, whatever of the packet was used.
    let mut whole = mirage_file();
    let bits = (whole.len() as u32 + 64) * 8;
    whole[20..24].copy_from_slice(&bits.to_le_bytes());
    let cut = folder.write("cut.ctf", &whole);
    let output = glass(&["import", &cut, "-o", &folder.file("cut.pftrace")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cut off within packet 1: 64 bytes"), "{output:?}");

    let chrome = folder.file("trace.json");
    assert!(glass(&["export", &imported, "-f", "chrome", "-o", &chrome]).status.success());
    let chrome = std::fs::read_to_string(chrome).unwrap();
    assert!(chrome.contains("\"name\":\"handler #2\""), "{chrome}");

    let ctf = folder.file("trace");
    assert!(glass(&["export", &imported, "-f", "ctf", "-o", &ctf]).status.success());
    let description = std::fs::read_to_string(folder.path().join("trace/metadata")).unwrap();
    assert!(description.starts_with("/* CTF 1.8 */") && description.contains("\"handler\""), "{description}");
    assert!(complaint(&["export", &imported, "-f", "ctf", "-o", &ctf]).contains("is not empty"));
    assert!(complaint(&["export", &imported, "-f", "ctf", "-o", "-"]).contains("is a folder"));
}

#[test]
fn what_cannot_be_imported_or_exported_is_said_in_a_sentence() {
    let folder = Folder::new("no-import");
    let samples = folder.write("samples.pftrace", &recording());
    let to = folder.file("x");
    assert!(complaint(&["export", &samples, "-f", "chrome", "-o", &to]).contains("glass trace"));
    assert!(complaint(&["import", &samples, "-o", &to]).contains("not a trace of mirage-profile"));
    let mut empty = mirage_file();
    empty.truncate(30);
    let empty = folder.write("empty.ctf", &empty);
    assert!(complaint(&["import", &empty, "-o", &to]).contains("holds no events"));
    assert!(complaint(&["import", &empty, "-o", &empty]).contains("the trace itself"));
    assert!(!folder.path().join("x").exists(), "nothing is left of what failed");
    let no_kind = glass(&["tail", "--pid", "1", "--kind", "sleep"]);
    assert!(!no_kind.status.success() && String::from_utf8_lossy(&no_kind.stderr).contains("`sleep`"), "{no_kind:?}");
}
