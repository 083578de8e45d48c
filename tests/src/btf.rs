//! Descriptions of a kernel's types (BTF) for tests.

/// The kind of a structure.
const STRUCT: u32 = 4;

/// Builds a file: types as words, in which a name is a text of its own.
#[derive(Debug, Default)]
pub struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    /// Bytes of the kernel's texts, if it is a module's.
    before: usize,
}

impl Builder {
    /// `before`: the bytes of the kernel's texts, if it is a module's.
    pub fn new(before: usize) -> Builder {
        let strings = if before == 0 { vec![0] } else { Vec::new() };
        Builder { types: Vec::new(), strings, before }
    }

    fn text(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.before + self.strings.len();
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        at as u32
    }

    fn words(&mut self, words: &[u32]) {
        self.types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    /// A structure of members: name, type, bit offset.
    pub fn structure(&mut self, name: &str, bytes: u32, flag: u32, members: &[(&str, u32, u32)]) {
        let name = self.text(name);
        self.words(&[name, flag << 31 | STRUCT << 24 | members.len() as u32, bytes]);
        for (name, kind, bits) in members {
            let name = self.text(name);
            self.words(&[name, *kind, *bits]);
        }
    }

    /// One of another kind, with what follows.
    pub fn other(&mut self, name: &str, info: u32, rest: &[u32]) {
        let name = self.text(name);
        self.words(&[name, info]);
        self.words(rest);
    }

    /// The bytes of its own texts.
    pub fn strings_bytes(&self) -> usize {
        self.strings.len()
    }

    /// The file.
    pub fn file(&self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let head = [0x0001_eb9f, 24, 0, types, types, strings];
        let head = head.iter().flat_map(|word: &u32| word.to_le_bytes());
        head.chain(self.types.iter().copied()).chain(self.strings.iter().copied()).collect()
    }
}
