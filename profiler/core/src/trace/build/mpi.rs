//! Calls of MPI, each of which is a span on its rank's core, and the messages between them.

use std::collections::HashMap;

use glass_formats::trace::{Event, MPI_ANY, MPI_CALLS, MpiRole};

use super::At;
use super::names::Names;
use crate::trace::model::{Interval, MpiCall, MpiMessage, MpiPart, NameId, Span, SpanVisit, Trace, Value};

/// Calls within calls, which functions of the program make that MPI calls.
const DEPTH_MAX: usize = 16;
/// Level of their spans: 3 is information.
const LEVEL: u8 = 3;

/// The open calls, and the messages on their way.
#[derive(Debug, Default)]
pub(super) struct Mpi {
    cores: Vec<CoreState>,
    names: HashMap<&'static str, NameId>,
    /// By sender, receiver and slot.
    sent: HashMap<(u32, u32, u64), MpiMessage>,
}

#[derive(Debug, Default, Clone)]
struct CoreState {
    rank: Option<u32>,
    /// Open calls, outermost first: indices into [`Trace::mpi_calls`].
    open: Vec<u32>,
}

impl Mpi {
    pub(super) fn new(cores: usize) -> Mpi {
        Mpi { cores: vec![CoreState::default(); cores], ..Mpi::default() }
    }

    fn name(&mut self, text: &'static str, names: &mut Names) -> NameId {
        *self.names.entry(text).or_insert_with(|| names.add(text))
    }

    pub(super) fn call(&mut self, at: At, event: Event, names: &mut Names, trace: &mut Trace) {
        let text = MPI_CALLS.get(usize::from(event.detail)).copied().filter(|name| !name.is_empty()).unwrap_or("MPI");
        let name = self.name(text, names);
        let state = &mut self.cores[at.core as usize];
        if state.rank.replace(event.a).is_none() {
            let own = format!("rank {}", event.a);
            let core = &mut trace.cores[at.core as usize];
            if core.name != own {
                core.name = format!("{}, {own}", core.name);
            }
        }
        if state.open.len() >= DEPTH_MAX {
            return;
        }
        state.open.push(trace.mpi_calls.len() as u32);
        let (span, visit) = (trace.spans.len() as u32, trace.span_visits.len() as u32);
        let number = trace.mpi_calls.len() as u64 + 1;
        let call = MpiCall {
            rank: event.a,
            core: at.core,
            name,
            start_ns: at.time_ns,
            end_ns: at.time_ns,
            span,
            visit,
            is_cut: true,
        };
        trace.mpi_calls.push(call);
        let (start_ns, last_ns) = (at.time_ns, at.time_ns);
        trace.spans.push(Span { number, name, level: LEVEL, start_ns, last_ns, ..Span::default() });
        let interval = Interval { core: at.core, start_ns, end_ns: start_ns };
        trace.span_visits.push(SpanVisit { span, interval, task: None });
    }

    pub(super) fn returns(&mut self, at: At, trace: &mut Trace) {
        let Some(call) = self.cores[at.core as usize].open.pop() else { return };
        end(call, at.time_ns, trace);
        trace.mpi_calls[call as usize].is_cut = false;
        let span = trace.mpi_calls[call as usize].span;
        trace.spans[span as usize].end_ns = Some(at.time_ns);
    }

    pub(super) fn about(&mut self, at: At, event: Event, names: &mut Names, trace: &mut Trace) {
        let Some(call) = self.cores[at.core as usize].open.last().copied() else { return };
        let Some(role) = MpiRole::from_number(event.detail) else { return };
        let (communicator, low) = ((event.b >> 32) as u32, event.b as u32);
        let other = match event.a {
            0 => Value::Text("none".into()),
            MPI_ANY => Value::Text("any".into()),
            rank => Value::Unsigned(u64::from(rank) - 1),
        };
        let mut fields = vec![("communicator", Value::Unsigned(communicator.into()))];
        match role {
            MpiRole::Send | MpiRole::Receive => {
                let tag = if low == u32::MAX { Value::Text("any".into()) } else { Value::Unsigned(low.into()) };
                let peer = if role == MpiRole::Send { "to rank" } else { "from rank" };
                fields.extend([(peer, other), ("tag", tag), ("bytes", Value::Unsigned(event.c))]);
            }
            MpiRole::Collective | MpiRole::Barrier => {
                if event.a != 0 {
                    fields.push(("root", other));
                }
                let bytes = event.c & ((1 << 40) - 1);
                fields.push(("bytes", Value::Unsigned(bytes)));
                trace.mpi_parts.push(MpiPart {
                    call,
                    communicator,
                    lowest: (event.c >> 40) as u8,
                    ranks: (event.c >> 48) as u32,
                    is_barrier: role == MpiRole::Barrier,
                    number: low,
                    time_ns: at.time_ns,
                });
            }
        }
        let span = trace.mpi_calls[call as usize].span;
        for (text, value) in fields {
            let name = self.name(text, names);
            trace.spans[span as usize].fields.push((name, value));
        }
    }

    pub(super) fn sent(&mut self, at: At, event: Event) {
        let state = &self.cores[at.core as usize];
        let (Some(rank), Some(call)) = (state.rank, state.open.last().copied()) else { return };
        let message = MpiMessage {
            from: call,
            sent_ns: at.time_ns,
            bytes: event.c,
            is_offered: event.detail == 1,
            ..MpiMessage::default()
        };
        self.sent.insert((rank, event.a, event.b), message);
    }

    pub(super) fn received(&mut self, at: At, event: Event, trace: &mut Trace) {
        let state = &self.cores[at.core as usize];
        let (Some(rank), Some(call)) = (state.rank, state.open.last().copied()) else { return };
        if let Some(message) = self.sent.remove(&(event.a, rank, event.b)) {
            trace.mpi_messages.push(MpiMessage { to: call, received_ns: at.time_ns, ..message });
        }
    }

    /// Ends the open calls of a core at this moment: later events are missing.
    pub(super) fn cut(&mut self, core: u32, time_ns: u64, trace: &mut Trace) {
        for call in std::mem::take(&mut self.cores[core as usize].open) {
            end(call, time_ns, trace);
        }
    }

    /// Ends the open calls of all cores, whose spans stay open; returns how many there are.
    pub(super) fn finish(&mut self, trace: &mut Trace) -> u64 {
        let open = self.cores.iter().map(|core| core.open.len() as u64).sum();
        for core in 0..self.cores.len() as u32 {
            self.cut(core, trace.end_ns, trace);
        }
        open
    }
}

fn end(call: u32, time_ns: u64, trace: &mut Trace) {
    let call = &mut trace.mpi_calls[call as usize];
    call.end_ns = time_ns.max(call.start_ns);
    trace.span_visits[call.visit as usize].interval.end_ns = call.end_ns;
    trace.spans[call.span as usize].last_ns = call.end_ns;
}
