//! A malicious host behind a file device: the input is, step by step, what tasks request and what the host answers.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use fastrand::Rng;
use glass_api::{Buf, File, FileError, Files, Instant, Open};
use glass_drivers_device::Driver;
use glass_drivers_virtio::fake::{Chain, Fake, GuardedDma};
use glass_drivers_virtio::{Fs, HostFiles, device, feature};

use super::Target;
use super::devices::{MalfunctioningDevice, STEP_BYTES, STEPS_MAX, Step, assert_undamaged, change};

/// The features.
const HEAD_BYTES: usize = 1;
const TASKS_MAX: usize = 16;
const PATHS: [&str; 8] = ["a", "a/b", "b", "a/b/c", "", "../a", "c", "a/c"];
/// Longer than a host may take for an answer.
const BEYOND_ANSWER: Duration = Duration::from_secs(40);
/// Rounds in which every task ends once the host answers no more.
const ROUNDS_MAX: usize = 64;
const REQUEST_QUEUE: u16 = 1;

/// A directory of a host.
pub struct HostDirectory;

type HostTask = Pin<Box<dyn Future<Output = ()>>>;

/// What a service does with its files.
async fn work(files: HostFiles<Fake, GuardedDma>, what: u16, path: &str, number: u32) -> Result<(), FileError> {
    let bytes = number as usize % 40_000;
    match what % 8 {
        0 => _ = files.metadata(path).await?,
        1 | 2 => {
            let file = files.open(path, Open::Read).await?;
            let buf = Buf::zeroed(bytes).map_err(|_| FileError::OutOfMemory)?;
            let (count, buf) = file.read(u64::from(number >> 16), buf).await;
            assert!(count? <= buf.len() && buf.len() == bytes, "a read has more bytes than its buffer");
            file.metadata().await?;
        }
        3 => {
            let file = files.open(path, Open::Create).await?;
            let buf = Buf::zeroed(bytes).map_err(|_| FileError::OutOfMemory)?;
            let (written, buf) = file.write(u64::from(number >> 16), buf).await;
            assert_eq!(buf.len(), bytes);
            written?;
            file.truncate(number.into()).await?;
            file.sync().await?;
        }
        4 => {
            for entry in files.read_dir(path).await? {
                let is_name = glass_api::check_path(&entry.name).is_ok() && !entry.name.contains('/');
                assert!(is_name && !entry.name.is_empty(), "{:?} is no name", entry.name);
            }
        }
        5 => files.rename(path, PATHS[number as usize % PATHS.len()]).await?,
        6 => files.remove_file(path).await?,
        _ => files.create_dir(path).await?,
    }
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// An answer that is valid in form to the request `request`, of which the host may write `capacity` bytes behind the header.
fn body(request: &[u8], capacity: usize, step: &Step) -> Vec<u8> {
    let number = u64::from(step.small % 8);
    let kind = [0o100_644u32, 0o040_755, 0o120_777, 0o010_644][usize::from(step.queue >> 4) % 4];
    let times = if step.large & 1 == 0 { 0 } else { u64::from(step.large) << (step.small % 40) };
    let mut attributes = vec![0; 88];
    attributes[0..8].copy_from_slice(&number.to_le_bytes());
    attributes[8..16].copy_from_slice(&(u64::from(step.large) << (step.queue % 40)).to_le_bytes());
    attributes[32..40].copy_from_slice(&times.to_le_bytes());
    attributes[40..48].copy_from_slice(&times.to_le_bytes());
    attributes[60..64].copy_from_slice(&kind.to_le_bytes());
    let entry = || {
        let times = if step.large & 2 == 0 { 0 } else { times };
        [&number.to_le_bytes()[..], &[0; 8], &times.to_le_bytes(), &times.to_le_bytes(), &[0; 8], &attributes].concat()
    };
    let handle = || [u64::from(step.large).to_le_bytes(), [0; 8]].concat();
    match u32_at(request, 4) {
        // INIT: the limits too are the host's.
        26 => {
            let mut answer = vec![0; 64];
            (answer[0], answer[4]) = (7, 31);
            answer[12..16].copy_from_slice(&(u32::from(step.queue & 1) << 22).to_le_bytes());
            answer[20..24].copy_from_slice(&step.large.to_le_bytes());
            answer[28..30].copy_from_slice(&step.small.to_le_bytes());
            answer
        }
        1 | 9 => entry(),
        35 => [entry(), handle()].concat(),
        3 | 4 => [vec![0; 16], attributes].concat(),
        14 | 27 => handle(),
        15 => vec![step.large as u8; (step.large >> 8) as usize % (capacity + 1)],
        16 => [(if step.large & 1 == 0 { u32_at(request, 56) } else { step.large }).to_le_bytes(), [0; 4]].concat(),
        28 => {
            let mut answer = Vec::new();
            for index in 0..step.small % 5 {
                let name: &[u8] =
                    [&b"name"[..], b"..", b"a/b", b"\xff\xff", b"."][usize::from(index.wrapping_add(step.small)) % 5];
                answer.extend(number.to_le_bytes());
                answer.extend((u64::from(step.large) + u64::from(index)).to_le_bytes());
                answer.extend((name.len() as u32 ^ if step.queue == 9 { step.large } else { 0 }).to_le_bytes());
                answer.extend((kind >> 12).to_le_bytes());
                answer.extend(name);
                answer.resize(answer.len().next_multiple_of(8), 0);
            }
            answer
        }
        _ => Vec::new(),
    }
}

/// Answers a request that the host has taken: right in form, or with an error, or with a header that is wrong.
fn answer(malfunctioning: &mut MalfunctioningDevice, step: &Step) {
    malfunctioning.check_reset();
    if malfunctioning.held.is_empty() {
        return;
    }
    let (number, chain): (u16, Chain) =
        malfunctioning.held.swap_remove(usize::from(step.queue) % malfunctioning.held.len());
    let request = chain.read();
    let capacity = (chain.writable_bytes() as usize).saturating_sub(16);
    let body = if step.what == 18 { Vec::new() } else { body(&request, capacity, step) };
    let error = if step.what == 18 { -(i32::from(step.small % 140)) } else { 0 };
    let mut bytes = (16 + body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(error.to_le_bytes());
    bytes.extend(request.get(8..16).unwrap_or(&[0; 8]));
    bytes.extend(body);
    if step.what == 19 {
        let place = usize::from(step.small) % bytes.len();
        bytes[place] ^= step.large as u8;
    }
    let written = chain.write(&bytes);
    let mut state = malfunctioning.fake.state();
    if let Some(queue) = state.queues.iter_mut().find(|queue| queue.number == number) {
        queue.complete(chain.head, written);
    }
}

/// Takes all requests, as a host does.
fn take(malfunctioning: &mut MalfunctioningDevice) {
    let mut state = malfunctioning.fake.state();
    for queue in &mut state.queues {
        while let Some(chain) = queue.take() {
            if queue.number == REQUEST_QUEUE {
                malfunctioning.held.push((queue.number, chain));
            } else {
                queue.complete(chain.head, 0);
            }
        }
    }
}

fn poll_tasks(tasks: &mut Vec<HostTask>) {
    tasks.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn run(fake: Fake, steps: &[Step]) {
    let mut malfunctioning = MalfunctioningDevice { fake: fake.clone(), held: Vec::new() };
    let now = Rc::new(Cell::new(Instant(1 << 40)));
    let clock = now.clone();
    let Ok(fs) = Fs::new(fake, GuardedDma) else { return };
    let mut files = HostFiles::new(fs, move || clock.get());
    let mut tasks: Vec<HostTask> = Vec::new();
    for step in steps {
        match step.what {
            11..=13 => take(&mut malfunctioning),
            14..=19 => answer(&mut malfunctioning, step),
            20..=25 if tasks.len() < TASKS_MAX => {
                let path = PATHS[usize::from(step.queue) % PATHS.len()];
                let (own, what, number) = (files.clone(), step.small, step.large);
                tasks.push(Box::pin(async move { _ = work(own, what, path, number).await }));
            }
            26 if !tasks.is_empty() => drop(tasks.swap_remove(usize::from(step.small) % tasks.len())),
            27 => now.set(now.get() + Duration::from_millis(step.small.into())),
            20..=35 => {
                files.kick();
                files.poll();
                if files.violation().is_some() && step.small & 1 == 0 {
                    let _ = files.restart();
                    // A device that was reset has no requests.
                    malfunctioning.held.clear();
                }
                poll_tasks(&mut tasks);
                if files.arm() {
                    files.disarm();
                }
            }
            _ => malfunctioning.step(step),
        }
    }
    // A host that answers no more is given up, and then no task waits for it.
    for _ in 0..ROUNDS_MAX {
        now.set(now.get() + BEYOND_ANSWER);
        files.kick();
        files.poll();
        poll_tasks(&mut tasks);
    }
    assert!(tasks.is_empty(), "{} tasks wait forever, the violation is {:?}", tasks.len(), files.violation());
}

impl Target for HostDirectory {
    fn name(&self) -> &'static str {
        "virtio-fs"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        // Each operation, and a host that answers each request.
        (0..8u8)
            .map(|what| {
                let mut bytes = vec![what];
                let mut step = |bytes_of_step: [u8; STEP_BYTES]| bytes.extend(bytes_of_step);
                let rounds = [[30, 0, 1, 0, 0, 0, 0, 0], [11, 0, 0, 0, 0, 0, 0, 0]];
                rounds.into_iter().for_each(&mut step);
                step([14, 1, 4, 0, 0, 0, 1, 0]);
                for path in [0, 1, 4] {
                    step([30, 0, 1, 0, 0, 0, 0, 0]);
                    step([20, path, what, 0, 0, 0x20, 0, 0]);
                    for answer in 0..5 {
                        rounds.into_iter().for_each(&mut step);
                        // The first name is a directory, the second one a file.
                        let kind = if answer == 0 && path == 1 { 16 } else { 0 };
                        step([14, kind, 2 + answer, 0, 0, 0x20, 0, 0]);
                    }
                }
                bytes
            })
            .collect()
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        change(bytes, corpus, HEAD_BYTES, rng);
    }

    fn bytes_max(&self) -> usize {
        HEAD_BYTES + STEP_BYTES * STEPS_MAX
    }

    fn run(&self, input: &[u8]) {
        let Some((head, rest)) = input.split_first() else { return };
        let features = [feature::EVENT_IDX, feature::INDIRECT].into_iter().enumerate();
        let features = features.filter(|(index, _)| head & 1 << index != 0).fold(0, |all, (_, feature)| all | feature);
        run(Fake::new(device::FS, features, &[0; 40]), &Step::all(rest));
        assert_undamaged();
    }
}
