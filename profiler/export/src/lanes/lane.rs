//! The tracks, and their hierarchy.

/// Tracks that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Group {
    Cores,
    Tasks,
    Devices,
    Connections,
    Spans,
    Counters,
}

/// A track, by its subject. Numbers are indices into the tables of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Group(Group),
    Core(u32),
    CoreFunctions(u32),
    CoreSpans(u32),
    CoreMissing(u32),
    Task(u32),
    /// Spans of a task, or of none, that overlap get a row each.
    Spans {
        task: Option<u32>,
        row: u16,
    },
    Device(u32),
    /// Requests that overlap get a row each.
    Requests {
        device: u32,
        row: u16,
    },
    InFlight(u32),
    Connection(u32),
    Counter(u32),
    Warnings,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::Cores => "Cores",
            Group::Tasks => "Tasks",
            Group::Devices => "Devices",
            Group::Connections => "Connections",
            Group::Spans => "Spans",
            Group::Counters => "Counters",
        }
    }
}

impl Lane {
    /// The parent track.
    pub fn parent(self) -> Option<Lane> {
        match self {
            Lane::Group(_) | Lane::Warnings => None,
            Lane::Core(_) => Some(Lane::Group(Group::Cores)),
            Lane::CoreFunctions(core) | Lane::CoreSpans(core) | Lane::CoreMissing(core) => Some(Lane::Core(core)),
            Lane::Task(_) => Some(Lane::Group(Group::Tasks)),
            Lane::Spans { task: Some(task), .. } => Some(Lane::Task(task)),
            Lane::Spans { task: None, .. } => Some(Lane::Group(Group::Spans)),
            Lane::Device(_) => Some(Lane::Group(Group::Devices)),
            Lane::Requests { device, .. } | Lane::InFlight(device) => Some(Lane::Device(device)),
            Lane::Connection(_) => Some(Lane::Group(Group::Connections)),
            Lane::Counter(_) => Some(Lane::Group(Group::Counters)),
        }
    }

    /// The outermost parent, or itself.
    pub fn root(self) -> Lane {
        let mut lane = self;
        while let Some(parent) = lane.parent() {
            lane = parent;
        }
        lane
    }

    /// The order among siblings.
    pub fn rank(self) -> u32 {
        match self {
            Lane::Group(group) => group as u32 + 1,
            Lane::Warnings | Lane::InFlight(_) => 0,
            Lane::Core(index) | Lane::Task(index) | Lane::Device(index) => index,
            Lane::Connection(index) | Lane::Counter(index) => index,
            Lane::CoreFunctions(_) => 0,
            Lane::CoreSpans(_) => 1,
            Lane::CoreMissing(_) => 2,
            Lane::Spans { row, .. } | Lane::Requests { row, .. } => 1 + u32::from(row),
        }
    }

    /// One of several rows with the same name.
    pub fn is_row(self) -> bool {
        matches!(self, Lane::Spans { .. } | Lane::Requests { .. })
    }

    /// A number that no other track has; not 0.
    pub fn number(self) -> u64 {
        let number = |kind: u64, row: u16, index: u32| kind << 56 | u64::from(row) << 32 | u64::from(index);
        match self {
            Lane::Group(group) => number(1, 0, group as u32),
            Lane::Core(index) => number(2, 0, index),
            Lane::CoreFunctions(index) => number(3, 0, index),
            Lane::CoreSpans(index) => number(4, 0, index),
            Lane::CoreMissing(index) => number(5, 0, index),
            Lane::Task(index) => number(6, 0, index),
            Lane::Spans { task: Some(task), row } => number(7, row, task),
            Lane::Spans { task: None, row } => number(8, row, 0),
            Lane::Device(index) => number(9, 0, index),
            Lane::Requests { device, row } => number(10, row, device),
            Lane::InFlight(index) => number(11, 0, index),
            Lane::Connection(index) => number(12, 0, index),
            Lane::Counter(index) => number(13, 0, index),
            Lane::Warnings => number(14, 0, 0),
        }
    }
}
