//! Slices of a track are adjacent or nested, and never overlap partly. If a damaged trace has others,
//! they are cut for viewers.

/// The slices of a track that are open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nest {
    /// Their ends, outermost first, so never growing.
    open: Vec<u64>,
    last_start_ns: u64,
}

impl Nest {
    /// Whether a slice fits without being cut.
    pub fn fits(&self, start_ns: u64, end_ns: u64) -> bool {
        let around = self.open.iter().rev().find(|end| **end > start_ns);
        start_ns >= self.last_start_ns && around.is_none_or(|around| *around >= end_ns)
    }

    /// Whether no slice is open at a moment.
    pub fn is_free(&self, time_ns: u64) -> bool {
        self.open.iter().all(|end| *end <= time_ns) && time_ns >= self.last_start_ns
    }

    /// Opens a slice and returns its start and end after cutting; `closed` gets the ends of slices that end before its start,
    /// innermost first.
    pub fn open<E>(
        &mut self,
        start_ns: u64,
        end_ns: u64,
        mut closed: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(u64, u64), E> {
        let start_ns = start_ns.max(self.last_start_ns);
        while let Some(end) = self.open.pop_if(|end| *end <= start_ns) {
            closed(end)?;
        }
        let end_ns = end_ns.max(start_ns).min(self.open.last().copied().unwrap_or(u64::MAX));
        self.open.push(end_ns);
        self.last_start_ns = start_ns;
        Ok((start_ns, end_ns))
    }

    /// Closes the open slices, innermost first.
    pub fn close<E>(&mut self, mut closed: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        while let Some(end) = self.open.pop() {
            closed(end)?;
        }
        Ok(())
    }
}

/// Rows for slices that overlap: each goes to the first that has room for it.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: Vec<Nest>,
}

/// Maximum of rows of a track; further slices are cut to fit into the last.
const ROWS_MAX: usize = 1024;

impl Rows {
    /// The row of a slice. `may_nest`: it may be within another one.
    pub fn place(&mut self, start_ns: u64, end_ns: u64, may_nest: bool) -> u16 {
        let has_space = |row: &Nest| match may_nest {
            true => row.fits(start_ns, end_ns),
            false => row.is_free(start_ns),
        };
        let free = self.rows.iter().position(has_space);
        let row = match free {
            Some(row) => row,
            None if self.rows.len() < ROWS_MAX => {
                self.rows.push(Nest::default());
                self.rows.len() - 1
            }
            None => ROWS_MAX - 1,
        };
        let Ok(_) = self.rows[row].open(start_ns, end_ns, |_| Ok::<(), std::convert::Infallible>(()));
        row as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn open(nest: &mut Nest, start: u64, end: u64) -> ((u64, u64), Vec<u64>) {
        let mut closed = Vec::new();
        let Ok(placed) = nest.open(start, end, |end| {
            closed.push(end);
            Ok::<(), Infallible>(())
        });
        (placed, closed)
    }

    #[test]
    fn slices_that_cross_are_cut() {
        let mut nest = Nest::default();
        assert_eq!(open(&mut nest, 10, 50), ((10, 50), vec![]));
        assert_eq!(open(&mut nest, 20, 30), ((20, 30), vec![]));
        // Ends after the one around it.
        assert_eq!(open(&mut nest, 40, 60), ((40, 50), vec![30]));
        // Starts before one that is already open, ends before its start.
        assert_eq!(open(&mut nest, 5, 1), ((40, 40), vec![]));
        assert_eq!(open(&mut nest, 50, 70), ((50, 70), vec![40, 50, 50]));
    }

    #[test]
    fn what_overlaps_gets_rows() {
        let mut rows = Rows::default();
        let placed: Vec<u16> =
            [(0, 10), (5, 15), (10, 20), (15, 16)].iter().map(|(start, end)| rows.place(*start, *end, false)).collect();
        assert_eq!(placed, [0, 1, 0, 1]);
        let mut rows = Rows::default();
        let placed: Vec<u16> =
            [(0, 10), (2, 8), (3, 9), (4, 7)].iter().map(|(start, end)| rows.place(*start, *end, true)).collect();
        assert_eq!(placed, [0, 0, 1, 0]);
    }
}
