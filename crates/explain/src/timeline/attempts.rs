//! Assignment of the proxies' rows to requests.
//!
//! A row belongs to a request if its id has the run's random part and a request's number, and if its times are
//! possible. No pod reads a request before it is sent. These rows are the request itself and, if several pods read it,
//! a gateway's attempts. Anyone can send a request with an id, so rows that belong to no request are counted and
//! otherwise ignored.

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;

use foldhash::HashMap;

use super::clocks::Clocks;
use super::integrity::HIGHEST_NUMBER;
use super::stretch::Stretch;
use rolldrop_record::{Outcome, RequestRow, RunId, ServedEnd, ServedRow, Stamp};

/// Resolution of the stored times of plainly successful requests, in nanoseconds.
const STEP_NS: i64 = 10_000;
/// Stored times begin this long before the first request, in nanoseconds.
const BEFORE_NS: i64 = 60_000_000_000;
/// Maximum number of rows kept for requests with several rows; beyond it, a request's first row counts.
const MAX_FURTHER: usize = 200_000;
/// Maximum number of pods: 20 bits.
const MAX_PODS: usize = (1 << 20) - 1;

/// Request that reached a pod with a recording proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Name of the pod.
    pub pod: Arc<str>,
    /// Time the pod had read the request's head, on the coordinator's clock; `None` if it was not kept.
    pub head: Option<Stamp>,
    /// Outcome at the pod.
    pub ended: ServedEnd,
    /// Status of the pod's response, if there was one and it was kept.
    pub status: Option<u16>,
}

impl Attempt {
    fn of(row: &ServedRow) -> Self {
        Self { pod: Arc::clone(&row.pod), head: row.head, ended: row.ended, status: row.status }
    }

    /// Returns true if the pod failed the request: it sent no complete response, or a status of 500 or above.
    pub fn has_failed(&self) -> bool {
        self.ended != ServedEnd::Complete || self.status.is_some_and(|status| status >= 500)
    }
}

/// Proxy rows with an id that belong to no request in the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Number of rows whose id has another run's random part.
    pub other_runs: u64,
    /// Number of rows whose id has this run's random part, but an unknown source or a number above that of every
    /// request.
    pub no_request: u64,
}

/// Attempts at one request.
#[derive(Debug, Default)]
pub(super) struct JoinedAttempts<T> {
    /// Attempt that answered the request, or failed last.
    pub(super) last: Option<T>,
    /// Other attempts, in chronological order.
    pub(super) others: Vec<Attempt>,
    /// Rows whose times do not fit.
    pub(super) misfits: Misfits,
}

/// Proxy rows that carry a request's id but, by their times, do not belong to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misfits {
    /// Number of rows read before the request was sent, because someone else sent a request with this id, or a clock is
    /// wrong.
    pub early: u32,
    /// Number of rows read after the client had seen the request end. This proves nothing, because whatever ended the
    /// request for the client may still have forwarded it.
    pub late: u32,
}

/// Fit between the time a pod read a request and the client's times.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    Possible,
    Early,
    Late,
}

impl Misfits {
    fn add(&mut self, fit: Fit) {
        match fit {
            Fit::Possible => {}
            Fit::Early => self.early += 1,
            Fit::Late => self.late += 1,
        }
    }

    /// Returns true if there are no misfits.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Request as known to its client.
struct ClientRow<'a> {
    row: &'a RequestRow,
    /// Uncertainty of the client's stamps, in ± nanoseconds; `None` if its clock was never compared.
    uncertainty_ns: Option<i64>,
}

impl ClientRow<'_> {
    /// Returns the fit between the request and a pod that read it at `head`, on a clock known to ± `own_ns`. A pod
    /// reads a request after it was sent and before the client has the whole response. A request that the client gave
    /// up on may still wait in a queue and be read after the client has gone, with any outcome. If the app closes a
    /// connection before the proxy has read the request, the proxy first passes on the close, so it reads the request
    /// after the client has seen the end.
    fn fit(&self, head: Option<Stamp>, ended: ServedEnd, own_ns: Option<i64>) -> Fit {
        let Some(sent) = self.row.sent else { return Fit::Early };
        // The first WebSocket message has the same id as the handshake before it.
        let has_shaken_hands = self.row.status == Some(101);
        let sent = self.row.tls.or(self.row.connected).filter(|_| has_shaken_hands).unwrap_or(sent);
        let Some(head) = head else { return Fit::Possible };
        let Some((own_ns, client_ns)) = own_ns.zip(self.uncertainty_ns) else { return Fit::Possible };
        let slack_ns = own_ns.saturating_add(client_ns);
        let gave_up = matches!(
            self.row.outcome,
            Outcome::ResponseTimeout | Outcome::BodyTimeout | Outcome::StreamStalled | Outcome::Cancelled
        );
        let is_unanswered =
            matches!(self.row.outcome, Outcome::EofBeforeResponse | Outcome::ResetBeforeResponse);
        let was_closed =
            matches!(ended, ServedEnd::UpstreamEof | ServedEnd::UpstreamReset | ServedEnd::UpstreamRefused);
        if sent.ns_since(head) > slack_ns {
            Fit::Early
        } else if head.ns_since(self.row.end) <= slack_ns || gave_up || is_unanswered && was_closed {
            Fit::Possible
        } else {
            Fit::Late
        }
    }
}

/// Proxy rows of all requests that may have plainly succeeded, in eight bytes per request.
#[derive(Debug, Default)]
pub(super) struct Proxied {
    sources: HashMap<Arc<str>, SourceAttempts>,
    /// Further rows for ids with more than one row.
    further: HashMap<(Arc<str>, u64), Vec<ServedRow>>,
    further_rows: usize,
    /// Highest request number.
    highest_seq: u64,
    /// Source of the last expected request.
    last: Option<Arc<str>>,
    pods: Vec<ProxiedPod>,
    numbers: HashMap<Arc<str>, u32>,
    /// Time from which stored times are measured.
    base: Stamp,
    pub(super) strangers: Strangers,
}

/// Rows of one load source's requests.
#[derive(Debug, Default)]
struct SourceAttempts {
    /// First row for each request's id, by request number.
    first: Stretch<Option<PackedRow>>,
    /// True if the source's clock was compared with the coordinator's clock.
    is_compared: bool,
}

#[derive(Debug)]
struct ProxiedPod {
    name: Arc<str>,
    /// Smallest uncertainty of the proxy's clock, in ± nanoseconds; `None` if the clock was never compared.
    uncertainty_ns: Option<i64>,
}

/// Row packed into eight bytes.
#[derive(Clone, Copy, Debug)]
struct PackedRow {
    /// Packed facts, from the highest bit: 20 bits for the pod's number (from 1), 3 for the outcome, 9 for the status.
    what: NonZeroU32,
    /// Time the head had been read, in steps; the highest value means unknown.
    head: u32,
}

impl PackedRow {
    fn new(pod: u32, served: &ServedRow, base: Stamp) -> Option<Self> {
        let ended = ServedEnd::ALL.iter().position(|end| *end == served.ended)?;
        let status = served.status.and_then(|status| status.checked_sub(99)).filter(|status| *status < 512);
        let what = pod << 12 | u32::try_from(ended).ok()? << 9 | u32::from(status.unwrap_or(0));
        let steps = |head: Stamp| head.ns_since(base).max(0) / STEP_NS;
        let head = served.head.and_then(|head| u32::try_from(steps(head)).ok()).unwrap_or(u32::MAX);
        Some(Self { what: NonZeroU32::new(what)?, head })
    }

    /// Returns the pod's index in the list of pods.
    fn pod(self) -> usize {
        (self.what.get() >> 12) as usize - 1
    }

    fn ended(self) -> ServedEnd {
        ServedEnd::ALL.get((self.what.get() >> 9 & 7) as usize).copied().unwrap_or(ServedEnd::Cancelled)
    }

    fn status(self) -> Option<u16> {
        let status = u16::try_from(self.what.get() & 511).ok().filter(|status| *status > 0);
        status.map(|status| status + 99)
    }

    /// Returns the time the head had been read, rounded down by up to one step.
    fn head(self, base: Stamp) -> Option<Stamp> {
        (self.head < u32::MAX).then(|| base.shifted_ns(i64::from(self.head) * STEP_NS))
    }
}

impl Proxied {
    /// Expects all requests that `others` expects; `others` must not have taken a row yet.
    pub(super) fn expect_all(&mut self, others: Self) {
        self.highest_seq = self.highest_seq.max(others.highest_seq);
        for (source, of) in others.sources {
            self.sources.entry(source).or_default().is_compared |= of.is_compared;
        }
    }

    /// Registers this request so that rows with its id are kept. Rows with other ids are not kept, because anyone can
    /// send such ids.
    pub(super) fn expect(&mut self, row: &RequestRow, clocks: &Clocks) {
        self.highest_seq = self.highest_seq.max(row.seq.min(HIGHEST_NUMBER));
        if self.last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &row.source)) {
            let is_compared = clocks.uncertainty_ns(&row.source, row.end).is_some();
            self.sources.entry(Arc::clone(&row.source)).or_default().is_compared = is_compared;
            self.last = Some(Arc::clone(&row.source));
        }
    }

    /// Sets the intended send time of the first request. Call this before taking the first row.
    pub(super) fn begin_at(&mut self, first: Stamp) {
        self.base = first.shifted_ns(-BEFORE_NS);
    }

    /// Returns true if a row's id belongs to this run; counts rows whose id does not.
    pub(super) fn is_own(&mut self, served: &ServedRow, run: &RunId) -> bool {
        let Some(id) = &served.request else { return false };
        let is_of_run = id.run() == run.as_str();
        let has_request = self.sources.contains_key(id.source()) && id.seq <= self.highest_seq;
        match (is_of_run, has_request) {
            (true, true) => true,
            (true, false) => {
                self.strangers.no_request += 1;
                false
            }
            (false, _) => {
                self.strangers.other_runs += 1;
                false
            }
        }
    }

    /// Takes one of the [run's own rows](Self::is_own), on the coordinator's clock.
    pub(super) fn put(&mut self, served: &ServedRow, uncertainty_ns: Option<i64>) {
        let Some(id) = &served.request else { return };
        let Some(number) = self.number(&served.pod, uncertainty_ns) else { return };
        let Some(seen) = PackedRow::new(number, served, self.base) else { return };
        let Ok(seq) = usize::try_from(id.seq) else { return };
        let Some(source) = self.sources.get_mut(id.source()) else { return };
        let first = source.first.at_mut(seq);
        if first.is_none() {
            *first = Some(seen);
        } else if self.further_rows < MAX_FURTHER {
            self.further_rows += 1;
            self.further.entry((id.source().into(), id.seq)).or_default().push(served.clone());
        }
    }

    /// Returns the number of a pod, counted from 1; `None` if there are too many.
    fn number(&mut self, pod: &Arc<str>, uncertainty_ns: Option<i64>) -> Option<u32> {
        let number = match self.numbers.get(pod) {
            Some(number) => *number,
            None if self.pods.len() < MAX_PODS => {
                self.pods.push(ProxiedPod { name: Arc::clone(pod), uncertainty_ns });
                let number = u32::try_from(self.pods.len()).ok()?;
                self.numbers.insert(Arc::clone(pod), number);
                number
            }
            None => return None,
        };
        let known = &mut self.pods[number as usize - 1].uncertainty_ns;
        *known = known.zip(uncertainty_ns).map(|(a, b)| a.max(b));
        Some(number)
    }

    /// Returns the attempts at a plainly successful request whose stamps are within ± `uncertainty_ns` of the
    /// coordinator's clock.
    pub(super) fn of(&self, row: &RequestRow, uncertainty_ns: i64) -> JoinedAttempts<Arc<str>> {
        let nothing = JoinedAttempts { last: None, others: Vec::new(), misfits: Misfits::default() };
        if self.pods.is_empty() {
            return nothing;
        }
        let Some(source) = self.sources.get(&row.source) else { return nothing };
        let seen = usize::try_from(row.seq).ok().and_then(|seq| *source.first.at(seq)?);
        let Some(seen) = seen else { return nothing };
        let pod = &self.pods[seen.pod()];
        let client = self.client(row, source, uncertainty_ns);
        // The rounding adds to the uncertainty.
        let own_ns = pod.uncertainty_ns.map(|ns| ns.saturating_add(STEP_NS));
        let head = seen.head(self.base);
        let fit = client.fit(head, seen.ended(), own_ns);
        let mut misfits = Misfits::default();
        misfits.add(fit);
        let fits = fit == Fit::Possible;
        let further = match self.further.is_empty() {
            true => None,
            false => self.further.get(&(Arc::clone(&row.source), row.seq)),
        };
        let Some(further) = further else {
            let last = fits.then(|| Arc::clone(&pod.name));
            return JoinedAttempts { last, misfits, ..nothing };
        };
        let first = Attempt { pod: Arc::clone(&pod.name), head, ended: seen.ended(), status: seen.status() };
        let own_ns = |served: &ServedRow| {
            let number = self.numbers.get(&served.pod)?;
            self.pods.get(*number as usize - 1)?.uncertainty_ns
        };
        let fitting = further.iter().filter(|served| {
            let fit = client.fit(served.head, served.ended, own_ns(served));
            misfits.add(fit);
            fit == Fit::Possible
        });
        let mut attempts: Vec<Attempt> =
            fits.then_some(first).into_iter().chain(fitting.map(Attempt::of)).collect();
        attempts.sort_by_key(|attempt| attempt.head);
        let answered = attempts.iter().rposition(|attempt| !attempt.has_failed());
        let last = answered.or(attempts.len().checked_sub(1)).map(|last| attempts.remove(last).pod);
        JoinedAttempts { last, others: attempts, misfits }
    }

    /// Returns the attempts at any other request. `rows` holds all rows with its id, each with the uncertainty of its
    /// proxy's clock.
    pub(super) fn choose(
        &self,
        row: &RequestRow,
        uncertainty_ns: i64,
        rows: Vec<(ServedRow, Option<i64>)>,
    ) -> JoinedAttempts<ServedRow> {
        let Some(source) = self.sources.get(&row.source) else {
            return JoinedAttempts { last: None, others: Vec::new(), misfits: Misfits::default() };
        };
        let client = self.client(row, source, uncertainty_ns);
        let mut misfits = Misfits::default();
        let mut fitting = Vec::with_capacity(rows.len());
        for (served, own_ns) in rows {
            let fit = client.fit(served.head, served.ended, own_ns);
            misfits.add(fit);
            if fit == Fit::Possible {
                fitting.push(served);
            }
        }
        fitting.sort_by_key(|served| served.head);
        let answered =
            |served: &ServedRow| served.ended == ServedEnd::Complete && served.status == row.status;
        let last = fitting.iter().rposition(answered).or(fitting.len().checked_sub(1));
        let last = last.map(|last| fitting.remove(last));
        JoinedAttempts { last, others: fitting.iter().map(Attempt::of).collect(), misfits }
    }

    fn client<'a>(&self, row: &'a RequestRow, source: &SourceAttempts, uncertainty_ns: i64) -> ClientRow<'a> {
        ClientRow { row, uncertainty_ns: source.is_compared.then_some(uncertainty_ns) }
    }
}
