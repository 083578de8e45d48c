//! Views of a recording of host and guest: which segments of its stacks are shown, and whose code each frame is.
//!
//! A recording with a side of the host has samples of two kinds beside the guest's own: segments of the VMM and of the host's kernel in the
//! samples of a vCPU, and tracks of the VMM's threads and of its helpers. [`View::of`] makes a profile of it in which every frame has a
//! [`Layer`], and stacks have only what the view shows; trees, texts and exports are made of that. Other recordings stay as they are.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use crate::guest::Mode;
use crate::images::KERNEL_NAME;
use crate::kind::{Broken, Kind};
pub use crate::layer::{Layer, View};
pub use crate::model::HostSide;
use crate::model::{Distribution, Frame, Profile, STACK_ENTRIES_MAX, Sample, SegmentOf, Stack, StackEnd};

impl View {
    /// The profile in this view. One without a side of the host, or in a view already, is given back as it is.
    #[must_use]
    pub fn of(self, profile: &Profile) -> Viewed<'_> {
        let hosts = Hosts::of(profile);
        if profile.host.is_some() || !hosts.has_any(profile) {
            return Viewed { profile: Cow::Borrowed(profile), recorded: None };
        }
        Maker::new(profile, self, hosts).make()
    }
}

/// A profile in a view.
#[derive(Debug)]
pub struct Viewed<'a> {
    /// Its frames have layers, its stacks what the view shows, and its samples no segments; if there is no side of the host, the
    /// profile as it was recorded.
    pub profile: Cow<'a, Profile>,
    /// Of each frame the one that was recorded; `None` of the report's own entries. Without it frames are those that were recorded.
    recorded: Option<Vec<Option<u32>>>,
}

impl Viewed<'_> {
    /// The frame that was recorded, of one of the profile's.
    #[must_use]
    pub fn recorded(&self, frame: u32) -> Option<u32> {
        match &self.recorded {
            Some(recorded) => recorded.get(frame as usize).copied().flatten(),
            None => Some(frame),
        }
    }
}

/// Which guests of a profile are the host's side: processes beside a machine that the user selected.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Vec<bool>);

impl Hosts {
    /// Those of a profile.
    #[must_use]
    pub fn of(profile: &Profile) -> Hosts {
        let is_of_machine = profile.guests.first().is_some_and(|guest| guest.kind.is_machine());
        Hosts(profile.guests.iter().map(|guest| is_of_machine && !guest.kind.is_machine()).collect())
    }

    /// Whether a guest is, by its index.
    #[must_use]
    pub fn has(&self, guest: u32) -> bool {
        self.0.get(guest as usize).copied().unwrap_or(false)
    }

    /// Of each track of the profile whether it is the host's.
    #[must_use]
    pub fn tracks(&self, profile: &Profile) -> Vec<bool> {
        profile.tracks.iter().map(|track| self.has(track.guest)).collect()
    }

    /// Whether the profile has anything of the host.
    pub(crate) fn has_any(&self, profile: &Profile) -> bool {
        self.0.contains(&true)
            && (profile.tracks.iter().any(|track| self.has(track.guest))
                || profile.segments.iter().flatten().any(|segment| self.has(segment.guest)))
    }
}

impl Profile {
    /// The view of a profile with a side of the host; `None` for others, and before [`View::of`].
    #[must_use]
    pub fn view(&self) -> Option<View> {
        self.host.map(|host| host.view)
    }

    /// Of each track whether its samples do not count: it is the host's, and the view is the guest's.
    #[must_use]
    pub fn left_out(&self) -> Vec<bool> {
        match self.view() {
            Some(View::Guest) => Hosts::of(self).tracks(self),
            _ => vec![false; self.tracks.len()],
        }
    }

    /// The samples that functions' shares are counted of: in states in which code ran, on tracks that the view does not leave out.
    pub fn counted(&self) -> impl Iterator<Item = &Sample> {
        let left_out = self.left_out();
        let counts = move |sample: &&Sample| {
            sample.state.is_active() && !left_out.get(sample.track as usize).copied().unwrap_or(false)
        };
        self.samples.iter().filter(counts)
    }
}

/// A piece of a stack in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Piece {
    layer: Layer,
    addresses: u32,
    end: StackEnd,
    is_merged: bool,
}

/// How the frames of a stack are divided: what its samples have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Division {
    /// By segments: an index into the distinct lists of pieces.
    Segments(usize),
    /// By nothing but the sample's mode. Of a machine that is one piece; of a process, in front of it may be its kernel.
    Mode(Mode, bool),
}

/// What samples of one new stack have in common.
type Key = (u32, Division, bool, bool);

/// Makes the profile of a view.
struct Maker<'a> {
    profile: &'a Profile,
    view: View,
    hosts: Hosts,
    frames: Vec<Frame>,
    recorded: Vec<Option<u32>>,
    /// By frame: it is of a segment that was merged by time.
    is_merged: Vec<bool>,
    frame_of: HashMap<(u32, Layer, bool), u32>,
    entry_of: HashMap<(Kind, Option<Layer>), u32>,
    stacks: Vec<Stack>,
    /// How many more frames the stacks may have. Recordings have about as many stacks as their views; a hostile file can divide one deep stack
    /// in many ways.
    frames_left: usize,
    /// Stacks beyond [`STACK_ENTRIES_MAX`].
    left_out: u64,
}

impl<'a> Maker<'a> {
    fn new(profile: &'a Profile, view: View, hosts: Hosts) -> Maker<'a> {
        Maker {
            profile,
            view,
            hosts,
            frames: Vec::new(),
            recorded: Vec::new(),
            is_merged: Vec::new(),
            frame_of: HashMap::new(),
            entry_of: HashMap::new(),
            stacks: Vec::new(),
            frames_left: STACK_ENTRIES_MAX,
            left_out: 0,
        }
    }

    fn make(mut self) -> Viewed<'a> {
        let profile = self.profile;
        let (division_of, pieces) = self.divisions();
        // The longest distance of each list of segments.
        let apart_of = |list: &Vec<SegmentOf>| list.iter().map(|segment| segment.apart_ns).max().unwrap_or(0);
        let apart_of: Vec<u64> = profile.segments.iter().map(apart_of).collect();
        let is_host = self.hosts.tracks(profile);
        let mut known: HashMap<Key, u32> = HashMap::new();
        let mut apart_max: Vec<u64> = Vec::new();
        let mut distances = Vec::new();
        let mut samples = Vec::with_capacity(profile.samples.len());
        let mut ends = [0; StackEnd::ALL.len()];
        for sample in &profile.samples {
            if let Some(stack) = profile.stacks.get(sample.stack as usize) {
                ends[stack.end as usize] += 1;
            }
            let track = profile.tracks.get(sample.track as usize);
            let is_host = is_host.get(sample.track as usize).copied().unwrap_or(false);
            let list = sample.segments.map(|list| list as usize).filter(|list| *list < division_of.len());
            let is_machine = || {
                let guest = track.and_then(|track| profile.guests.get(track.guest as usize));
                guest.is_none_or(|guest| guest.kind.is_machine())
            };
            let division = match list {
                Some(list) => Division::Segments(division_of[list]),
                None => Division::Mode(sample.mode, is_machine()),
            };
            let key = (sample.stack, division, is_host, sample.state.is_active());
            let stack = match known.get(&key) {
                Some(stack) => *stack,
                None => {
                    let stack = self.stack(key, &pieces);
                    known.insert(key, stack);
                    apart_max.push(0);
                    stack
                }
            };
            let apart_ns = list.map_or(0, |list| apart_of[list]);
            if apart_ns > 0 {
                distances.push(apart_ns);
                if let Some(most) = apart_max.get_mut(stack as usize) {
                    *most = (*most).max(apart_ns);
                }
            }
            samples.push(Sample { stack, segments: None, ..*sample });
        }
        for (stack, apart_ns) in self.stacks.iter().zip(&apart_max).filter(|(_, apart_ns)| **apart_ns > 0) {
            for frame in stack.frames.iter().map(|frame| *frame as usize).filter(|frame| self.is_merged[*frame]) {
                self.frames[frame].apart_ns = self.frames[frame].apart_ns.max(*apart_ns);
            }
        }
        let mut warnings = profile.warnings.clone();
        if self.left_out > 0 {
            warnings.push(format!(
                "{} stacks are left out of the view: all together have more than {STACK_ENTRIES_MAX} frames",
                self.left_out
            ));
        }
        let made = Profile {
            origin: profile.origin.clone(),
            cost: profile.cost.clone(),
            guests: profile.guests.clone(),
            processes: profile.processes.clone(),
            threads: profile.threads.clone(),
            tracks: profile.tracks.clone(),
            frames: self.frames,
            stacks: self.stacks,
            segments: Vec::new(),
            samples,
            warnings,
            named: profile.named.clone(),
            only: profile.only.clone(),
            host: Some(HostSide { view: self.view, apart: Distribution::of(&mut distances), ends }),
        };
        Viewed { profile: Cow::Owned(made), recorded: Some(self.recorded) }
    }

    /// The distinct lists of pieces, innermost first, and which of them each list of segments is. Lists of segments differ in
    /// distances, and there may be one for each sample.
    fn divisions(&self) -> (Vec<usize>, Vec<Vec<Piece>>) {
        let mut pieces: Vec<Vec<Piece>> = Vec::new();
        let mut known: HashMap<Vec<Piece>, usize> = HashMap::new();
        let piece = |segment: &SegmentOf| Piece {
            layer: Layer::of(segment.mode, self.hosts.has(segment.guest)),
            addresses: segment.addresses,
            end: segment.end,
            is_merged: segment.apart_ns > 0,
        };
        let mut division = |list: &Vec<SegmentOf>| {
            let list: Vec<Piece> = list.iter().map(piece).collect();
            *known.entry(list).or_insert_with_key(|list| {
                pieces.push(list.clone());
                pieces.len() - 1
            })
        };
        let division_of = self.profile.segments.iter().map(&mut division).collect();
        (division_of, pieces)
    }

    /// The number of a frame in a layer.
    fn frame(&mut self, frame: u32, layer: Layer, is_merged: bool) -> u32 {
        let next = self.frames.len() as u32;
        let number = *self.frame_of.entry((frame, layer, is_merged)).or_insert(next);
        if number == next {
            let recorded = self.profile.frames.get(frame as usize).cloned().unwrap_or_default();
            self.frames.push(Frame { layer: Some(layer), ..recorded });
            self.recorded.push(Some(frame));
            self.is_merged.push(is_merged);
        }
        number
    }

    /// The number of an entry of the report's own; with a layer it is none of the guest's.
    fn entry(&mut self, kind: Kind, layer: Option<Layer>) -> u32 {
        let next = self.frames.len() as u32;
        let number = *self.entry_of.entry((kind, layer)).or_insert(next);
        if number == next {
            self.frames.push(Frame { function: kind.label(), entry: Some(kind), layer, ..Frame::default() });
            self.recorded.push(None);
            self.is_merged.push(false);
        }
        number
    }

    /// The pieces of a stack, outermost first.
    fn pieces(
        &self,
        stack: &Stack,
        division: Division,
        is_host: bool,
        lists: &[Vec<Piece>],
    ) -> Vec<(Range<usize>, Piece)> {
        let count = stack.frames.len();
        let piece = |mode, end| Piece { layer: Layer::of(mode, is_host), addresses: 0, end, is_merged: false };
        let list = match division {
            Division::Mode(mode, true) => return vec![(0..count, piece(mode, stack.end))],
            Division::Mode(_, false) => {
                let is_kernel = |frame: &u32| self.profile.frames[*frame as usize].image == KERNEL_NAME;
                let kernel = stack.frames.iter().rposition(|frame| !is_kernel(frame)).map_or(0, |last| last + 1);
                let user = (0..kernel, piece(Mode::User, stack.end));
                return vec![user, (kernel..count, piece(Mode::Kernel, StackEnd::Complete))];
            }
            Division::Segments(list) => &lists[list],
        };
        let mut pieces: Vec<(Range<usize>, Piece)> = Vec::with_capacity(list.len());
        let mut end = count;
        for piece in list {
            let (mut start, mut addresses) = (end, piece.addresses);
            // An address is a function and those that were inlined into it, which follow it.
            while addresses > 0 && start > 0 {
                start -= 1;
                addresses -= u32::from(!self.profile.frames[stack.frames[start] as usize].inlined);
            }
            pieces.push((start..end, *piece));
            end = start;
        }
        // Segments of a damaged file may have too few.
        if let Some((range, _)) = pieces.last_mut() {
            range.start = 0;
        }
        pieces.reverse();
        pieces
    }

    /// Makes the stack of samples of this key.
    fn stack(&mut self, (stack, division, is_host, is_active): Key, lists: &[Vec<Piece>]) -> u32 {
        let made = self.shown(stack, division, is_host, is_active, lists);
        self.stacks.push(made);
        self.stacks.len() as u32 - 1
    }

    fn shown(&mut self, stack: u32, division: Division, is_host: bool, is_active: bool, lists: &[Vec<Piece>]) -> Stack {
        let profile = self.profile;
        let stack = profile.stacks.get(stack as usize);
        let entries = stack.map_or(0, |stack| stack.frames.len());
        if entries > self.frames_left {
            self.left_out += 1;
            return self.only(Kind::Broken(Broken::TooDeep), is_host.then_some(Layer::Vmm));
        }
        self.frames_left -= entries;
        let sound = stack.filter(|stack| stack.frames.iter().all(|frame| (*frame as usize) < profile.frames.len()));
        let is_guest_box = self.view == View::Host && !is_host;
        let own_layer = is_host.then_some(Layer::Vmm);
        let Some(stack) = sound else {
            let kind = if is_guest_box { Kind::Guest } else { Kind::Broken(Broken::Missing) };
            return self.only(kind, own_layer);
        };
        let pieces = self.pieces(stack, division, is_host, lists);
        let (mut made, mut end) = (Stack::default(), StackEnd::Complete);
        let mut has_own = false;
        for run in pieces.chunk_by(|a, b| a.1.layer.is_host() == b.1.layer.is_host()) {
            let of_host = run[0].1.layer.is_host();
            let is_empty = run.iter().all(|(range, _)| range.is_empty());
            // The innermost one that is not whole.
            let broken = run.iter().rev().map(|(_, piece)| piece.end).find(|end| *end != StackEnd::Complete);
            if !self.view.shows(of_host) || (is_empty && of_host != is_host) {
                continue;
            }
            if let Some(broken) = broken {
                match Broken::of(broken) {
                    Some(kind) if of_host => made.frames.push(self.entry(Kind::Broken(kind), Some(Layer::Vmm))),
                    // The tree makes a parent of it.
                    _ if made.frames.is_empty() => end = broken,
                    Some(kind) => made.frames.push(self.entry(Kind::Broken(kind), None)),
                    None => {}
                }
            }
            has_own |= of_host == is_host && (!is_empty || broken.is_some());
            for (range, piece) in run {
                for frame in &stack.frames[range.clone()] {
                    let frame = self.frame(*frame, piece.layer, piece.is_merged);
                    made.frames.push(frame);
                }
            }
        }
        made.end = end;
        if is_guest_box {
            let is_known = is_active || !stack.frames.is_empty();
            return if made.frames.is_empty() && is_known { self.only(Kind::Guest, None) } else { made };
        }
        // Where code ran, its own stack may be missing nevertheless.
        let is_shown = self.view.shows(is_host);
        if is_active && is_shown && !has_own {
            let missing = self.entry(Kind::Broken(Broken::NoFrames), own_layer);
            made.frames.insert(0, missing);
        }
        made
    }

    fn only(&mut self, kind: Kind, layer: Option<Layer>) -> Stack {
        Stack { frames: vec![self.entry(kind, layer)], end: StackEnd::Complete }
    }
}
