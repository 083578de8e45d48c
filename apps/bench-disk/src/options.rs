//! The service's arguments: the measurements.

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::fmt;
use core::time::Duration;

const USAGE: &str =
    "the arguments are: [--direction read|write] [--bytes SIZE,...] [--in-flight NUMBER,...] [--milliseconds NUMBER]";
/// The unit of the article, whose figures are per number of sectors.
const SECTOR_BYTES: usize = 4096;
/// The article's numbers of sectors of a request.
const SECTORS: [usize; 9] = [1, 2, 4, 8, 16, 32, 33, 64, 256];
/// The article's numbers of requests in flight.
const IN_FLIGHT: [usize; 5] = [1, 2, 3, 5, 10];
const DURATION_DEFAULT: Duration = Duration::from_secs(1);
const MILLISECONDS_MAX: u64 = 3_600_000;
/// Limits of the size of a request and of the number in flight: in total 4 GiB of memory.
const REQUEST_BYTES_MAX: usize = 64 << 20;
const IN_FLIGHT_MAX: usize = 64;

/// Direction of the transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Direction::Read => "read",
            Direction::Write => "write",
        })
    }
}

/// Every combination of these is measured.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub directions: Vec<Direction>,
    pub request_bytes: Vec<usize>,
    pub in_flight: Vec<usize>,
    /// Duration of each measurement.
    pub duration: Duration,
}

impl Options {
    /// Reads the arguments. The error is one sentence.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            directions: vec![Direction::Read, Direction::Write],
            request_bytes: SECTORS.map(|sectors| sectors * SECTOR_BYTES).to_vec(),
            in_flight: IN_FLIGHT.to_vec(),
            duration: DURATION_DEFAULT,
        };
        let mut arguments = arguments.iter();
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or(USAGE)?;
            match option.as_str() {
                "--direction" if value == "read" => options.directions = vec![Direction::Read],
                "--direction" if value == "write" => options.directions = vec![Direction::Write],
                "--bytes" => options.request_bytes = list(value, size, REQUEST_BYTES_MAX, "a size in bytes")?,
                "--in-flight" => {
                    options.in_flight = list(value, |text| text.parse().ok(), IN_FLIGHT_MAX, "a number of requests")?;
                }
                "--milliseconds" => {
                    let milliseconds = value.parse().ok().filter(|number| (1..=MILLISECONDS_MAX).contains(number));
                    let refused = || format!("{value} is not a number of milliseconds from 1 to {MILLISECONDS_MAX}");
                    options.duration = Duration::from_millis(milliseconds.ok_or_else(refused)?);
                }
                _ => return Err(USAGE.into()),
            }
        }
        Ok(options)
    }
}

/// Numbers from 1 to `max`, between commas.
fn list(text: &str, parse: impl Fn(&str) -> Option<usize>, max: usize, what: &str) -> Result<Vec<usize>, String> {
    let one = |item: &str| {
        let number = parse(item).filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("{item} is not {what} from 1 to {max}"))
    };
    text.split(',').map(one).collect()
}

/// A number of bytes; K and M stand for 2^10 and 2^20.
fn size(text: &str) -> Option<usize> {
    let (number, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(&text.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_default_is_the_article() {
        let options = parse("").unwrap();
        assert_eq!(options.directions, [Direction::Read, Direction::Write]);
        assert_eq!((options.request_bytes.len(), options.request_bytes[6]), (9, 33 * 4096));
        assert_eq!(options.in_flight, [1, 2, 3, 5, 10]);
    }

    #[test]
    fn each_option_is_read() {
        let options = parse("--direction write --bytes 512,64K,1M --in-flight 4 --milliseconds 250").unwrap();
        assert_eq!((options.directions, options.request_bytes), (vec![Direction::Write], vec![512, 65536, 1 << 20]));
        assert_eq!((options.in_flight, options.duration), (vec![4], Duration::from_millis(250)));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for text in ["--bytes", "--direction up", "--speed 1", "x"] {
            assert_eq!(parse(text).unwrap_err(), USAGE, "{text}");
        }
        for text in ["--bytes 0", "--bytes 65M", "--bytes 4K,", "--in-flight 65", "--in-flight x", "--milliseconds 0"] {
            assert!(parse(text).unwrap_err().contains(" from 1 to "), "{text}");
        }
    }
}
