//! What the kernel says of processes and threads, and where they run.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How much CPU time something has had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    had: Duration,
    /// How long it could have run, and others did.
    waited: Duration,
    at: Instant,
}

/// The same as parts of a length of time: 1 is one whole CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuShare {
    pub(crate) had: f64,
    pub(crate) waited: f64,
    pub(crate) of: Duration,
}

impl CpuShare {
    /// What it would have had of a CPU of its own.
    pub(crate) fn wanted(&self) -> f64 {
        self.had + self.waited
    }
}

impl CpuTime {
    /// Of the thread that asks.
    pub(crate) fn of_this_thread() -> anyhow::Result<CpuTime> {
        let (had, waited) = figures(Path::new("/proc/thread-self/schedstat"))?;
        Ok(CpuTime { had, waited, at: Instant::now() })
    }

    /// Of a process and all that it started, by the kernel's accounting of each thread.
    pub(crate) fn of_tree(process: u32) -> anyhow::Result<CpuTime> {
        let (mut had, mut waited) = (Duration::ZERO, Duration::ZERO);
        for process in tree(process)? {
            // A process or thread that has just ended has nothing any more.
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
            for figures in tasks.flatten().filter_map(|task| figures(&task.path().join("schedstat")).ok()) {
                had += figures.0;
                waited += figures.1;
            }
        }
        Ok(CpuTime { had, waited, at: Instant::now() })
    }

    /// How much it has had since an earlier look.
    pub(crate) fn since(&self, earlier: &CpuTime) -> Duration {
        self.had.saturating_sub(earlier.had)
    }

    /// The same as a part of the time that has passed.
    pub(crate) fn share_since(&self, earlier: &CpuTime) -> CpuShare {
        let of = self.at - earlier.at;
        let part = |time: Duration| time.as_secs_f64() / of.as_secs_f64().max(f64::EPSILON);
        CpuShare { had: part(self.since(earlier)), waited: part(self.waited.saturating_sub(earlier.waited)), of }
    }
}

/// The first two figures of the kernel's `schedstat`: nanoseconds on a CPU, and nanoseconds of waiting for one.
fn figures(schedstat: &Path) -> anyhow::Result<(Duration, Duration)> {
    let text = std::fs::read_to_string(schedstat).with_context(|| format!("{} cannot be read", schedstat.display()))?;
    let mut nanoseconds = text.split_whitespace().map(|figure| figure.parse().ok().map(Duration::from_nanos));
    let mut next = || nanoseconds.next().flatten().with_context(|| format!("{} has no figures", schedstat.display()));
    Ok((next()?, next()?))
}

/// A process and all that it started, directly or not.
fn tree(root: u32) -> anyhow::Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").context("/proc cannot be read")?;
    let processes = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = processes.filter_map(|process| Some((process, parent(process)?))).collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(of) = tree.get(next).copied() {
        tree.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(process, _)| *process));
        next += 1;
    }
    Ok(tree)
}

fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name stands in brackets and may hold anything; the parent is the second word after it.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// How much memory a process and all that it started have, in bytes.
pub(crate) fn memory_of_tree(process: u32) -> anyhow::Result<u64> {
    let resident = tree(process)?.into_iter().filter_map(|process| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    Ok(resident.sum::<u64>() * 1024)
}

/// The CPUs that this thread, and what it starts, may use.
pub(crate) fn cpus() -> anyhow::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("the kernel does not say which CPUs there are")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// From now on this thread, and what it starts, runs on these CPUs only.
pub(crate) fn stay_on(cpus: &[usize]) -> anyhow::Result<()> {
    let mut wanted = CpuSet::new();
    cpus.iter().for_each(|cpu| wanted.set(*cpu));
    sched_setaffinity(None, &wanted).with_context(|| format!("cannot stay on CPU {cpus:?}"))
}

/// Lets this process, and what it starts, open as many files as the system allows.
pub(crate) fn open_many_files() -> anyhow::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.context("the limit of open files cannot be raised")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spent_on_a_cpu_is_seen_for_the_thread() {
        let before = CpuTime::of_this_thread().unwrap();
        let begun = Instant::now();
        while CpuTime::of_this_thread().unwrap().since(&before) < Duration::from_millis(20) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no CPU time is counted");
        }
    }

    #[test]
    fn time_spent_waiting_for_a_cpu_is_seen() {
        let (cpu, ended) = (cpus().unwrap()[0], &std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Two threads on one CPU, neither of which lets go of it.
            scope.spawn(move || {
                stay_on(&[cpu]).unwrap();
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {}
            });
            let waiting = scope.spawn(move || {
                stay_on(&[cpu]).unwrap();
                let before = CpuTime::of_this_thread().unwrap();
                let share = || CpuTime::of_this_thread().unwrap().share_since(&before);
                // Long beside the kernel's ticks, up to one of which it has not counted yet at either end.
                let waited = |share: CpuShare| share.of.mul_f64(share.waited) >= Duration::from_millis(200);
                while !waited(share()) && before.at.elapsed() < Duration::from_secs(60) {}
                share()
            });
            let share = waiting.join().unwrap();
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(share.waited > 0.0 && share.wanted() > 0.5 && share.wanted() < 1.1, "{share:?}");
        });
    }

    /// Of a process of its own: what threads of this one have had is gone with them, and they are tests that end.
    #[test]
    fn time_spent_on_a_cpu_is_seen_for_a_process_and_what_it_started() {
        let mut child =
            std::process::Command::new("sh").args(["-c", "sh -c 'while :; do :; done' & wait"]).spawn().unwrap();
        let before = CpuTime::of_tree(child.id()).unwrap();
        let had = || CpuTime::of_tree(child.id()).unwrap().since(&before);
        while had() < Duration::from_millis(20) && before.at.elapsed() < Duration::from_secs(60) {}
        let (had, started) = (had(), tree(child.id()).unwrap());
        for process in started.iter().skip(1) {
            let process = rustix::process::Pid::from_raw(i32::try_from(*process).unwrap()).unwrap();
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(had >= Duration::from_millis(20), "{had:?} is counted");
    }

    #[test]
    fn what_a_process_started_belongs_to_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let tree = tree(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tree.unwrap().contains(&child.id()));
        assert!(memory_of_tree(std::process::id()).unwrap() > 100_000);
    }

    #[test]
    fn a_thread_stays_where_it_is_told_to() {
        let cpu = cpus().unwrap()[0];
        let stayed = std::thread::spawn(move || stay_on(&[cpu]).and_then(|()| cpus())).join().unwrap();
        assert_eq!(stayed.unwrap(), [cpu]);
    }
}
