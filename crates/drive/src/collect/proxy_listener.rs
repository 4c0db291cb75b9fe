//! Receives what is read from proxies. A run records it; [`super::sidecar_journals`] delivers it to a watch.

use super::endpoint::Endpoint;
use crate::observe::RecorderHandle;
use rolldrop_record::run_info::Rows;
use rolldrop_record::{Clock, ClockOffset, EventKind, ServedRow, Stamp};

/// Receives what is read from proxies.
pub(crate) trait ProxyListener: Send + Sync {
    /// Returns the clock of this process.
    fn clock(&self) -> Clock;
    /// Takes news about the recorder with this source name.
    fn take(&self, of: &Endpoint, source: &str, news: ProxyNews);
}

/// News about a proxy.
#[derive(Debug)]
pub(crate) enum ProxyNews {
    /// Rows, in the order in which they were recorded.
    Rows(Vec<ServedRow>),
    /// An event on the proxy's clock.
    Event(Box<(Stamp, EventKind)>),
    /// Result of a clock exchange, with the time of its request.
    Clock(Stamp, ClockOffset),
    /// The proxy no longer has the rows before the next ones.
    RowsMissing,
    /// A lasting problem, phrased as the end of a sentence about the proxy.
    Warning(String),
    /// The rows could not be read at this moment, with the reason. Most proxies are just starting or have exited.
    Failed(String),
    /// No more rows will arrive.
    Ended(Rows),
    /// The pod is gone, and there will be no further news.
    Forgotten,
}

impl ProxyListener for RecorderHandle {
    fn clock(&self) -> Clock {
        self.clock()
    }

    fn take(&self, of: &Endpoint, source: &str, news: ProxyNews) {
        let Endpoint { pod, uid, .. } = of;
        match news {
            ProxyNews::Rows(rows) => self.served(source, rows),
            ProxyNews::Event(event) => self.event_of(source, event.0, event.1),
            ProxyNews::Clock(sent, sample) => self.event(sent, EventKind::clock_sample(source, sample)),
            ProxyNews::Warning(what) => self.warn(format!("the proxy of pod {pod} {what}")),
            ProxyNews::Ended(rows) => {
                let (pod, uid, of) = (pod.clone(), uid.clone(), source.to_owned());
                self.record(EventKind::ProxyEnded { pod, uid, of, rows });
            }
            // Missing rows show up in the counts.
            ProxyNews::RowsMissing | ProxyNews::Failed(_) | ProxyNews::Forgotten => {}
        }
    }
}
