//! The field Date of responses (RFC 9110, section 6.6.1).

use alloc::string::String;
use core::fmt::Write;
use core::time::Duration;
use glass_api::HttpDate;

/// The text of the last date. It is formatted once a second, because that takes as long as the other fields of a small head together.
#[derive(Default)]
pub(crate) struct DateField {
    secs: Option<u64>,
    text: String,
}

impl DateField {
    /// The date `since_epoch`.
    pub(crate) fn at(&mut self, since_epoch: Duration) -> &str {
        let secs = since_epoch.as_secs();
        if self.secs.replace(secs) != Some(secs) {
            self.text.clear();
            // A `String` never fails to be written to.
            let _ = write!(self.text, "{}", HttpDate(since_epoch));
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_text() {
        let mut field = DateField::default();
        for (millis, expected) in [(0, "00:00:00"), (999, "00:00:00"), (1000, "00:00:01"), (61_000, "00:01:01")] {
            assert_eq!(field.at(Duration::from_millis(millis)), alloc::format!("Thu, 01 Jan 1970 {expected} GMT"));
        }
    }
}
