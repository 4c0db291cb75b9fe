//! Wakes a worker at a precise point in time.
//!
//! Tokio's own timers have a granularity of one millisecond. On Linux, a timerfd in the runtime's epoll set wakes
//! within microseconds; on other systems, tokio's timer is used. Each call computes the waiting time from the absolute
//! due time, so nothing drifts. The last part of a wait can be spent polling the clock while connections are served, so
//! that no sleeping processor delays the wake-up.

use std::io;
use std::time::Duration;

use tokio::task::yield_now;

use rolldrop_record::{Clock, Stamp};

#[cfg(target_os = "linux")]
pub(super) use timerfd::DueTimer;
#[cfg(not(target_os = "linux"))]
pub(super) use tokio_timer::DueTimer;

/// Polls the clock until `due`; other tasks run in between.
async fn watch(clock: Clock, due: Stamp) {
    while clock.now() < due {
        yield_now().await;
    }
}

#[cfg(target_os = "linux")]
mod timerfd {
    use std::os::fd::{AsFd, AsRawFd, RawFd};

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::{Clock, Duration, Stamp, io, watch};

    /// Timer that wakes its worker when the clock reaches a stamp.
    pub(in super::super) struct DueTimer {
        clock: Clock,
        spin: Duration,
        timer: AsyncFd<Timer>,
        armed: Option<Stamp>,
    }

    struct Timer(TimerFd);

    impl AsRawFd for Timer {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }

    impl DueTimer {
        /// Creates a timer on the current runtime, and makes it poll the clock for the last `spin` of each wait.
        ///
        /// # Errors
        /// Returns an error if the operating system provides no timer.
        pub(in super::super) fn new(clock: Clock, spin: Duration) -> io::Result<Self> {
            let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
            let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
            // SAFETY: `Timer` owns its descriptor, which stays open and unchanged while the `AsyncFd` owns the timer.
            #[expect(unsafe_code, reason = "tokio has no safe way to register a foreign descriptor")]
            let timer = unsafe { AsyncFd::register_with_interest(Timer(timer), Interest::READABLE) }?;
            Ok(Self { clock, spin, timer, armed: None })
        }

        /// Waits until `due`. This method is cancel safe.
        ///
        /// # Errors
        /// Returns an error if the timer cannot be set.
        pub(in super::super) async fn wait_until(&mut self, due: Stamp) -> io::Result<()> {
            let wake = due - self.spin;
            loop {
                let left_ns = wake.ns_since(self.clock.now());
                let Ok(left_ns @ 1..) = u64::try_from(left_ns) else { break };
                if self.armed != Some(wake) {
                    // Setting the timer also discards an unread expiry.
                    let left = TimeSpec::from_duration(Duration::from_nanos(left_ns));
                    self.timer.get_ref().0.set(Expiration::OneShot(left), TimerSetTimeFlags::empty())?;
                    self.armed = Some(wake);
                }
                self.timer.readable().await?.clear_ready();
                // Readiness may be left over from an earlier due time, so check the clock again, and rearm the timer if
                // `due` is still ahead.
                self.armed = None;
            }
            watch(self.clock, due).await;
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod tokio_timer {
    use super::{Clock, Duration, Stamp, io, watch};

    /// Timer that wakes its worker when the clock reaches a stamp.
    pub(in super::super) struct DueTimer {
        clock: Clock,
        spin: Duration,
    }

    impl DueTimer {
        /// Creates a timer on the current runtime, and makes it poll the clock for the last `spin` of each wait.
        ///
        /// # Errors
        /// This version never fails.
        pub(in super::super) fn new(clock: Clock, spin: Duration) -> io::Result<Self> {
            Ok(Self { clock, spin })
        }

        /// Waits until `due`. This method is cancel safe.
        ///
        /// # Errors
        /// This version never fails.
        pub(in super::super) async fn wait_until(&mut self, due: Stamp) -> io::Result<()> {
            if let Some(due) = self.clock.instant(due - self.spin) {
                tokio::time::sleep_until(due.into()).await;
            }
            watch(self.clock, due).await;
            Ok(())
        }
    }
}
