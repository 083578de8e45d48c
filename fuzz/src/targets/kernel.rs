//! Input from the kernel about processes: texts of /proc, command lines, records of perf_event_open; and recordings
//! of them.

use fastrand::Rng;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::live::activity::Kind;
use glass_profiler_core::live::{Live, Settings, Unwinder};
use glass_profiler_core::model::{Cost, Origin};
use glass_profiler_core::recorder::Recorder;
use glass_profiler_core::recording::open;
use glass_profiler_core::trace::filter::Filter;
use glass_profiler_core::trace::raw::Function;
use glass_profiler_guests::backends::process;
use glass_profiler_guests::{find, parse_address};

use super::Target;
use crate::corpus::{CLOCKS, elf};
use crate::mutate;

/// How much of the input is text; records follow it.
const HEAD_BYTES: usize = 2;

/// Text and records, as one input: the text's length, the text, the records.
pub struct Kernel;

/// Every file is our program, except one that does not exist.
struct Files;

impl FileSource for Files {
    fn load(&mut self, path: &str) -> Option<Box<dyn ReadAt>> {
        let number = path.len() % (elf::programs().len() + 1);
        Some(Box::new(elf::programs().get(number)?.clone()))
    }
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = 8 + body.len() as u16;
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A process that starts, maps its program, runs, and forks.
fn records() -> Vec<u8> {
    const PROCESS: u64 = 7 << 32 | 7;
    let start = 0x40_1000u64;
    let id = |time: u64| words(&[PROCESS, time]);
    let name = |time: u64| [&words(&[PROCESS])[..], b"service\0", &id(time)].concat();
    let map = [
        &words(&[PROCESS, 0x40_0000, 0x10_0000, 0, 1, 2, 3, 5 | 2 << 32])[..],
        b"/bin/a/b\0\0\0\0\0\0\0\0",
        &id(2_000),
    ]
    .concat();
    let sample = |time: u64| {
        let stack: Vec<u64> =
            (0..32).map(|index| if index % 2 == 0 { start + index } else { 0x7000_0000 + index * 8 }).collect();
        let chain = [3, -128i64 as u64, 0xffff_ffff_8100_0008, 0xffff_ffff_8100_0108];
        let head = [&[start, PROCESS, time][..], &chain, &[2, 0x7000_0010, 0x7000_0000, start + 5, 256]].concat();
        let head = words(&head);
        [&head[..], &words(&stack), &words(&[200])].concat()
    };
    [
        record(3, 1 << 13, &name(1_500)),
        record(10, 2, &map),
        record(9, 2, &sample(3_000)),
        record(7, 0, &[&words(&[8 | 7 << 32, PROCESS, 3_500])[..], &id(3_500)].concat()),
        record(9, 1, &sample(4_000)),
        record(2, 0, &[&words(&[1, 5])[..], &id(5_000)].concat()),
        record(5, 0, &[&words(&[1, 2, 3])[..], &id(6_000)].concat()),
    ]
    .concat()
}

impl Target for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let texts = [
            "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon\n7f00-7fff rw-s 1000 00:01 12 /memfd:glass-trace (deleted)\nffff-ffff r-xp 0 0:0 0 [vdso]\n",
            "0-3,8,10-11\n",
            "/usr/bin/qemu-system-x86_64\0-name\0guest=web,,x,debug-threads=on\0-m\0size=64M,slots=2\0-smp\x004,sockets=2\0-machine\0q35,accel=kvm:tcg\0-gdb\0unix:/run/gdb,server=on\0-chardev\0socket,id=m,path=/run/m,server=on\0-mon\0chardev=m,mode=control\0-kernel\0a.elf\0",
            "/usr/bin/firecracker\0--id\0web\0--api-sock\0/run/a.sock\0--config-file\0c.json\0",
            "qemu-kvm\0-monitor\0tcp::4444,server\0-qmp\0unix:/q,server\0-s\0-cpu\0host\0",
        ];
        let with = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes(), &records()].concat();
        texts.map(with).into()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        let length = bytes.first_chunk::<HEAD_BYTES>().map_or(0, |length| u16::from_le_bytes(*length).into());
        let Some((_, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return mutate::plain(bytes, corpus, rng) };
        let (text, records) = rest.split_at(rest.len().min(length));
        let (mut text, mut records) = (text.to_vec(), records.to_vec());
        match rng.u32(..4) {
            0 => mutate::text(&mut text, corpus, rng),
            1 => mutate::plain(&mut records, corpus, rng),
            _ => mutate::words(&mut records, 0, 8, rng),
        }
        text.truncate(u16::MAX.into());
        *bytes = [&(text.len() as u16).to_le_bytes()[..], &text, &records].concat();
    }

    fn bytes_max(&self) -> usize {
        128 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some((length, rest)) = input.split_first_chunk::<HEAD_BYTES>() else { return };
        let (text, records) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
        let text = String::from_utf8_lossy(text);
        let arguments: Vec<String> = text.split('\0').map(str::to_owned).collect();
        let _ = find::of_command_line(1, &arguments, "/folder".as_ref());
        let _ = parse_address(&text);
        let function = |number, name: &str| Function { number, name: name.to_owned(), ..Function::default() };
        let functions = [function(0, "queue::store::put"), function(1, &text)];
        let _ = Filter::new(&[&text[..text.floor_char_boundary(100)]], &["put"]).choose(&functions);

        let mut events = Vec::new();
        let found = process::read_kernels_words(&text, records, &mut |event| events.push(event));
        assert!(found <= text.lines().count() + 4096);
        // A record is an event, or a few if it is the first of a process and of a thread; a program that is
        // started, and a thread that ends, end what existed before, once. A kernel is four.
        assert!(events.len() <= 6 * (records.len() / 8) + 4);
        let origin = Origin { guest: "process".to_owned(), rate_hz: 99, ..Origin::default() };
        let mut recorder = Recorder::start(Vec::new(), CLOCKS, &origin).expect("memory takes all");
        let mut live =
            Live::new(Settings { half_life_ns: Some(1_000_000_000), kind: Kind::Thread { period_ns: 1_000_000 } });
        let mut unwinder = Unwinder::default();
        for event in events {
            unwinder.event(event.clone(), &mut Files, &mut |update| live.update(update));
            recorder.event(event, &mut Files).expect("memory takes all");
        }
        let taken = recorder.progress().samples_taken;
        let _ = live.snapshot(10_000);
        let (_, bytes) = recorder.finish(&Cost::default(), 10_000, &mut Files, || 0).expect("memory takes all");
        let recording = open(&bytes, &mut Files).expect("what we wrote can be read");
        assert!(recording.is_complete);
        assert_eq!(recording.profile.samples.len() as u64, taken, "what was written is read");
    }
}
