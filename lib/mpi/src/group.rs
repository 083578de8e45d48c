//! Groups of ranks, and communicators: a group with a context of its own for its messages.

use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;

/// Ranks of the job in the order that numbers them anew.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    members: Vec<u32>,
    /// By rank of the job: its rank here, or -1.
    inverse: Vec<i32>,
}

/// How two groups or communicators compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The same object, or the same group.
    Same,
    /// The same ranks in the same order.
    Congruent,
    /// The same ranks in another order.
    Similar,
    /// Other ranks.
    Unequal,
}

impl Group {
    /// The group of these ranks of the job, each of which is there once.
    pub fn new(members: Vec<u32>) -> Group {
        let length = members.iter().max().map_or(0, |last| *last as usize + 1);
        let mut inverse = vec![-1; length];
        for (rank, member) in members.iter().enumerate() {
            inverse[*member as usize] = rank as i32;
        }
        Group { members, inverse }
    }

    /// Its ranks of the job.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The rank here of a rank of the job.
    #[inline]
    pub fn rank_of(&self, member: usize) -> Option<usize> {
        self.inverse.get(member).and_then(|rank| usize::try_from(*rank).ok())
    }

    /// The rank of the job of a rank here.
    #[inline]
    pub fn member(&self, rank: usize) -> Option<usize> {
        self.members.get(rank).map(|member| *member as usize)
    }

    /// How the two compare as groups.
    pub fn compare(&self, other: &Group) -> Comparison {
        if self.members == other.members {
            return Comparison::Same;
        }
        let is_same_set =
            self.size() == other.size() && self.members.iter().all(|m| other.rank_of(*m as usize).is_some());
        if is_same_set { Comparison::Similar } else { Comparison::Unequal }
    }
}

/// The tags of collective calls repeat after so many; so long no message of one stays behind.
const TAG_MASK: u32 = 0x7fff_ffff;

/// A group whose members exchange messages that no other communicator sees.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) context: u32,
    group: Rc<Group>,
    rank: usize,
    /// Collective calls so far: the tag of the next.
    sequence: Cell<u32>,
    /// Barriers so far that were no such calls.
    barriers: Cell<u32>,
}

impl Communicator {
    /// `number` is one that the members agreed on; this process is `rank` of the group.
    pub(crate) fn new(number: u32, group: Rc<Group>, rank: usize) -> Communicator {
        Communicator { context: number * 2, group, rank, sequence: Cell::new(0), barriers: Cell::new(0) }
    }

    /// For one collective call among some members of `parent`, by a tag of the program: in the upper half of the collective tags.
    pub(crate) fn meeting(parent: &Communicator, group: Rc<Group>, rank: usize, tag: i32) -> Communicator {
        let sequence = Cell::new(1 << 30 | tag as u32 & 0x3fff_ffff);
        Communicator { context: parent.context, group, rank, sequence, barriers: Cell::new(0) }
    }

    /// Its group.
    pub fn group(&self) -> &Rc<Group> {
        &self.group
    }

    /// This process in it.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks it has.
    #[inline]
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// The number that its members agreed on.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.context / 2
    }

    /// Counts a barrier, which needs no tag; the number of those before.
    #[inline]
    pub(crate) fn next_barrier(&self) -> u32 {
        let number = self.barriers.get();
        self.barriers.set(number.wrapping_add(1));
        number
    }

    /// The context of collective messages, and the tag of the next collective call.
    pub(crate) fn next_collective(&self) -> (u32, i32) {
        let sequence = self.sequence.get();
        self.sequence.set(sequence.wrapping_add(1));
        (self.context + 1, (sequence & TAG_MASK) as i32)
    }

    /// How the two compare as communicators.
    pub fn compare(&self, other: &Communicator) -> Comparison {
        match self.group.compare(&other.group) {
            Comparison::Same if self.context == other.context => Comparison::Same,
            Comparison::Same => Comparison::Congruent,
            other => other,
        }
    }
}
