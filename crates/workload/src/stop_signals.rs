//! Signals that the server handles.
//!
//! No process can handle SIGKILL or SIGSTOP. A process that was stopped finds out afterwards, through SIGCONT and the
//! gap in its log.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::task::Poll;

use nix::sys::signal::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signal that can be given a habit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StopSignal(Number);

const ALL: [Number; 6] =
    [Number::SIGTERM, Number::SIGINT, Number::SIGQUIT, Number::SIGHUP, Number::SIGUSR1, Number::SIGUSR2];

impl StopSignal {
    /// Returns true if, by default, the signal asks a server to stop.
    pub fn means_stop(self) -> bool {
        matches!(self.0, Number::SIGTERM | Number::SIGINT | Number::SIGQUIT)
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl FromStr for StopSignal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = format!("SIG{}", text.strip_prefix("SIG").unwrap_or(text));
        ALL.into_iter()
            .find(|signal| signal.as_str() == wanted)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not one of {}", ALL.map(Number::as_str).join(", ")))
    }
}

/// Signal, or the resumption after a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noticed {
    Signal(StopSignal),
    /// The process was resumed after a stop.
    Continued,
}

/// Stream of signals that arrive after its creation.
pub(super) struct SignalStream {
    all: Vec<(Noticed, Signal)>,
}

impl SignalStream {
    pub(super) fn install() -> io::Result<Self> {
        let handled = |number: Number| signal(SignalKind::from_raw(number as i32));
        let mut all = vec![(Noticed::Continued, handled(Number::SIGCONT)?)];
        for number in ALL {
            all.push((Noticed::Signal(StopSignal(number)), handled(number)?));
        }
        Ok(Self { all })
    }

    pub(super) async fn next(&mut self) -> Noticed {
        std::future::poll_fn(|context| {
            for (noticed, signal) in &mut self.all {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*noticed);
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_prefix_is_optional() {
        assert_eq!("SIGUSR1".parse(), Ok(StopSignal(Number::SIGUSR1)));
        assert_eq!("HUP".parse(), Ok(StopSignal(Number::SIGHUP)));
        assert_eq!(StopSignal(Number::SIGQUIT).to_string(), "SIGQUIT");
        let error = "SIGKILL".parse::<StopSignal>().unwrap_err();
        assert!(error.contains("SIGUSR2"), "{error}");
    }
}
