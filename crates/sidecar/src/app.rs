//! Observes the app behind the proxy: the state of its listener, and its readiness.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ProxyState;
use super::app_listener::listens;
use rolldrop_record::event::ProxyPhase;
use rolldrop_record::{ServedEnd, Stamp};

/// Interval at which the proxy checks the app's listener while the pod is terminating.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time for the app to show that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// State of the app's listener, as last seen.
#[derive(Debug, Default)]
pub(super) struct AppListener {
    /// Latest time at which it was certainly open, in Unix nanoseconds; 0 if it was never seen open.
    open_at: AtomicI64,
    /// True if it was found closed since then.
    closed: AtomicBool,
}

impl AppListener {
    /// Notes that a connection was accepted after this time.
    pub(super) fn accepts(&self, at: Stamp) {
        self.saw_open(at);
        self.closed.store(false, Ordering::Relaxed);
    }

    /// Notes that the listener was open after this time.
    fn saw_open(&self, at: Stamp) {
        self.open_at.fetch_max(at.unix_ns(), Ordering::Relaxed);
    }

    /// Returns the latest time at which the listener was certainly open, if it was ever seen open.
    fn open_at(&self) -> Option<Stamp> {
        Some(self.open_at.load(Ordering::Relaxed)).filter(|ns| *ns > 0).map(Stamp::from_unix_ns)
    }

    /// Notes that a connection was refused; returns true if the listener was open before. An app that has never been
    /// seen listening may still be starting.
    fn refuses(&self) -> bool {
        self.open_at().is_some() && self.closes()
    }

    /// Notes that the listener is gone; returns true if that was not known before.
    fn closes(&self) -> bool {
        !self.closed.swap(true, Ordering::Relaxed)
    }

    /// Returns true if the listener is known to be closed.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl ProxyState {
    /// Returns the outcome of a request if the proxy could not connect to the app.
    pub(super) fn connect_failed(&self, error: &io::Error) -> ServedEnd {
        match error.kind() {
            ErrorKind::ConnectionRefused => {
                if self.has_local_app && self.app.refuses() {
                    self.listener_closed();
                }
                ServedEnd::UpstreamRefused
            }
            ErrorKind::ConnectionReset => ServedEnd::UpstreamReset,
            // Descriptors, memory or ports are exhausted.
            kind if lacks_resources(error) || kind == ErrorKind::AddrNotAvailable => {
                self.trouble(
                    "failed to connect to the app: no file descriptors, ports or memory left",
                    error,
                );
                ServedEnd::ProxyExhausted
            }
            _ => {
                self.trouble("failed to connect to the app", error);
                ServedEnd::Cancelled
            }
        }
    }

    /// Watches the app's listener until it is gone, and records the time. If the kernel cannot be asked, only refused
    /// requests reveal that the listener is gone.
    pub(super) async fn watch_listener_close(&self) {
        while !self.is_app_gone() {
            self.look_for_listener();
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Returns true if the app no longer listens, or if there is no local app to wait for.
    pub(super) fn is_app_gone(&self) -> bool {
        !self.has_local_app || self.app.is_closed()
    }

    /// Checks the app's listener once, and records the phase if the listener is gone.
    pub(super) fn look_for_listener(&self) {
        if !self.has_local_app {
            return;
        }
        let at = self.clock.now();
        match listens(self.upstream, self.listen) {
            Some(true) => self.app.saw_open(at),
            Some(false) if self.app.closes() => self.listener_closed(),
            Some(false) | None => {}
        }
    }

    fn listener_closed(&self) {
        self.journal.phase_at(ProxyPhase::LastListening, self.app.open_at());
        self.journal.phase(ProxyPhase::ListenerClosed, self.clock.now());
    }
}

/// Returns true if the error means that the process or the machine has no resources left to open a socket.
fn lacks_resources(error: &io::Error) -> bool {
    use nix::errno::Errno;

    let error = error.raw_os_error().map(Errno::from_raw);
    matches!(error, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// Returns true if the app is ready: its listener accepts and, if a path is given, the app responds to a GET request
/// for this path with a status of 200 to 399, as for a readiness probe.
pub(super) async fn is_ready(app: SocketAddr, path: Option<&str>) -> bool {
    let probe = async {
        let mut stream = TcpStream::connect(app).await?;
        let Some(path) = path else { return Ok(true) };
        let request = format!("GET {path} HTTP/1.1\r\nhost: {app}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut status_line = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut status_line).await?;
        Ok::<_, io::Error>(status_line.starts_with(b"HTTP/1.") && matches!(status_line[9], b'2' | b'3'))
    };
    matches!(timeout(READY_TIMEOUT, probe).await, Ok(Ok(true)))
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::super::{ProxyConfig, Seldom};
    use super::*;
    use rolldrop_record::Clock;

    #[test]
    fn descriptor_shortage_yields_proxy_exhausted() {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let shared = ProxyState::new(&ProxyConfig::bare(nowhere), Clock::start());
        let end = |errno: Errno| shared.connect_failed(&io::Error::from_raw_os_error(errno as i32));
        assert_eq!(end(Errno::EMFILE), ServedEnd::ProxyExhausted);
        assert_eq!(end(Errno::EADDRNOTAVAIL), ServedEnd::ProxyExhausted);
        assert_eq!(end(Errno::ETIMEDOUT), ServedEnd::Cancelled);
        assert_eq!(end(Errno::ECONNREFUSED), ServedEnd::UpstreamRefused);
    }

    #[test]
    fn refusal_closes_only_local_listener() {
        for (upstream, is_local) in [([127, 0, 0, 1], true), ([192, 0, 2, 1], false)] {
            let config = ProxyConfig::bare(SocketAddr::from((upstream, 80)));
            let shared = ProxyState::new(&config, Clock::start());
            shared.app.accepts(shared.clock.now());
            let refused = io::Error::from(ErrorKind::ConnectionRefused);
            assert_eq!(shared.connect_failed(&refused), ServedEnd::UpstreamRefused);
            assert_eq!(shared.app.is_closed(), is_local);
        }
    }

    #[test]
    fn repeated_failure_logs_once_per_second() {
        let seldom = Seldom::default();
        let begun = Clock::start().now();
        let said: Vec<_> =
            (0..2500).filter_map(|ms| seldom.speaks(begun.shifted_ns(ms * 1_000_000))).collect();
        assert_eq!(said, [0, 999, 999]);
    }
}
