//! CPU time and memory of processes, where threads run, and precise sleeps, as the kernel gives
//! them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// CPU time that a thread, or a process with its children, has used so far.
#[derive(Clone, Debug)]
pub(crate) struct CpuTime {
    /// By process. One that has ended is missing.
    had: BTreeMap<u32, Duration>,
    /// How long a thread was ready to run while others ran. Zero for a process.
    waited: Duration,
    at: Instant,
}

/// CPU time as shares of a length of time: 1 is one whole CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuShare {
    pub(crate) had: f64,
    pub(crate) waited: f64,
}

impl CpuShare {
    /// What it would have had of a CPU of its own.
    pub(crate) fn wanted(&self) -> f64 {
        self.had + self.waited
    }
}

impl CpuTime {
    pub(crate) fn of_this_thread() -> Result<CpuTime> {
        let (had, waited) = figures(Path::new("/proc/thread-self/schedstat"))?;
        Ok(CpuTime { had: [(0, had)].into(), waited, at: Instant::now() })
    }

    /// Includes the threads that have ended, which `/proc` forgets: a sum over the living ones can
    /// shrink.
    pub(crate) fn of_tree(process: u32) -> Result<CpuTime> {
        let mut had = BTreeMap::new();
        for process in tree(process)? {
            let id = Pid::from_raw(process.try_into().context("a process id is too large")?);
            // A process that has just ended has no clock left.
            if let Ok(time) = clock_getcpuclockid(id).and_then(|clock| clock.now()) {
                had.insert(process, time.into());
            }
        }
        Ok(CpuTime { had, waited: Duration::ZERO, at: Instant::now() })
    }

    /// Leaves out processes that have ended meanwhile.
    pub(crate) fn since(&self, earlier: &CpuTime) -> Duration {
        let before = |process| earlier.had.get(process).copied().unwrap_or_default();
        self.had.iter().map(|(process, had)| had.saturating_sub(before(process))).sum()
    }

    pub(crate) fn share_since(&self, earlier: &CpuTime) -> CpuShare {
        let of = self.at - earlier.at;
        let share = |time: Duration| time.as_secs_f64() / of.as_secs_f64().max(f64::EPSILON);
        let waited = self.waited.saturating_sub(earlier.waited);
        CpuShare { had: share(self.since(earlier)), waited: share(waited) }
    }
}

/// The first two figures of `schedstat`: nanoseconds on a CPU, and nanoseconds of waiting for one.
fn figures(schedstat: &Path) -> Result<(Duration, Duration)> {
    let unread = || format!("{} cannot be read", schedstat.display());
    let text = std::fs::read_to_string(schedstat).with_context(unread)?;
    let mut nanoseconds = text.split_whitespace().map_while(|figure| figure.parse().ok());
    let (had, waited) = nanoseconds.next().zip(nanoseconds.next()).with_context(unread)?;
    Ok((Duration::from_nanos(had), Duration::from_nanos(waited)))
}

fn tree(root: u32) -> Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").context("/proc cannot be read")?;
    let processes = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = processes.filter_map(|id| Some((id, parent(id)?))).collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(of) = tree.get(next).copied() {
        tree.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(id, _)| *id));
        next += 1;
    }
    Ok(tree)
}

fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name stands in brackets and may hold anything; the parent follows the state.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Resident memory of a process and all that it started, in bytes.
pub(crate) fn memory_of_tree(process: u32) -> Result<u64> {
    let resident = tree(process)?.into_iter().filter_map(|process| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    Ok(resident.sum::<u64>() * 1024)
}

/// The CPUs that this thread, and what it starts, may use.
pub(crate) fn cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("the kernel does not name the CPUs")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect())
}

/// Moves this thread, and what it starts, to these CPUs.
pub(crate) fn stay_on(cpus: &[usize]) -> Result<()> {
    let mut wanted = CpuSet::new();
    cpus.iter().for_each(|cpu| wanted.set(*cpu));
    sched_setaffinity(None, &wanted).with_context(|| format!("cannot stay on CPU {cpus:?}"))
}

/// Lets this process, and what it starts, open as many files as the system allows.
pub(crate) fn open_many_files() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.context("the limit of open files cannot be raised")
}

/// Sleeps until that moment by a timer of the kernel, because tokio's are a millisecond wide.
pub(crate) async fn sleep_until(moment: Instant) {
    let left = moment.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return;
    }
    #[expect(deprecated, reason = "unsound only for a descriptor that closes before it is dropped")]
    match timer(left).and_then(AsyncFd::new) {
        Ok(timer) => drop(timer.readable().await),
        // Out of descriptors.
        Err(_) => tokio::time::sleep(left).await,
    }
}

fn timer(length: Duration) -> std::io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let length = length.try_into().map_err(std::io::Error::other)?;
    let once = Itimerspec { it_interval: Default::default(), it_value: length };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(timer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_thread_has_cpu_time() {
        let before = CpuTime::of_this_thread().unwrap();
        while CpuTime::of_this_thread().unwrap().since(&before) < Duration::from_millis(20) {
            assert!(before.at.elapsed() < Duration::from_secs(60), "no CPU time is counted");
        }
    }

    #[test]
    fn thread_beside_another_on_one_cpu_waits() {
        let (cpu, ended) = (cpus().unwrap()[0], &std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Neither of the two threads gives up the CPU by itself.
            scope.spawn(move || {
                stay_on(&[cpu]).unwrap();
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {}
            });
            let waiting = scope.spawn(move || {
                stay_on(&[cpu]).unwrap();
                let before = CpuTime::of_this_thread().unwrap();
                let waited = || {
                    let now = CpuTime::of_this_thread().unwrap();
                    (now.waited - before.waited, now.share_since(&before))
                };
                // Long beside the kernel's ticks, up to one of which is uncounted at either end.
                while waited().0 < Duration::from_millis(200)
                    && before.at.elapsed() < Duration::from_secs(60)
                {}
                waited().1
            });
            let share = waiting.join().unwrap();
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(
                share.waited > 0.0 && share.wanted() > 0.5 && share.wanted() < 1.1,
                "{share:?}"
            );
        });
    }

    #[test]
    fn process_tree_has_its_childrens_cpu_time() {
        let mut shell = std::process::Command::new("sh");
        let mut child = shell.args(["-c", "sh -c 'while :; do :; done' & wait"]).spawn().unwrap();
        let before = CpuTime::of_tree(child.id()).unwrap();
        let had = || CpuTime::of_tree(child.id()).unwrap().since(&before);
        let is_late = || before.at.elapsed() > Duration::from_secs(60);
        while had() < Duration::from_millis(20) && !is_late() {}
        let (had, started) = (had(), tree(child.id()).unwrap());
        for process in started.iter().skip(1) {
            let process = rustix::process::Pid::from_raw(i32::try_from(*process).unwrap());
            rustix::process::kill_process(process.unwrap(), rustix::process::Signal::KILL).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(had >= Duration::from_millis(20), "{had:?} is counted");
        assert!(memory_of_tree(std::process::id()).unwrap() > 100_000);
    }

    #[test]
    fn thread_stays_on_its_cpu() {
        let cpu = cpus().unwrap()[0];
        let stayed = std::thread::spawn(move || stay_on(&[cpu]).and_then(|()| cpus())).join();
        assert_eq!(stayed.unwrap().unwrap(), [cpu]);
    }

    #[tokio::test]
    async fn sleep_ends_when_it_should() {
        let begun = Instant::now();
        let sleep = async |milliseconds| {
            sleep_until(begun + Duration::from_millis(milliseconds)).await;
            begun.elapsed()
        };
        let (late, early, none) = tokio::join!(sleep(30), sleep(10), sleep(0));
        assert!(none < early && early < late, "{none:?} {early:?} {late:?}");
        assert!(early >= Duration::from_millis(10) && late >= Duration::from_millis(30));
    }
}
