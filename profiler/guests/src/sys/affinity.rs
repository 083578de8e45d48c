//! The CPUs that this thread may run on.

use std::{fs, io};

use super::check;

/// A set of CPUs.
#[derive(Clone, Copy)]
pub(crate) struct Cpus(libc::cpu_set_t);

impl PartialEq for Cpus {
    fn eq(&self, other: &Cpus) -> bool {
        // SAFETY: both are whole sets.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

impl Cpus {
    /// Those that this thread may run on now.
    pub(crate) fn of_this_thread() -> io::Result<Cpus> {
        // SAFETY: a set of zeros is an empty one.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid place of the size that is given; 0 is this thread.
        check(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) }.into())?;
        Ok(Cpus(set))
    }

    /// These without one; the same if that would leave none.
    pub(crate) fn without(self, cpu: usize) -> Cpus {
        let mut rest = self.0;
        if cpu >= libc::CPU_SETSIZE as usize {
            return self;
        }
        // SAFETY: `cpu` lies within the set, which was checked above; both sets are whole ones.
        let count = unsafe {
            libc::CPU_CLR(cpu, &mut rest);
            libc::CPU_COUNT(&rest)
        };
        if count == 0 { self } else { Cpus(rest) }
    }

    /// One of these, if it is one.
    pub(crate) fn only(self, cpu: usize) -> Option<Cpus> {
        if cpu >= libc::CPU_SETSIZE as usize {
            return None;
        }
        // SAFETY: a set of zeros is an empty one.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `cpu` lies within the sets, which was checked above; both are whole ones.
        let has_cpu = unsafe {
            libc::CPU_SET(cpu, &mut set);
            libc::CPU_ISSET(cpu, &self.0)
        };
        has_cpu.then_some(Cpus(set))
    }

    /// Has this thread run on them only.
    pub(crate) fn apply_to_this_thread(&self) -> io::Result<()> {
        // SAFETY: the set is a whole one of the size that is given, and only read; 0 is this thread.
        check(unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) }.into()).map(drop)
    }

    /// Has all threads of a process run on them only.
    pub(crate) fn apply_to(&self, process: u32) -> io::Result<()> {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let Some(thread) = thread?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // SAFETY: the set is a whole one of the size that is given, and only read.
            let result = unsafe { libc::sched_setaffinity(thread, size_of_val(&self.0), &self.0) };
            match check(result.into()) {
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                result => drop(result?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cpu_is_never_given_up() {
        let all = Cpus::of_this_thread().unwrap();
        let mut rest = all;
        for cpu in 0..libc::CPU_SETSIZE as usize + 1 {
            rest = rest.without(cpu);
        }
        rest.apply_to(std::process::id()).unwrap();
        assert!(Cpus::of_this_thread().unwrap() == rest);
        all.apply_to(std::process::id()).unwrap();
        assert!(Cpus::of_this_thread().unwrap() == all);
    }

    #[test]
    fn one_thread_on_one_cpu() {
        std::thread::spawn(|| {
            let all = Cpus::of_this_thread().unwrap();
            let last = (0..libc::CPU_SETSIZE as usize).rev().find(|cpu| all.only(*cpu).is_some()).unwrap();
            let only = all.only(last).unwrap();
            only.apply_to_this_thread().unwrap();
            let now = Cpus::of_this_thread().unwrap();
            assert!(now == only && now.only(last).is_some());
            assert!((0..=libc::CPU_SETSIZE as usize).all(|cpu| cpu == last || now.only(cpu).is_none()));
        })
        .join()
        .unwrap();
    }
}
