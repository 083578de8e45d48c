//! Finds which of several reasons ended a task's wait.

use super::model::{BlockKind, Cause, Reason, Trace, Wait};

impl Trace {
    /// The reasons of a wait.
    pub fn reasons_of(&self, wait: &Wait) -> &[Reason] {
        let first = wait.first_reason as usize;
        self.reasons.get(first..first.saturating_add(wait.reason_count as usize)).unwrap_or_default()
    }

    /// The reason of a wait: of several, the one that ended it, or the first if that is not known.
    pub fn reason_of(&self, wait: &Wait) -> Option<&Reason> {
        let reasons = self.reasons_of(wait);
        let wake = wait.wake.and_then(|wake| self.wakes.get(wake as usize));
        let rank = |reason: &&Reason| wake.map_or(0, |wake| self.fit(wake.cause, reason));
        // Of equals the first.
        reasons.iter().rev().max_by_key(rank)
    }

    /// How well a reason matches the cause of the wake-up: 0 not at all, 1 by its kind, 2 by its object.
    fn fit(&self, cause: Cause, reason: &Reason) -> u32 {
        let (is_of_kind, is_it) = match cause {
            Cause::Timer => (reason.kind == BlockKind::Timer, false),
            Cause::Request(request) => {
                let request = self.requests.get(request as usize);
                let device = request.and_then(|request| self.devices.get(request.device as usize));
                let is_it = device.is_some_and(|device| device.name == reason.name)
                    && request.is_some_and(|request| request.number == reason.object);
                (reason.kind == BlockKind::Request, is_it)
            }
            Cause::Segment(segment) => {
                let connection = self.segments.get(segment as usize).map(|segment| segment.connection);
                let connection = connection.and_then(|connection| self.connections.get(connection as usize));
                let object = |connection: &super::model::Connection| match reason.kind {
                    BlockKind::Accept => u64::from(connection.local_port),
                    _ => u64::from(connection.number),
                };
                let is_of_kind = matches!(reason.kind, BlockKind::Receive | BlockKind::Send | BlockKind::Accept);
                (is_of_kind, connection.is_some_and(|connection| object(connection) == reason.object))
            }
            Cause::Task(_) => (matches!(reason.kind, BlockKind::Notify | BlockKind::Resource), false),
            Cause::Interrupt(_) | Cause::Unknown => (false, false),
        };
        u32::from(is_of_kind) + u32::from(is_of_kind && is_it)
    }
}
