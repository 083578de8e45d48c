//! The parts of one path, or of many, put together by what they are about.

use std::collections::BTreeMap;

use super::{Path, What};
use crate::trace::model::{BlockKind, NameId, Operation, Trace};

/// What parts are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// Tasks of this name run.
    Run(NameId),
    /// Code of the span runs outside of any task.
    Core,
    /// Tasks are runnable.
    Ready,
    /// A device works on requests of one kind: index into `Trace::devices`, number of an [`Operation`].
    Device(u32, u16),
    /// The peer of a connection has not sent anything.
    Network,
    /// A deadline has not come, with the name of what it is for.
    Timer(NameId),
    /// Something else, with its name; number of a [`BlockKind`].
    Wait(u16, NameId),
    /// It is unknown.
    Unknown,
}

/// How much of the time a topic has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// What it is about.
    pub topic: Topic,
    /// Time together.
    pub sum_ns: u64,
    /// Parts.
    pub count: u64,
    /// The longest part.
    pub max_ns: u64,
}

/// Where the time of one span or of many went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Time of all spans together.
    pub sum_ns: u64,
    /// How many.
    pub spans: u64,
    /// What the spans' own tasks did or waited for, the most time first.
    pub own: Vec<Share>,
    /// What it came to when the path was followed through the waits, the most time first.
    pub followed: Vec<Share>,
    /// For each wait of [`Summary::own`], in its order, what happened meanwhile; empty for what is no wait.
    pub behind: Vec<Vec<Share>>,
}

#[derive(Debug, Default)]
struct Shares(BTreeMap<Topic, Share>);

impl Shares {
    fn add(&mut self, topic: Topic, ns: u64) {
        let share = self.0.entry(topic).or_insert(Share { topic, sum_ns: 0, count: 0, max_ns: 0 });
        share.sum_ns = share.sum_ns.saturating_add(ns);
        share.count += 1;
        share.max_ns = share.max_ns.max(ns);
    }

    fn sorted(self) -> Vec<Share> {
        let mut shares: Vec<Share> = self.0.into_values().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.sum_ns));
        shares
    }
}

/// Puts the parts of paths together.
pub fn summarise<'a>(trace: &Trace, paths: impl IntoIterator<Item = &'a Path>) -> Summary {
    let mut summary = Summary::default();
    let (mut own, mut followed) = (Shares::default(), Shares::default());
    let mut behind: BTreeMap<Topic, Shares> = BTreeMap::new();
    for path in paths {
        summary.spans += 1;
        summary.sum_ns = summary.sum_ns.saturating_add(path.duration_ns());
        // Parts of the same wait are one share of it.
        let mut under_way: Option<(u32, Topic, u64)> = None;
        for part in &path.parts {
            let ns = part.end_ns - part.start_ns;
            let topic = followed_topic(trace, part.what);
            followed.add(topic, ns);
            let is_ready = matches!(part.what, What::Ready { .. }) && part.depth == 0;
            let wait = part.wait.filter(|_| !is_ready);
            let own_topic = wait.map_or(topic, |wait| wait_topic(trace, wait));
            if let Some((_, topic, sum)) = under_way.take_if(|(known, ..)| Some(*known) != wait) {
                own.add(topic, sum);
            }
            match (wait, &mut under_way) {
                (Some(_), Some((_, _, sum))) => *sum += ns,
                (Some(wait), None) => under_way = Some((wait, own_topic, ns)),
                (None, _) => own.add(own_topic, ns),
            }
            if wait.is_some() {
                behind.entry(own_topic).or_default().add(topic, ns);
            }
        }
        if let Some((_, topic, sum)) = under_way {
            own.add(topic, sum);
        }
    }
    summary.own = own.sorted();
    summary.followed = followed.sorted();
    let mut behind: BTreeMap<Topic, Vec<Share>> =
        behind.into_iter().map(|(topic, shares)| (topic, shares.sorted())).collect();
    summary.behind = summary.own.iter().map(|share| behind.remove(&share.topic).unwrap_or_default()).collect();
    summary
}

/// What a wait was for.
fn wait_topic(trace: &Trace, wait: u32) -> Topic {
    match trace.waits.get(wait as usize).and_then(|wait| trace.reason_of(wait)) {
        Some(reason) if reason.kind == BlockKind::Timer => Topic::Timer(reason.name),
        Some(reason) => Topic::Wait(reason.kind as u16, reason.name),
        None => Topic::Wait(BlockKind::Other as u16, 0),
    }
}

fn followed_topic(trace: &Trace, what: What) -> Topic {
    match what {
        What::Run { task, .. } => Topic::Run(trace.tasks.get(task as usize).map_or(0, |task| task.name)),
        What::Core { .. } => Topic::Core,
        What::Ready { .. } => Topic::Ready,
        What::Request { request } => {
            let request = trace.requests.get(request as usize);
            request.map_or(Topic::Unknown, |request| Topic::Device(request.device, request.operation as u16))
        }
        What::Network { .. } => Topic::Network,
        What::Timer { wait } | What::Wait { wait } => wait_topic(trace, wait),
        What::Unknown => Topic::Unknown,
    }
}

impl Topic {
    /// Whether nothing of ours runs meanwhile.
    pub fn is_wait(self) -> bool {
        !matches!(self, Topic::Run(_) | Topic::Core | Topic::Unknown)
    }

    /// The operation of [`Topic::Device`].
    pub fn operation(self) -> Option<Operation> {
        match self {
            Topic::Device(_, operation) => Some(Operation::from_number(operation)),
            _ => None,
        }
    }
}
