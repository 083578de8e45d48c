//! A flame graph as an image, for documents: callers below, the width of a box is its share of the samples.
//!
//! It works wherever images do. A browser that opens it directly shows a box's name and numbers at the pointer, zooms into boxes and searches
//! (`svg/interact.js`). Colours stand for the group of a function (a crate, a C++ namespace, a package or a script, else the image), the same in
//! every picture, or for modes where host and guest are shown; the largest are named beside the title. The background is light or dark by the
//! reader's preference.

mod colour;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use glass_profiler_core::format::duration;
use glass_profiler_core::identity::{by_track, processes};
use glass_profiler_core::model::{Frame, Profile};
use glass_profiler_core::names;
use glass_profiler_core::recording::Recording;
use glass_profiler_core::tree::{Kind, Node, Tree};
use glass_profiler_core::view::Layer;

use crate::chains::title;
use crate::{Options, States};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 12.0;
const ROW: f64 = 19.0;
const HEAD: f64 = 62.0;
/// Narrower boxes are left out, also where the image is zoomed; the footer counts them.
const BOX_WIDTH_MIN: f64 = 0.15;
/// Letters of the title, and space beside it for the legend. A group's name has so many letters there.
const TITLE_LETTERS: usize = 70;
const LEGEND_WIDTH: f64 = 480.0;
const GROUP_LETTERS: usize = 20;
/// Space between boxes.
const GAP: f64 = 0.7;
/// Width of a letter: the font is monospaced.
const LETTER: f64 = 7.0;
/// Maximum of drawn rows; deeper ones are left out, and the footer counts them.
const ROWS_MAX: usize = 150;

const STYLE: &str = "text{font:11.5px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1c1917}\
.h{font-size:16px;font-weight:600}.s{fill:#57534e}rect{rx:2px}.bg{fill:#fdfcfa}rect.m{fill:#d946ef}\
@media(prefers-color-scheme:dark){.bg{fill:#16181d}.h{fill:#f2efe9}.s{fill:#a8a29e}}";

/// A box that is drawn.
struct Shown {
    node: usize,
    /// Row from the bottom.
    row: usize,
    left: f64,
    width: f64,
}

pub(crate) fn write(recording: &Recording, options: Options<'_>, output: &mut dyn Write) -> io::Result<()> {
    let tree = Tree::build(&by_process(&recording.profile));
    let (boxes, hidden) = place(&tree, options.states);
    let rows = boxes.iter().map(|shown| shown.row + 1).max().unwrap_or(0);
    let height = HEAD + rows as f64 * ROW + 30.0;
    let all = boxes.first().map_or(0, |root| total(&tree, root.node, options.states));
    write!(
        output,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\
         <style>{STYLE}</style><rect class=\"bg\" width=\"100%\" height=\"100%\"/>"
    )?;
    let profile = &recording.profile;
    text(output, "h", MARGIN, 26.0, &cut(&title(profile), TITLE_LETTERS))?;
    text(output, "s", MARGIN, 46.0, &subtitle(recording, &tree, all, options.states))?;
    legend(output, &legend_items(&tree))?;
    for shown in &boxes {
        draw(&tree, shown, all, height - 30.0, options.states, output)?;
    }
    let footer = match hidden {
        0 => "drawn by glass export".to_owned(),
        hidden => format!("drawn by glass export; {hidden} boxes were left out because they are too small"),
    };
    text(output, "s", MARGIN, height - 9.0, &footer)?;
    writeln!(output, "<script><![CDATA[{}]]></script></svg>", include_str!("svg/interact.js"))
}

/// The profile with the process of a sample as the outermost caller, if there are several.
fn by_process(profile: &Profile) -> Cow<'_, Profile> {
    let processes = processes(profile);
    if processes.len() < 2 && profile.view().is_none() {
        return Cow::Borrowed(profile);
    }
    let mut profile = profile.clone();
    let first = profile.frames.len();
    profile.frames.extend(processes.iter().map(|process| Frame { function: process.label(), ..Frame::default() }));
    let process_of = by_track(&processes, profile.tracks.len());
    let mut stack_of: HashMap<(u32, u32), u32> = HashMap::new();
    for sample in &mut profile.samples {
        let Some(process) = process_of.get(sample.track as usize).copied().flatten() else { continue };
        let frame = (first + process) as u32;
        let Some(stack) = profile.stacks.get(sample.stack as usize) else { continue };
        let next = profile.stacks.len() as u32;
        let number = *stack_of.entry((sample.stack, frame)).or_insert(next);
        if number == next {
            let mut stack = stack.clone();
            stack.frames.insert(0, frame);
            profile.stacks.push(stack);
        }
        sample.stack = number;
    }
    Cow::Owned(profile)
}

/// Whether boxes are coloured by modes.
fn by_layer(tree: &Tree) -> bool {
    tree.host.is_some_and(|host| host.view.is_by_layer())
}

/// Texts and colours of the legend, the most important first: all modes, or the groups with most samples of their own.
fn legend_items(tree: &Tree) -> Vec<(String, String)> {
    if by_layer(tree) {
        return Layer::ALL.map(|layer| (layer.word().to_owned(), colour::of_layer(layer, 2))).to_vec();
    }
    let mut own: BTreeMap<String, u64> = BTreeMap::new();
    for node in 0..tree.nodes.len() {
        let function = tree.function(node);
        if function.kind == Kind::Function {
            *own.entry(names::group(&function.name, &function.image)).or_default() += tree.nodes[node].self_samples;
        }
    }
    let mut groups: Vec<(String, u64)> = own.into_iter().filter(|(_, own)| *own > 0).collect();
    groups.sort_by_key(|(_, own)| Reverse(*own));
    groups.into_iter().map(|(group, _)| (cut(&group, GROUP_LETTERS), colour::of_group_in_legend(&group))).collect()
}

/// What colours stand for, at the right of the title, as far as there is room.
fn legend(output: &mut dyn Write, items: &[(String, String)]) -> io::Result<()> {
    let width_of = |name: &str| name.chars().count() as f64 * LETTER + 31.0;
    let mut left = WIDTH - MARGIN - LEGEND_WIDTH;
    let fits = |(name, _): &&(String, String)| {
        left += width_of(name);
        left <= WIDTH - MARGIN + 14.0
    };
    let shown = items.iter().take_while(fits).count();
    let mut right = WIDTH - MARGIN;
    for (name, fill) in items[..shown].iter().rev() {
        let width = name.chars().count() as f64 * LETTER;
        text(output, "s", right - width, 26.0, name)?;
        let left = right - width - 17.0;
        write!(output, "<rect x=\"{left:.1}\" y=\"16\" width=\"12\" height=\"12\" fill=\"{fill}\"/>")?;
        right = left - 14.0;
    }
    Ok(())
}

fn subtitle(recording: &Recording, tree: &Tree, all: u64, states: States) -> String {
    let origin = &recording.profile.origin;
    let cost = &recording.profile.cost;
    let kind = if states == States::Running { tree.counts().active_words() } else { "samples" };
    let seconds = origin.duration_ns as f64 / 1e9;
    let view = tree.host.map_or(String::new(), |host| format!("; view: {}", host.view.name()));
    let pause = match cost.pause.count {
        0 => String::new(),
        _ => format!(", pauses of {:.0} \u{b5}s", cost.pause.median_ns as f64 / 1e3),
    };
    format!(
        "{all} {kind} in {seconds:.1} s at {} Hz; {} lost, {} broken stacks{pause}{view}",
        origin.rate_hz, cost.samples_lost, cost.stacks_broken
    )
}

/// Samples of a node that count: of the root only the running ones, if no other states are selected.
fn total(tree: &Tree, node: usize, states: States) -> u64 {
    match (node, states) {
        (0, States::Running) => children(tree, 0)
            .filter(|child| is_shown(tree, *child, states))
            .map(|child| tree.nodes[child].total_samples)
            .sum(),
        _ => tree.nodes[node].total_samples,
    }
}

fn is_shown(tree: &Tree, node: usize, states: States) -> bool {
    states == States::All || !matches!(tree.function(node).kind, Kind::In(_))
}

fn children(tree: &Tree, node: usize) -> impl Iterator<Item = usize> + '_ {
    let end = tree.nodes.get(node).map_or(0, |node| node.end);
    let first = (node + 1 < end).then_some(node + 1);
    std::iter::successors(first, move |child| {
        let next = tree.nodes[*child].end;
        (next < end).then_some(next)
    })
}

/// Positions of the boxes, and the number of those that are too small to draw.
fn place(tree: &Tree, states: States) -> (Vec<Shown>, usize) {
    let mut boxes: Vec<Shown> = Vec::new();
    let mut hidden = 0;
    let all = if tree.nodes.is_empty() { 0 } else { total(tree, 0, states) };
    if all == 0 {
        return (boxes, hidden);
    }
    let scale = (WIDTH - 2.0 * MARGIN) / all as f64;
    boxes.push(Shown { node: 0, row: 0, left: MARGIN, width: WIDTH - 2.0 * MARGIN });
    let mut next = 0;
    while next < boxes.len() {
        let Shown { node, row, mut left, .. } = boxes[next];
        next += 1;
        // In order of name, so that the same code is in the same place in two images.
        let mut callees: Vec<usize> = children(tree, node).filter(|child| is_shown(tree, *child, states)).collect();
        callees.sort_by_key(|child| &tree.function(*child).name);
        for child in callees {
            let Node { total_samples, end, .. } = tree.nodes[child];
            let width = total_samples as f64 * scale;
            if width < BOX_WIDTH_MIN || row + 1 >= ROWS_MAX {
                hidden += end - child;
            } else {
                boxes.push(Shown { node: child, row: row + 1, left, width });
            }
            left += width;
        }
    }
    (boxes, hidden)
}

fn draw(tree: &Tree, shown: &Shown, all: u64, bottom: f64, states: States, output: &mut dyn Write) -> io::Result<()> {
    let Shown { node, row, left, width } = *shown;
    let function = tree.function(node);
    let total = total(tree, node, states);
    let percent = total as f64 * 100.0 / all.max(1) as f64;
    let top = bottom - (row + 1) as f64 * ROW;
    // The name for where the whole one has no room.
    let short = names::short(&function.name);
    if short == function.name {
        write!(output, "<g><title>")?;
    } else {
        write!(output, "<g data-short=\"")?;
        escape(output, &short)?;
        write!(output, "\"><title>")?;
    }
    escape(output, &function.name)?;
    if let Some(location) = tree.nodes[node].location {
        output.write_all(b"\n")?;
        escape(output, &tree.locations[location].to_string())?;
    }
    if !function.image.is_empty() {
        output.write_all(b"\n")?;
        escape(output, &function.image)?;
    }
    if let Some(layer) = function.layer {
        write!(output, "\n{}", layer.word())?;
    }
    let apart_ns = tree.nodes[node].apart_ns;
    if apart_ns > 0 {
        output.write_all(b"\n")?;
        escape(output, &format!("merged by time: sampled up to {} apart", duration(apart_ns)))?;
    }
    let own = tree.nodes[node].self_samples;
    write!(output, "\n{total} samples ({percent:.1} %), {own} of its own</title>")?;
    let fill = colour::of(function, by_layer(tree));
    write!(
        output,
        "<rect x=\"{left:.1}\" y=\"{top:.0}\" width=\"{:.1}\" height=\"{:.0}\" fill=\"{fill}\"/>",
        (width - GAP).max(width.min(0.4)),
        ROW - 1.0
    )?;
    let letters = ((width - 8.0) / LETTER).max(0.0) as usize;
    if letters >= 3 {
        let name = if function.name.chars().count() > letters { short } else { function.name.clone() };
        text(output, "", left + 4.0, top + 13.0, &cut(&name, letters))?;
    }
    output.write_all(b"</g>")
}

/// The first letters, with an ellipsis if the text is cut.
fn cut(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(letters.saturating_sub(1)).collect();
    kept + "\u{2026}"
}

fn text(output: &mut dyn Write, class: &str, left: f64, base: f64, text: &str) -> io::Result<()> {
    write!(output, "<text x=\"{left:.1}\" y=\"{base:.0}\"")?;
    if !class.is_empty() {
        write!(output, " class=\"{class}\"")?;
    }
    output.write_all(b">")?;
    escape(output, text)?;
    output.write_all(b"</text>")
}

/// Escapes a name for XML; names have no control characters here.
fn escape(output: &mut dyn Write, text: &str) -> io::Result<()> {
    let mut buffer = [0; 4];
    for letter in text.chars() {
        output.write_all(match letter {
            '&' => b"&amp;",
            '<' => b"&lt;",
            '>' => b"&gt;",
            '"' => b"&quot;",
            // Not allowed in XML, even escaped.
            '\u{fffe}' | '\u{ffff}' => "\u{fffd}".as_bytes(),
            letter => letter.encode_utf8(&mut buffer).as_bytes(),
        })?;
    }
    Ok(())
}
