//! Waking at a point in time, precisely.
//!
//! Tokio's own timers have a granularity of a millisecond. On Linux a timerfd
//! in the runtime's epoll set wakes within microseconds; elsewhere tokio's
//! timer has to do. The waiting time is reckoned anew from the absolute due
//! time at every call, so that nothing drifts.

use std::io;

use crate::record::{Clock, Stamp};

#[cfg(target_os = "linux")]
pub(super) use timerfd::Pacer;
#[cfg(not(target_os = "linux"))]
pub(super) use tokio_timer::Pacer;

#[cfg(target_os = "linux")]
mod timerfd {
    use std::os::fd::{AsFd, AsRawFd, RawFd};
    use std::time::Duration;

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::{Clock, Stamp, io};

    /// Wakes its worker when a stamp of the clock is reached.
    pub(in super::super) struct Pacer {
        clock: Clock,
        timer: AsyncFd<Timer>,
        armed: Option<Stamp>,
    }

    struct Timer(TimerFd);

    impl AsRawFd for Timer {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }

    impl Pacer {
        /// A pacer on the current runtime.
        ///
        /// # Errors
        /// When the operating system gives no timer.
        pub(in super::super) fn new(clock: Clock) -> io::Result<Self> {
            let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
            let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
            // SAFETY: `Timer` owns its descriptor, open and the same for as long as the `AsyncFd` owns it.
            #[expect(unsafe_code, reason = "tokio has no safe way to register a foreign descriptor")]
            let timer = unsafe { AsyncFd::register_with_interest(Timer(timer), Interest::READABLE) }?;
            Ok(Self { clock, timer, armed: None })
        }

        /// Returns when `due` is reached. May be dropped and called again at any time.
        ///
        /// # Errors
        /// When the timer cannot be set.
        pub(in super::super) async fn wait_until(&mut self, due: Stamp) -> io::Result<()> {
            loop {
                let left_ns = due.ns_since(self.clock.now());
                let Ok(left_ns @ 1..) = u64::try_from(left_ns) else { return Ok(()) };
                if self.armed != Some(due) {
                    // Setting the timer also takes back an expiry that nobody has read.
                    let left = TimeSpec::from_duration(Duration::from_nanos(left_ns));
                    self.timer.get_ref().0.set(Expiration::OneShot(left), TimerSetTimeFlags::empty())?;
                    self.armed = Some(due);
                }
                self.timer.readable().await?.clear_ready();
                // Readiness can be left over from an earlier due time: look at the
                // clock again, and set the timer anew if this one has not come.
                self.armed = None;
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod tokio_timer {
    use super::{Clock, Stamp, io};

    /// Wakes its worker when a stamp of the clock is reached.
    pub(in super::super) struct Pacer {
        clock: Clock,
    }

    impl Pacer {
        /// A pacer on the current runtime.
        ///
        /// # Errors
        /// Never.
        pub(in super::super) fn new(clock: Clock) -> io::Result<Self> {
            Ok(Self { clock })
        }

        /// Returns when `due` is reached. May be dropped and called again at any time.
        ///
        /// # Errors
        /// Never.
        pub(in super::super) async fn wait_until(&mut self, due: Stamp) -> io::Result<()> {
            if let Some(due) = self.clock.instant(due) {
                tokio::time::sleep_until(due.into()).await;
            }
            Ok(())
        }
    }
}
