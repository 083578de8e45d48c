//! TCP connections and their segments.

use std::collections::HashMap;

use glass_formats::trace::Presence;

use super::At;
use crate::trace::model::{Connection, Direction, Segment, Trace};

/// The connections by number.
#[derive(Debug, Default)]
pub(super) struct Net {
    by_number: HashMap<u32, u32>,
}

impl Net {
    /// The index of the connection with this number, of which there is an event.
    fn connection(&mut self, at: At, number: u32, trace: &mut Trace) -> u32 {
        let index = *self.by_number.entry(number).or_insert_with(|| {
            let known_ns = trace.known_since_ns(at.time_ns);
            trace.connections.push(Connection { number, known_ns, ..Connection::default() });
            trace.connections.len() as u32 - 1
        });
        trace.connections[index as usize].last_ns = at.time_ns;
        index
    }

    /// It opens, closes or was open before.
    pub(super) fn event(&mut self, at: At, number: u32, detail: u16, remote: u64, ports: u64, trace: &mut Trace) {
        let presence = Presence::from_number(detail);
        let known = self.by_number.get(&number).map(|index| &trace.connections[*index as usize]);
        let has_ended = known.is_some_and(|known| known.end_ns.is_some());
        let has_begun = known.is_some_and(|known| known.start_ns.is_some());
        if presence != Presence::Ends && (has_ended || has_begun && presence == Presence::Begins) {
            // A reused number is another connection.
            self.by_number.remove(&number);
        }
        let index = self.connection(at, number, trace);
        let connection = &mut trace.connections[index as usize];
        let or_known = |new: u16, known: u16| if new == 0 { known } else { new };
        connection.remote = if remote as u32 == 0 { connection.remote } else { remote as u32 };
        connection.local_port = or_known(ports as u16, connection.local_port);
        connection.remote_port = or_known((ports >> 16) as u16, connection.remote_port);
        match presence {
            Presence::Begins => (connection.start_ns, connection.known_ns) = (Some(at.time_ns), at.time_ns),
            Presence::Ends => connection.end_ns = Some(at.time_ns),
            Presence::WasThere => {}
        }
    }

    /// The index of the segment.
    pub(super) fn segment(
        &mut self,
        at: At,
        direction: Direction,
        (number, flags): (u32, u16),
        (b, c): (u64, u64),
        trace: &mut Trace,
    ) -> u32 {
        let connection = self.connection(at, number, trace);
        trace.segments.push(Segment {
            time_ns: at.time_ns,
            core: at.core,
            connection,
            direction,
            flags,
            sequence: b as u32,
            acknowledgement: (b >> 32) as u32,
            bytes: c as u32,
            window: (c >> 32) as u32,
        });
        trace.segments.len() as u32 - 1
    }
}
