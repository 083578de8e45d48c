//! Who waited for whom: the time that calls of MPI waited for other ranks, and how far apart ranks came to collective operations.

use std::collections::{BTreeMap, HashMap};

use glass_profiler_core::model::Distribution;
use glass_profiler_core::trace::model::{MpiCall, MpiPart, NameId, Trace};

/// For how long, and for which rank.
type Waited = (u64, u32);

/// All calls of one function by one rank.
#[derive(Debug, Clone, Default)]
pub struct MpiFigures {
    /// The rank.
    pub rank: u32,
    /// The function.
    pub name: NameId,
    /// How many calls.
    pub calls: u64,
    /// Time in them.
    pub total_ns: u64,
    /// Time in which they waited for another rank.
    pub waited_ns: u64,
    /// The longest of these: how long, and the call.
    pub longest: Option<(u64, u32)>,
    /// The rank that was waited for longest in total, and for how long.
    pub mostly: Option<(u32, u64)>,
}

/// All collective operations of one function in one communicator.
#[derive(Debug, Clone, Default)]
pub struct CollectiveFigures {
    /// The function.
    pub name: NameId,
    /// Number of the communicator, and of its ranks.
    pub communicator: u32,
    /// See `communicator`.
    pub ranks: u32,
    /// From the start of the earliest rank to the start of the last.
    pub imbalance: Distribution,
    /// The largest of these, as the call of the earliest rank.
    pub longest: Option<u32>,
    /// The rank that was the last most often, and how often.
    pub last: (u32, u64),
}

/// The calls of an operation in which all ranks of the communicator took part: the earliest, and the last.
struct Meeting<'a> {
    parts: Vec<&'a MpiPart>,
    first: &'a MpiPart,
    last: &'a MpiPart,
}

fn meetings(trace: &Trace) -> Vec<Meeting<'_>> {
    let mut by_key: BTreeMap<(u32, u8, bool, u32), Vec<&MpiPart>> = BTreeMap::new();
    for part in &trace.mpi_parts {
        by_key.entry((part.communicator, part.lowest, part.is_barrier, part.number)).or_default().push(part);
    }
    let whole = by_key.into_values().filter(|parts| parts.len() > 1 && parts.len() == parts[0].ranks as usize);
    whole
        .filter_map(|parts| {
            let first = parts.iter().copied().min_by_key(|part| part.time_ns)?;
            let last = parts.iter().copied().max_by_key(|part| part.time_ns)?;
            Some(Meeting { parts, first, last })
        })
        .collect()
}

/// How long each call waited for another rank, and for which: for the one whose message was sent last, for the one that began to receive
/// a message that its sender had to keep, and in a barrier for the last to come.
fn waited(trace: &Trace) -> Vec<Option<Waited>> {
    let mut waits: Vec<Option<Waited>> = vec![None; trace.mpi_calls.len()];
    let mut wait = |call: u32, until_ns: u64, rank: u32| {
        let Some(of) = trace.mpi_calls.get(call as usize) else { return };
        let ns = until_ns.min(of.end_ns).saturating_sub(of.start_ns);
        if of.rank != rank && ns > 0 && waits[call as usize].is_none_or(|(known_ns, _)| ns > known_ns) {
            waits[call as usize] = Some((ns, rank));
        }
    };
    let of_ranks = calls_of_ranks(trace);
    for message in &trace.mpi_messages {
        let call = |index: u32| trace.mpi_calls.get(index as usize);
        let (Some(from), Some(to)) = (call(message.from), call(message.to)) else { continue };
        wait(message.to, message.sent_ns, from.rank);
        if !message.is_offered {
            continue;
        }
        if from.end_ns >= message.received_ns {
            wait(message.from, to.start_ns, to.rank);
        } else if let Some(waiting) = at(trace, &of_ranks, from.rank, message.received_ns)
            && trace.name(trace.mpi_calls[waiting as usize].name).starts_with("MPI_Wait")
        {
            // The send was begun by another call; this one waits for its end.
            wait(waiting, to.start_ns, to.rank);
        }
    }
    for meeting in meetings(trace).iter().filter(|meeting| meeting.last.is_barrier) {
        let Some(last) = trace.mpi_calls.get(meeting.last.call as usize) else { continue };
        meeting.parts.iter().for_each(|part| wait(part.call, meeting.last.time_ns, last.rank));
    }
    waits
}

/// The calls of each rank, in order.
fn calls_of_ranks(trace: &Trace) -> HashMap<u32, Vec<u32>> {
    let mut of_ranks: HashMap<u32, Vec<u32>> = HashMap::new();
    for (index, call) in (0u32..).zip(&trace.mpi_calls) {
        of_ranks.entry(call.rank).or_default().push(index);
    }
    of_ranks
}

/// The call that a rank was in at a moment.
fn at(trace: &Trace, of_ranks: &HashMap<u32, Vec<u32>>, rank: u32, time_ns: u64) -> Option<u32> {
    let own = of_ranks.get(&rank)?;
    let call = |index: &u32| &trace.mpi_calls[*index as usize];
    let next = own.partition_point(|index| call(index).start_ns <= time_ns);
    own.get(next.checked_sub(1)?).copied().filter(|index| call(index).end_ns >= time_ns)
}

/// The rank with the most, the lowest of several.
fn most(of_ranks: BTreeMap<u32, u64>) -> Option<(u32, u64)> {
    of_ranks.into_iter().max_by_key(|(rank, sum)| (*sum, std::cmp::Reverse(*rank)))
}

/// Calls by rank and function, those that waited longest in total first.
pub fn calls(trace: &Trace) -> Vec<MpiFigures> {
    let mut rows: BTreeMap<(u32, NameId), (MpiFigures, BTreeMap<u32, u64>)> = BTreeMap::new();
    for (index, (call, waited)) in (0u32..).zip(trace.mpi_calls.iter().zip(waited(trace))) {
        let MpiCall { rank, name, start_ns, end_ns, .. } = *call;
        let (figures, of_ranks) = rows.entry((rank, name)).or_default();
        figures.calls += 1;
        figures.total_ns = figures.total_ns.saturating_add(end_ns.saturating_sub(start_ns));
        let Some((ns, other)) = waited else { continue };
        figures.waited_ns = figures.waited_ns.saturating_add(ns);
        if figures.longest.is_none_or(|(longest_ns, _)| ns > longest_ns) {
            figures.longest = Some((ns, index));
        }
        let sum_ns = of_ranks.entry(other).or_default();
        *sum_ns = sum_ns.saturating_add(ns);
    }
    let mut rows: Vec<MpiFigures> = rows
        .into_iter()
        .map(|((rank, name), (figures, of_ranks))| MpiFigures { rank, name, mostly: most(of_ranks), ..figures })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.waited_ns));
    rows
}

/// Collective operations by function and communicator, those of the largest imbalance in total first.
pub fn collectives(trace: &Trace) -> Vec<CollectiveFigures> {
    #[derive(Default)]
    struct Row {
        ranks: u32,
        spans: Vec<u64>,
        longest: Option<(u64, u32)>,
        last: BTreeMap<u32, u64>,
    }
    let mut rows: BTreeMap<(NameId, u32, u8), Row> = BTreeMap::new();
    for Meeting { first, last, .. } in meetings(trace) {
        let call = |part: &MpiPart| trace.mpi_calls.get(part.call as usize);
        let (Some(earliest), Some(latest)) = (call(first), call(last)) else { continue };
        let row = rows.entry((earliest.name, first.communicator, first.lowest)).or_default();
        let ns = last.time_ns.saturating_sub(first.time_ns);
        row.ranks = first.ranks;
        row.spans.push(ns);
        if row.longest.is_none_or(|(longest_ns, _)| ns > longest_ns) {
            row.longest = Some((ns, first.call));
        }
        *row.last.entry(latest.rank).or_default() += 1;
    }
    let mut rows: Vec<CollectiveFigures> = rows
        .into_iter()
        .map(|((name, communicator, _), mut row)| CollectiveFigures {
            name,
            communicator,
            ranks: row.ranks,
            imbalance: Distribution::of(&mut row.spans),
            longest: row.longest.map(|(_, call)| call),
            last: most(row.last).unwrap_or_default(),
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.imbalance.sum_ns));
    rows
}
