//! Signals that the server notices.
//!
//! No process can notice SIGKILL or SIGSTOP. A process that was stopped finds out afterwards, through SIGCONT and the
//! gap in its log.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::task::Poll;

use nix::sys::signal::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signal that can be given a habit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopSignal {
    /// Default stop signal of container runtimes.
    Term,
    /// Ctrl-C.
    Int,
    /// Ctrl-\\; some servers treat it as a graceful stop.
    Quit,
    /// Lost terminal; by convention, a request to reload the configuration.
    Hup,
    /// For programs' own use.
    Usr1,
    /// For programs' own use.
    Usr2,
}

const ALL: [(StopSignal, &str, Number); 6] = [
    (StopSignal::Term, "SIGTERM", Number::SIGTERM),
    (StopSignal::Int, "SIGINT", Number::SIGINT),
    (StopSignal::Quit, "SIGQUIT", Number::SIGQUIT),
    (StopSignal::Hup, "SIGHUP", Number::SIGHUP),
    (StopSignal::Usr1, "SIGUSR1", Number::SIGUSR1),
    (StopSignal::Usr2, "SIGUSR2", Number::SIGUSR2),
];

impl StopSignal {
    /// Returns true if, by default, the signal asks a server to stop.
    pub fn means_stop(self) -> bool {
        matches!(self, Self::Term | Self::Int | Self::Quit)
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALL.iter().find(|(signal, ..)| signal == self).map_or("", |(_, name, _)| name))
    }
}

impl FromStr for StopSignal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.strip_prefix("SIG").unwrap_or(text);
        let found = ALL.iter().find(|(_, name, _)| name.strip_prefix("SIG") == Some(wanted));
        found.map(|(signal, ..)| *signal).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|(_, name, _)| *name).collect();
            format!("{text:?} is none of {}", names.join(", "))
        })
    }
}

/// Signal, or the end of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noticed {
    Signal(StopSignal),
    /// The process was resumed after a stop.
    Continued,
}

/// Stream of signals from now on.
pub(super) struct SignalStream {
    all: Vec<(Noticed, Signal)>,
}

impl SignalStream {
    pub(super) fn install() -> io::Result<Self> {
        let handled = |number: Number| signal(SignalKind::from_raw(number as i32));
        let mut all = vec![(Noticed::Continued, handled(Number::SIGCONT)?)];
        for (stop, _, number) in ALL {
            all.push((Noticed::Signal(stop), handled(number)?));
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
        assert_eq!("SIGUSR1".parse(), Ok(StopSignal::Usr1));
        assert_eq!("HUP".parse(), Ok(StopSignal::Hup));
        assert_eq!(StopSignal::Quit.to_string(), "SIGQUIT");
        let error = "SIGKILL".parse::<StopSignal>().unwrap_err();
        assert!(error.contains("SIGUSR2"), "{error}");
    }
}
