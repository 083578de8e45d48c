//! Makes stripped programs of Go from nothing.

/// The first address of code, and of that of Go.
pub const BEFORE: u64 = 0x40_0fe0;
pub const TEXT: u64 = 0x40_1000;
const TABLE: u64 = 0x50_0000;
const DATA: u64 = 0x2_0000_0000;
/// Where segments begin in the file.
const TEXT_OFFSET: usize = 0x200;
pub const TABLE_OFFSET: usize = 0x400;
const DYNAMIC_BYTES: usize = 128;
/// The code has two functions of so many bytes.
pub const FUNCTION_BYTES: u64 = 0x40;

/// How the tables of Go are laid out: since 1.16, 1.18, 1.20.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Go16,
    Go18,
    Go20,
}

/// What is wrong with a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fault {
    /// The end of the code in the module's data is another.
    pub end: bool,
    /// The module's data have another place of the names.
    pub names: bool,
    /// A function repeats another address.
    pub entry: bool,
    /// The numbers of the lines never reach an address.
    pub numbers: bool,
    /// A dynamic symbol without a size is before the code of Go. It is no fault.
    pub symbol: bool,
    /// The table is as long as this, by the module's data.
    pub bytes: Option<u64>,
}

/// Numbers by address: pairs of a number and the bytes of code for which it is valid.
fn numbers(steps: &[(i32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut before = -1;
    let mut varint = |mut number: u32| {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    };
    for (number, length) in steps {
        let difference = number - before;
        varint(((difference << 1) ^ (difference >> 31)) as u32);
        varint(*length);
        before = *number;
    }
    bytes.push(0);
    bytes
}

/// A program without section headers: `main.main`, and `main.work` into which `main.inner` was inlined. If it can be anywhere, the
/// addresses in its data are written by the dynamic linker.
pub fn program(version: Version, is_anywhere: bool, fault: Fault) -> Vec<u8> {
    let wide = version == Version::Go16;
    let names = b"\0main.main\0main.work\0main.inner\0";
    let (main, work, inner) = (1, 11, 21);
    let files = b"\0/src/main.go\0/src/inner.go\0";
    let units: Vec<u8> = [1u32, 14].iter().flat_map(|file| file.to_le_bytes()).collect();
    let mut table_of_numbers = vec![0];
    let mut add = |steps: &[(i32, u32)]| {
        let at = table_of_numbers.len() as u32;
        table_of_numbers.extend(numbers(steps));
        at
    };
    let whole = FUNCTION_BYTES as u32;
    let lines = if fault.numbers { [(7, 0), (8, 0)].repeat(1 << 19) } else { vec![(7, whole)] };
    let (main_file, main_line) = (add(&[(0, whole)]), add(&lines));
    let work_file = add(&[(0, 0x10), (1, 0x10), (0, 0x20)]);
    let work_line = add(&[(20, 0x08), (21, 0x08), (90, 0x10), (22, 0x20)]);
    let calls = add(&[(-1, 0x10), (0, 0x10), (-1, 0x20)]);
    // The addresses of functions, behind which they are described.
    let mut functions: Vec<u8> = Vec::new();
    let entry_bytes = if wide { 16 } else { 8 };
    let first: usize = entry_bytes * 2 + entry_bytes / 2;
    let describe = |address: u64, name: u32, file, line, calls: Option<u32>| {
        let mut bytes: Vec<u8> = Vec::new();
        let address = if fault.entry { address + 4 } else { address };
        match wide {
            true => bytes.extend(address.to_le_bytes()),
            false => bytes.extend(((address - TEXT) as u32).to_le_bytes()),
        }
        let tables: u32 = if calls.is_some() { 3 } else { 0 };
        bytes.extend([name, 0, 0, 0, file, line, tables, 0].iter().flat_map(|field: &u32| field.to_le_bytes()));
        if version == Version::Go20 {
            bytes.extend(5u32.to_le_bytes());
        }
        bytes.extend([0, 0, 0, if calls.is_some() { 4 } else { 0 }]);
        if let Some(calls) = calls {
            bytes.extend([0, 0, calls].iter().flat_map(|table: &u32| table.to_le_bytes()));
        }
        bytes
    };
    let mut described = describe(TEXT, main, main_file, main_line, None);
    described.resize(described.len().next_multiple_of(8), 0);
    let second = first.next_multiple_of(8) + described.len();
    let starts = [(TEXT, first.next_multiple_of(8)), (TEXT + FUNCTION_BYTES, second)];
    for (address, at) in starts {
        match wide {
            true => functions.extend([address, at as u64].iter().flat_map(|word| word.to_le_bytes())),
            false => functions.extend([(address - TEXT) as u32, at as u32].iter().flat_map(|word| word.to_le_bytes())),
        }
    }
    let end = TEXT + 2 * FUNCTION_BYTES;
    match wide {
        true => functions.extend(end.to_le_bytes()),
        false => functions.extend(((end - TEXT) as u32).to_le_bytes()),
    }
    functions.resize(functions.len().next_multiple_of(8), 0);
    functions.extend(described);
    functions.extend(describe(TEXT + FUNCTION_BYTES, work, work_file, work_line, Some(calls)));
    // The places of its other data: of four the last is that of the inlined calls.
    let mut head_words = if wide { 2 } else { 3 };
    let header_bytes = (1 + head_words + 5) * 8;
    let mut places = Vec::new();
    let mut at = header_bytes as u64;
    for length in [names.len(), units.len(), files.len(), table_of_numbers.len(), 0] {
        places.push(at);
        at = (at + length as u64).next_multiple_of(8);
    }
    let inlined_place = functions.len() + if wide { 4 * 8 + functions.len() % 8 } else { 4 * 4 };
    let inlined = TABLE + places[4] + inlined_place as u64;
    if wide {
        functions.resize(functions.len().next_multiple_of(8), 0);
        functions.extend([0, 0, 0, inlined].iter().flat_map(|word| word.to_le_bytes()));
    } else {
        functions.extend([0, 0, u32::MAX, 8].iter().flat_map(|word| word.to_le_bytes()));
    }
    let functions_bytes = functions.len();
    // The call is in line 21, at the byte 8 of its function.
    match version {
        Version::Go20 => functions.extend([0, inner, 8, 80].iter().flat_map(|field: &u32| field.to_le_bytes())),
        _ => functions.extend([0xffff, 0, 21, inner, 8].iter().flat_map(|field: &u32| field.to_le_bytes())),
    }
    let magic: u32 = match version {
        Version::Go16 => 0xffff_fffa,
        Version::Go18 => 0xffff_fff0,
        Version::Go20 => 0xffff_fff1,
    };
    let mut table = [&magic.to_le_bytes()[..], &[0, 0, 1, 8], &2u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    head_words -= 2;
    table.extend(vec![0; 8 * head_words]);
    table.extend(places.iter().flat_map(|place| place.to_le_bytes()));
    for (place, bytes) in places.iter().zip([&names[..], &units, &files[..], &table_of_numbers, &functions]) {
        table.resize(*place as usize, 0);
        table.extend(bytes);
    }
    // The module's data: a pointer to the header, slices, the range of the code.
    let mut module = vec![0u64; 41];
    module[0] = TABLE;
    for (index, place) in places.iter().enumerate() {
        module[1 + 3 * index] = TABLE + place + u64::from(fault.names && index == 0);
    }
    module[14] = fault.bytes.unwrap_or(functions_bytes as u64);
    (module[20], module[21], module[22]) = (TEXT, end + u64::from(fault.end), TEXT);
    match version {
        Version::Go16 => {}
        Version::Go18 => module[38] = inlined - 8,
        Version::Go20 => module[40] = inlined - 8,
    }
    elf(&table, &module, is_anywhere, fault.symbol)
}

/// The file: a segment of code, one of the table, and one of the data.
fn elf(table: &[u8], module: &[u64], is_anywhere: bool, has_symbol: bool) -> Vec<u8> {
    let data_offset = (TABLE_OFFSET + table.len()).next_multiple_of(64);
    // A word before it, and behind it the dynamic table and the relocations.
    let is_pointer = |word: &u64| is_anywhere && *word >= TEXT;
    let mut data = vec![7u64];
    data.extend(module.iter().map(|word| if is_pointer(word) { 0 } else { *word }));
    let dynamic = data.len() as u64 * 8;
    let pointers = (0u64..).zip(module).filter(|(_, word)| is_pointer(word));
    let relocations: Vec<u64> = pointers.flat_map(|(index, word)| [DATA + 8 + index * 8, 8, *word]).collect();
    let behind = DATA + dynamic + DYNAMIC_BYTES as u64;
    let symbols = behind + relocations.len() as u64 * 8;
    data.extend([7, behind, 8, relocations.len() as u64 * 8]);
    if has_symbol {
        // The symbols, their names, and a table of hashes with their number.
        data.extend([6, symbols, 5, symbols + 48, 10, 8, 4, symbols + 56]);
    }
    data.resize((dynamic as usize + DYNAMIC_BYTES) / 8, 0);
    data.extend(&relocations);
    data.extend([0, 0, 0, 1 | 0x12 << 32 | 1 << 48, BEFORE, 0, u64::from_le_bytes(*b"\0c_code\0"), 1 | 2 << 32]);
    let data: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend([if is_anywhere { 3u16 } else { 2 }, 62].iter().flat_map(|half| half.to_le_bytes()));
    file.extend(1u32.to_le_bytes());
    file.extend([TEXT, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, if is_anywhere { 4 } else { 3 }, 0, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    let mut segment = |kind: u32, flags: u32, offset: usize, address: u64, bytes: usize| {
        file.extend([kind, flags].iter().flat_map(|half| half.to_le_bytes()));
        let words = [offset as u64, address, address, bytes as u64, bytes as u64, 8];
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    segment(1, 5, TEXT_OFFSET, BEFORE, (TEXT - BEFORE + 2 * FUNCTION_BYTES) as usize);
    segment(1, 4, TABLE_OFFSET, TABLE, table.len());
    segment(1, 6, data_offset, DATA, data.len());
    if is_anywhere {
        segment(2, 6, data_offset + dynamic as usize, DATA + dynamic, DYNAMIC_BYTES);
    }
    for (offset, bytes) in [(TEXT_OFFSET, &[0xc3; 0xa0][..]), (TABLE_OFFSET, table), (data_offset, &data)] {
        file.resize(offset, 0);
        file.extend(bytes);
    }
    file
}
