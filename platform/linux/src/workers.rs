//! A few threads for calls that block, with a bounded queue before them.

use crate::cores;
use crate::requests::Request;
use crate::trace;
use glass_lib_trace::{BlockKind, Name, WakeSource, block};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

/// Threads; further requests wait.
const THREADS_MAX: usize = 4;

/// Jobs that wait for a thread. A task with one more waits until there is room.
const QUEUE_MAX: usize = 256;

/// The resource that a request waits for while the queue is full.
static QUEUE_FULL: Name = Name::new("room in the queue of the threads");

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run jobs. They are started when they are first needed, and exist as long as the
/// process, or until the last handle is gone.
#[derive(Clone)]
pub(crate) struct Workers {
    handle: Arc<Handle>,
}

/// Its drop ends the threads; they hold `Shared` themselves.
struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    purpose: &'static str,
    state: Mutex<State>,
    job_came: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Tasks that wait for room in `jobs`.
    waiting: Vec<Waker>,
    threads: usize,
    idle: usize,
    over: bool,
}

impl Workers {
    /// No threads yet; `purpose` names those to come.
    pub(crate) fn new(purpose: &'static str) -> Workers {
        let shared = Shared { purpose, state: Mutex::default(), job_came: Condvar::new() };
        Workers { handle: Arc::new(Handle { shared: Arc::new(shared) }) }
    }

    /// Runs `work`, the operation of `request`, on one of the threads. When the future is dropped, work that was
    /// started still completes.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        request: Request,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Running<T> {
        let slot = Arc::new(Mutex::new(Slot::default()));
        let result = slot.clone();
        let job = Box::new(move || {
            let value = work();
            let mut slot = lock(&result);
            slot.value = Some(value);
            if let Some(waker) = slot.waker.take() {
                drop(slot);
                waker.wake();
            }
        });
        Running { shared: self.handle.shared.clone(), request, job: Some(job), slot }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.shared.state).over = true;
        self.shared.job_came.notify_all();
    }
}

/// A panic aborts the process, so no lock stays poisoned behind one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Queues the job if there is room for it.
    fn submit(self: &Arc<Shared>, request: &Request, job: &mut Option<Job>, waker: &Waker) {
        let mut state = lock(&self.state);
        if state.jobs.len() >= QUEUE_MAX {
            if !state.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
                state.waiting.push(waker.clone());
            }
            block(BlockKind::Resource, &QUEUE_FULL, 0);
            return;
        }
        request.submitted();
        state.jobs.extend(job.take());
        if state.idle < state.jobs.len() && state.threads < THREADS_MAX {
            let (shared, number) = (self.clone(), state.threads);
            let begun =
                thread::Builder::new().name(format!("glass-{}", self.purpose)).spawn(move || shared.work(number));
            state.threads += usize::from(begun.is_ok());
        }
        if state.threads == 0 {
            // The host cannot start a thread, so the service blocks on the disk.
            let job = state.jobs.pop_back();
            drop(state);
            job.into_iter().for_each(|job| job());
            return;
        }
        drop(state);
        self.job_came.notify_one();
    }

    fn work(&self, number: usize) {
        cores::unpin();
        trace::attach(&format!("{} thread {number}", self.purpose));
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                job();
                state = lock(&self.state);
            } else if state.over {
                return;
            } else {
                state.idle += 1;
                glass_lib_trace::idle_begin(None);
                state = self.job_came.wait(state).unwrap_or_else(PoisonError::into_inner);
                glass_lib_trace::idle_end(WakeSource::Core, 0);
                state.idle -= 1;
            }
        }
    }
}

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot { value: None, waker: None }
    }
}

/// Completes with the result of the work.
pub(crate) struct Running<T> {
    shared: Arc<Shared>,
    request: Request,
    /// `None` once a thread has it.
    job: Option<Job>,
    slot: Arc<Mutex<Slot<T>>>,
}

impl<T> Future for Running<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<T> {
        let this = &mut *self;
        lock(&this.slot).waker = Some(context.waker().clone());
        if this.job.is_some() {
            this.shared.submit(&this.request, &mut this.job, context.waker());
        }
        if let Some(value) = lock(&this.slot).value.take() {
            return Poll::Ready(value);
        }
        if this.job.is_none() {
            this.request.block();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Device;
    use glass_lib_trace::Operation;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::{Duration, Instant};

    fn request() -> Request {
        Device::new("disk").request(Operation::Other, 0)
    }

    struct Unparker(thread::Thread);
    impl Wake for Unparker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on_all<T>(mut futures: Vec<Running<T>>) -> Vec<T> {
        let waker = Waker::from(Arc::new(Unparker(thread::current())));
        let mut context = Context::from_waker(&waker);
        let (mut values, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while !futures.is_empty() {
            assert!(Instant::now() < end, "{} jobs did not end", futures.len());
            let mut index = 0;
            while index < futures.len() {
                match Pin::new(&mut futures[index]).poll(&mut context) {
                    Poll::Ready(value) => {
                        values.push(value);
                        futures.swap_remove(index);
                    }
                    Poll::Pending => index += 1,
                }
            }
            if !futures.is_empty() {
                thread::park_timeout(Duration::from_millis(500));
            }
        }
        values
    }

    #[test]
    fn more_jobs_than_room_all_run_on_few_threads() {
        let workers = Workers::new("disk");
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs = (0..QUEUE_MAX * 3).map(|number| {
            let (now, most) = (now.clone(), most.clone());
            workers.run(request(), move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                number
            })
        });
        let mut values = block_on_all(jobs.collect());
        values.sort();
        assert_eq!(values, (0..QUEUE_MAX * 3).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= THREADS_MAX);
    }

    #[test]
    fn work_ends_although_nobody_waits_and_threads_end_with_the_handle() {
        let workers = Workers::new("disk");
        let (sender, receiver) = mpsc::channel();
        let mut running = workers.run(request(), move || {
            thread::sleep(Duration::from_millis(50));
            sender.send(()).unwrap();
        });
        assert!(Pin::new(&mut running).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let shared = Arc::downgrade(&running.shared);
        drop((running, workers));
        receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while shared.strong_count() > 0 {
            assert!(Instant::now() < end, "a thread still runs");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
