//! The clock by which a tenure is measured, and an alarm that follows it.

use std::io;
use std::ops::Add;
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe;

/// A moment of CLOCK_BOOTTIME: monotonic, and it goes on while the machine is suspended, as the
/// lease in etcd does. All processes of a machine share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// This moment.
    pub fn now() -> BootInstant {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(tv_sec).expect("the time since boot is not negative");
        BootInstant(Duration::from_secs(seconds) + Duration::from_nanos(tv_nsec.unsigned_abs()))
    }

    /// The moment so long after the machine's start.
    pub fn from_boot(since_boot: Duration) -> BootInstant {
        BootInstant(since_boot)
    }

    /// How long after the machine's start it is.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// How long after an earlier moment it is; zero if that one is later.
    pub fn since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = BootInstant;

    fn add(self, time: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(time))
    }
}

/// Wakes a task at a moment of that clock. tokio's timers stand still while the machine is
/// suspended; this one rings at once when the machine wakes up too late.
#[derive(Debug)]
pub struct Alarm(
    // To the runtime a timer is something that gets readable, as a pipe does; `AsyncFd` has no safe
    // constructor.
    pipe::Receiver,
);

impl Alarm {
    /// A new one, on the runtime that this is called on.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new() -> io::Result<Alarm> {
        let timer = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        Ok(Alarm(pipe::Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Returns at that moment, at once if it has come.
    ///
    /// # Cancel safety
    /// May be given up and called again, for the same moment or another.
    pub async fn until(&mut self, moment: BootInstant) {
        while BootInstant::now() < moment {
            let rings =
                Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(moment.0) };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &rings)
                .expect("a timer takes a time after boot");
            self.0.readable().await.expect("a timer can be waited for");
            // How often it has rung. It may not have, for the moment before this one: then the
            // clock is looked at again.
            let _ = self.0.try_read(&mut [0; 8]);
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_alarm_rings_at_its_moment_and_can_be_set_again() {
        let mut alarm = Alarm::new().unwrap();
        let began = BootInstant::now();
        for wait in [30, 10, 20] {
            let moment = BootInstant::now() + Duration::from_millis(wait);
            alarm.until(moment).await;
            assert!(BootInstant::now() >= moment);
        }
        // Given up for an earlier moment.
        let far = BootInstant::now() + Duration::from_secs(3600);
        tokio::select! {
            () = alarm.until(far) => panic!("it rang an hour early"),
            () = tokio::task::yield_now() => {}
        }
        alarm.until(BootInstant::now() + Duration::from_millis(10)).await;
        alarm.until(began).await;
        assert!(BootInstant::now().since(began) < Duration::from_secs(3600));
    }

    #[test]
    fn no_time_lies_between_a_moment_and_a_later_one() {
        let earlier = BootInstant::from_boot(Duration::from_secs(1));
        let later = earlier + Duration::from_secs(2);
        assert_eq!(later.since(earlier), Duration::from_secs(2));
        assert_eq!(earlier.since(later), Duration::ZERO);
        assert_eq!(later.since_boot(), Duration::from_secs(3));
    }
}
