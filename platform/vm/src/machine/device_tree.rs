//! Device trees (Devicetree Specification 0.4, section 5): a walk over the nodes of a flattened one.
//!
//! Pure, without memory of its own, and bounded by the length of the tree: what is wrong in it ends the walk.

const MAGIC: u32 = 0xd00d_feed;
const HEADER_BYTES: usize = 40;
/// A tree that claims to be longer is not read.
pub const BYTES_MAX: usize = 2 << 20;
/// Nodes deeper than this end the walk.
const DEPTH_MAX: usize = 16;

/// Tokens of the structure block.
mod token {
    pub const BEGIN_NODE: u32 = 1;
    pub const END_NODE: u32 = 2;
    pub const PROPERTY: u32 = 3;
    pub const NOTHING: u32 = 4;
}

/// A flattened tree.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    structure: &'a [u8],
    strings: &'a [u8],
}

/// The length that a header states, if it is one.
pub fn length(header: &[u8; 8]) -> Option<usize> {
    let length = u32_at(header, 4)? as usize;
    (u32_at(header, 0)? == MAGIC && (HEADER_BYTES..=BYTES_MAX).contains(&length)).then_some(length)
}

impl<'a> Tree<'a> {
    /// The tree in `bytes`; `None` if they are none.
    pub fn open(bytes: &'a [u8]) -> Option<Tree<'a>> {
        let bytes = bytes.get(..length(bytes.first_chunk()?)?)?;
        let block = |offset: usize, size: usize| {
            let start = u32_at(bytes, offset)? as usize;
            bytes.get(start..start.checked_add(u32_at(bytes, size)? as usize)?)
        };
        Some(Tree { structure: block(8, 36)?, strings: block(12, 32)? })
    }

    /// All nodes, each before those in it.
    pub fn nodes(self) -> Nodes<'a> {
        Nodes { tree: self, offset: 0, depth: 0, cells: [Cells::DEFAULT; DEPTH_MAX + 1] }
    }

    /// The token at `offset`, and where the next one is. Of a property also its name and value, of a node its name.
    fn token(&self, offset: usize) -> Option<(Token<'a>, usize)> {
        let aligned = |end: usize| end.next_multiple_of(4);
        let body = offset.checked_add(4)?;
        match u32_at(self.structure, offset)? {
            token::BEGIN_NODE => {
                let name = text(self.structure.get(body..)?)?;
                Some((Token::Begin(name), aligned(body + name.len() + 1)))
            }
            token::END_NODE => Some((Token::End, body)),
            token::PROPERTY => {
                let (length, name) = (u32_at(self.structure, body)? as usize, u32_at(self.structure, body + 4)?);
                let value = self.structure.get(body + 8..(body + 8).checked_add(length)?)?;
                let name = text(self.strings.get(name as usize..)?)?;
                Some((Token::Property(name, value), aligned(body + 8 + length)))
            }
            token::NOTHING => Some((Token::Nothing, body)),
            _ => None,
        }
    }
}

enum Token<'a> {
    Begin(&'a str),
    End,
    Property(&'a str, &'a [u8]),
    Nothing,
}

/// Words of an address and of a length in `reg` of a node's children (section 2.3.5).
#[derive(Clone, Copy)]
struct Cells {
    address: usize,
    size: usize,
}

impl Cells {
    const DEFAULT: Cells = Cells { address: 2, size: 1 };
}

/// A walk over nodes.
pub struct Nodes<'a> {
    tree: Tree<'a>,
    offset: usize,
    depth: usize,
    /// By depth: those for its nodes, which their parent has.
    cells: [Cells; DEPTH_MAX + 1],
}

/// A node.
pub struct Node<'a> {
    /// Its name, with the address behind an `@`.
    pub name: &'a str,
    tree: Tree<'a>,
    /// Where its properties start.
    properties: usize,
    cells: Cells,
}

impl<'a> Iterator for Nodes<'a> {
    type Item = Node<'a>;

    fn next(&mut self) -> Option<Node<'a>> {
        loop {
            let (token, next) = self.tree.token(self.offset)?;
            self.offset = next;
            match token {
                Token::Begin(_) if self.depth == DEPTH_MAX => return None,
                Token::Begin(name) => {
                    let node = Node { name, tree: self.tree, properties: next, cells: self.cells[self.depth] };
                    self.depth += 1;
                    self.cells[self.depth] = node.cells_of_children();
                    return Some(node);
                }
                Token::End => self.depth = self.depth.checked_sub(1)?,
                Token::Property(..) | Token::Nothing => {}
            }
        }
    }
}

impl<'a> Node<'a> {
    /// The value of a property.
    pub fn property(&self, wanted: &str) -> Option<&'a [u8]> {
        let mut offset = self.properties;
        loop {
            match self.tree.token(offset)? {
                (Token::Property(name, value), _) if name == wanted => return Some(value),
                (Token::Property(..) | Token::Nothing, next) => offset = next,
                (Token::Begin(_) | Token::End, _) => return None,
            }
        }
    }

    /// A property that is one text.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        text(self.property(name)?)
    }

    /// Word `index` of a property.
    pub fn word(&self, name: &str, index: usize) -> Option<u32> {
        u32_at(self.property(name)?, index.checked_mul(4)?)
    }

    /// Whether the node is a device of the kind `name`.
    pub fn is_compatible(&self, name: &str) -> bool {
        let list = self.property("compatible").unwrap_or_default();
        list.split(|byte| *byte == 0).any(|one| one == name.as_bytes())
    }

    /// Address and length of registers, or of memory, number `index`. Addresses must be those of the processor, as they are on each machine that is
    /// virtual only.
    pub fn range(&self, index: usize) -> Option<(u64, u64)> {
        let Cells { address, size } = self.cells;
        let reg = self.property("reg")?;
        let start = index.checked_mul(4 * (address + size))?;
        Some((number(reg, start, address)?, number(reg, start + 4 * address, size)?))
    }

    fn cells_of_children(&self) -> Cells {
        let count = |name: &str, default| self.word(name, 0).map_or(default, |count| count as usize).min(4);
        let Cells { address, size } = Cells::DEFAULT;
        Cells { address: count("#address-cells", address), size: count("#size-cells", size) }
    }
}

/// A number of so many words; what does not fit into 64 bits is left out.
fn number(bytes: &[u8], start: usize, words: usize) -> Option<u64> {
    (0..words).try_fold(0u64, |value, word| Some(value << 32 | u64::from(u32_at(bytes, start + 4 * word)?)))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The text up to the first zero.
fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    core::str::from_utf8(&bytes[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;

    /// Builds a tree.
    #[derive(Default)]
    struct Builder {
        structure: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Builder {
        fn word(&mut self, word: u32) {
            self.structure.extend(word.to_be_bytes());
        }
        fn padded(&mut self, bytes: &[u8]) {
            self.structure.extend(bytes);
            self.structure.resize(self.structure.len().next_multiple_of(4), 0);
        }
        fn begin(&mut self, name: &str) {
            self.word(token::BEGIN_NODE);
            self.padded(&[name.as_bytes(), &[0]].concat());
        }
        fn property(&mut self, name: &str, value: &[u8]) {
            self.word(token::PROPERTY);
            self.word(value.len() as u32);
            self.word(self.strings.len() as u32);
            self.strings.extend([name.as_bytes(), &[0]].concat());
            self.padded(value);
        }
        fn words(&mut self, name: &str, words: &[u32]) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            self.property(name, &bytes);
        }
        fn end(&mut self) {
            self.word(token::END_NODE);
        }
        fn done(self) -> Vec<u8> {
            let (structure, strings) = (self.structure.len() as u32, self.strings.len() as u32);
            let total = HEADER_BYTES as u32 + structure + strings;
            let header =
                [MAGIC, total, HEADER_BYTES as u32, HEADER_BYTES as u32 + structure, 0, 17, 16, 0, strings, structure];
            let header: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
            [header, self.structure, self.strings].concat()
        }
    }

    fn machine() -> Vec<u8> {
        let mut tree = Builder::default();
        tree.begin("");
        tree.words("#address-cells", &[2]);
        tree.words("#size-cells", &[2]);
        tree.begin("chosen");
        tree.property("bootargs", b"ip=dhcp -- a\0");
        tree.end();
        tree.begin("memory@40000000");
        tree.words("reg", &[0, 0x4000_0000, 0, 0x400_0000, 1, 0, 0, 0x1000]);
        tree.end();
        tree.begin("cpus");
        tree.words("#address-cells", &[1]);
        tree.words("#size-cells", &[0]);
        tree.begin("cpu@3");
        tree.words("reg", &[3]);
        tree.end();
        tree.end();
        tree.begin("pl011@9000000");
        tree.property("compatible", b"arm,pl011\0arm,primecell\0");
        tree.words("reg", &[0, 0x900_0000, 0, 0x1000]);
        tree.end();
        tree.end();
        tree.done()
    }

    #[test]
    fn nodes_have_properties_and_ranges() {
        let bytes = machine();
        let tree = Tree::open(&bytes).unwrap();
        let find = |name: &str| tree.nodes().find(|node| node.name == name).unwrap();
        assert_eq!(tree.nodes().count(), 6);
        assert_eq!(find("chosen").text("bootargs"), Some("ip=dhcp -- a"));
        let memory = find("memory@40000000");
        assert_eq!(memory.range(0), Some((0x4000_0000, 0x400_0000)));
        assert_eq!(memory.range(1), Some((1 << 32, 0x1000)));
        assert_eq!(memory.range(2), None);
        assert_eq!(find("cpu@3").range(0), Some((3, 0)));
        let uart = find("pl011@9000000");
        assert!(uart.is_compatible("arm,primecell") && !uart.is_compatible("arm"));
        assert_eq!((uart.word("reg", 1), uart.word("reg", 4)), (Some(0x900_0000), None));
    }

    /// Each byte is once something else, and each length is once the end: the walk ends, and nothing panics.
    #[test]
    fn wrong_trees_end_the_walk() {
        let walk = |bytes: &[u8]| {
            let Some(tree) = Tree::open(bytes) else { return 0 };
            let mut texts = String::new();
            for node in tree.nodes() {
                let (range, word) = (node.range(1), node.word("reg", 0));
                texts += &alloc::format!("{}{range:?}{word:?}{:?}", node.name, node.text("bootargs"));
            }
            texts.len()
        };
        let bytes = machine();
        for place in 0..bytes.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut wrong = bytes.clone();
                wrong[place] = value;
                walk(&wrong);
            }
            assert_eq!(walk(&bytes[..place]), 0);
        }
        let mut deep = Builder::default();
        (0..100).for_each(|_| deep.begin("x"));
        let bytes = deep.done();
        assert_eq!(Tree::open(&bytes).unwrap().nodes().count(), DEPTH_MAX);
    }
}
