//! Requests of a run as seen by both ends, on the coordinator's clock.
//!
//! Nearly all requests were answered, and there may be more than fit into memory. An answered request only adds to
//! totals, so reading it once is enough. The other requests are what a run is about, and are held in memory.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};

pub use super::attempts::{Attempt, Strangers};
use super::attempts::{Misfits, Proxied};
use super::clocks::Clocks;
use super::consumer_kind::KeptConnections;
use super::integrity::{self, Integrity};
use super::lanes;
use super::pod_addresses::PodAddresses;
pub use super::pod_names::Unmatched;
use super::pod_names::{PodNames, Relays};
use super::span::TimeSpan;
use crate::timeline::by_name::ValuesByName;
use rolldrop_record::parts::{self, PartError, Wanted};
use rolldrop_record::{
    ClockOffset, Event, GapRow, Outcome, RequestRow, RowSource, RunId, RunInfo, ServedRow, Stamp, StreamRow,
};

/// Connection, identified by its load source and its number there.
pub type ConnectionId = (Arc<str>, u64);

/// Request as seen by both ends, on the coordinator's clock.
#[derive(Clone, Debug)]
pub struct Request {
    /// Row that the client recorded.
    pub row: RequestRow,
    /// Pod whose proxy also recorded the request; if there were several, the one that answered, or failed last.
    pub proxy: Option<Arc<str>>,
    /// Row recorded by this proxy, if the request is one of [`Requests::others`].
    pub served: Option<Box<ServedRow>>,
    /// Pod that the kernel routed the connection to, if that is known and reliable.
    pub routed: Option<Arc<str>>,
    /// Attempts at other pods, in chronological order. Several pods read the request if a gateway in between retried
    /// it.
    pub other_attempts: Vec<Attempt>,
    /// Proxy rows that carry this request's id but, by their times, do not belong to it.
    pub misfits: Misfits,
    /// Uncertainty of the client's stamps on the coordinator's clock, in ± nanoseconds.
    pub uncertainty_ns: i64,
}

impl Request {
    /// Creates a request without a proxy row, leaving its stamps unchanged.
    pub fn of(row: RequestRow) -> Self {
        Self {
            row,
            proxy: None,
            served: None,
            routed: None,
            other_attempts: Vec::new(),
            misfits: Misfits::default(),
            uncertainty_ns: 0,
        }
    }

    /// Returns the time the attempt began: the start of connecting, or of sending on an open connection.
    pub fn begun(&self) -> Stamp {
        self.row.actually_sent().unwrap_or(self.row.scheduled)
    }

    /// Returns true if a complete response arrived, with any status. Only such a request has a latency.
    pub(crate) fn was_answered(&self) -> bool {
        matches!(self.row.outcome, Outcome::Ok | Outcome::HttpError)
    }

    /// Returns true if the request opened a new connection.
    pub fn is_new_connection(&self) -> bool {
        !self.row.conn_reused && self.row.connect_start.is_some()
    }

    /// Returns the pod that the request reached, as named by one of the ends or by the kernel's connection tracking.
    pub fn pod(&self) -> Option<&Arc<str>> {
        self.named().or(self.routed.as_ref())
    }

    /// Returns the pod that the request reached, as named by one of the ends.
    pub fn named(&self) -> Option<&Arc<str>> {
        self.proxy.as_ref().or(self.row.pod.as_ref())
    }

    /// Returns the connection that the request was sent on, or would have been.
    pub fn connection(&self) -> Option<ConnectionId> {
        Some((Arc::clone(&self.row.source), self.row.conn?))
    }

    /// Returns the sort key: intended send time, then id.
    pub fn order(&self) -> (Stamp, &str, u64) {
        (self.row.scheduled, &self.row.source, self.row.seq)
    }
}

/// Data for joining requests with proxy rows and pods.
#[derive(Debug)]
pub(super) struct Joins {
    /// Pods by the names used in headers.
    pub names: PodNames,
    /// Pods by address.
    pub addresses: PodAddresses,
    /// Pods that only pass requests on, once they are known.
    pub relays: HashSet<Arc<str>>,
    /// Common part of the ids of the run's requests.
    pub run: RunId,
    /// True if the kernel's entries are used only when responses confirm them.
    pub needs_proof: bool,
}

impl Joins {
    /// Clears the row's pod if it only forwards requests; such a pod is not the one that failed.
    fn forget_relays(&self, row: &mut RequestRow) {
        row.pod.take_if(|pod| self.relays.contains(pod));
    }
}

/// All requests of a run; only those lost in one span are held in memory.
#[derive(Debug)]
pub struct Requests {
    /// Requests of the span that did not [plainly succeed](is_plain), in [order](Request::order).
    pub others: Vec<Request>,
    /// Number of all requests, including the plainly successful ones.
    pub all: u64,
    /// Proxy rows with an id that belong to no request.
    pub strangers: Strangers,
    /// Pod header values that name no pod watched by the run.
    pub unmatched: Unmatched,
    /// Connections with further requests whose pod the client does not know.
    pub unnamed: HashSet<ConnectionId>,
    /// True if some requests on these connections plainly succeeded.
    pub(crate) has_unnamed_plain: bool,
    /// True if the client or the kernel knows the pod of at least one request.
    pub(crate) has_named: bool,
    /// Agreement between the kernel's entries and the responses.
    pub agreement: Agreement,
    /// Pods reached by requests on kept connections.
    pub(super) kept: KeptConnections,
    /// First intended send time.
    pub(super) first_scheduled: Option<Stamp>,
    /// Time at which the last request ended.
    pub(super) last_end: Option<Stamp>,
    rows: Arc<dyn RowSource>,
    span: TimeSpan,
    clocks: Clocks,
    joins: Joins,
    proxied: Proxied,
    looked_at: integrity::RowIntegrity,
}

/// Agreement between the pods that the kernel routed connections to and the pods that responses name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Number of requests for which the kernel knows the address that their connection was routed to.
    pub routed: u64,
    /// Number of these requests whose address is a pod's.
    pub to_pods: u64,
    /// Number of requests whose response names the same pod.
    pub agreed: u64,
    /// Number of requests whose response names a different pod.
    pub disagreed: u64,
    /// True if the kernel's entries are used.
    pub is_relied_on: bool,
}

impl Agreement {
    /// Number of responses that must agree with the kernel's entries under IPVS, with none disagreeing, before the
    /// entries are used.
    const PROOF: u64 = 20;

    fn is_proof(&self) -> bool {
        self.agreed >= Self::PROOF && self.disagreed == 0
    }

    fn merge(&mut self, other: Self) {
        self.routed += other.routed;
        self.to_pods += other.to_pods;
        self.agreed += other.agreed;
        self.disagreed += other.disagreed;
    }

    fn add(&mut self, request: &Request) {
        self.routed += u64::from(request.row.routed_to.is_some());
        let Some(routed) = &request.routed else { return };
        self.to_pods += 1;
        if let Some(pod) = request.named() {
            *(if pod == routed { &mut self.agreed } else { &mut self.disagreed }) += 1;
        }
    }
}

/// Returns true if a request plainly succeeded: with a success status, and with no gRPC error.
pub fn is_plain(row: &RequestRow) -> bool {
    row.outcome == Outcome::Ok && row.grpc_status.unwrap_or(0) == 0
}

/// Maps each request's source and number to its index; with duplicates, the first counts.
fn by_id(requests: &[Request]) -> HashMap<Arc<str>, HashMap<u64, usize>> {
    let mut by_id: HashMap<Arc<str>, HashMap<u64, usize>> = HashMap::default();
    for (number, Request { row, .. }) in requests.iter().enumerate() {
        by_id.entry(Arc::clone(&row.source)).or_default().entry(row.seq).or_insert(number);
    }
    by_id
}

/// Data collected in the first pass over the rows.
#[derive(Debug, Default)]
struct RequestCollector {
    others: Vec<Request>,
    all: u64,
    unnamed: HashSet<ConnectionId>,
    has_unnamed_plain: bool,
    has_named: bool,
    first_scheduled: Option<Stamp>,
    last_end: Option<Stamp>,
    looked_at: integrity::RowIntegrity,
    unmatched: Unmatched,
    proxied: Proxied,
    agreement: Agreement,
    kept: KeptConnections,
    relays: Relays,
    /// Pods' own names in responses that `relays` has processed.
    own_names: OwnNames,
}

impl RequestCollector {
    fn new(has_served: bool) -> Self {
        Self { looked_at: integrity::RowIntegrity::new(has_served), ..Self::default() }
    }

    fn add(&mut self, request: &mut Request, (clocks, joins): (&Clocks, &Joins), span: TimeSpan) {
        place_request(request, clocks, Some(&joins.addresses));
        let said = name_pod(request, joins, &mut self.own_names);
        self.agreement.add(request);
        let row = &request.row;
        match (said, &row.pod) {
            (Some(value), None) => self.unmatched.add(&value),
            (Some(value), Some(pod)) if row.outcome == Outcome::Ok => {
                self.relays.see(&joins.names, &value, pod);
            }
            _ => {}
        }
        self.all += 1;
        self.first_scheduled = earliest(self.first_scheduled, Some(row.scheduled));
        self.last_end = self.last_end.max(Some(row.end));
        self.has_named |= request.pod().is_some();
        // The following steps use memory for each request or connection.
        if span.meets(row.scheduled, row.scheduled) {
            self.looked_at.add(row, request.uncertainty_ns);
        }
        if !span.has(row) {
            return;
        }
        self.proxied.expect(row, clocks);
        self.kept.see(row);
        let is_named = row.pod.is_some() || (request.routed.is_some() && !joins.needs_proof);
        if row.conn_reused && !is_named {
            self.unnamed.extend(request.connection());
            self.has_unnamed_plain |= is_plain(row);
        }
        if !is_plain(row) {
            self.others.push(request.clone());
        }
    }

    /// Adds the data of later rows.
    fn merge(&mut self, later: Self) {
        // The vectors are large, so do not let them grow to twice the size.
        self.others.reserve_exact(later.others.len());
        self.others.extend(later.others);
        self.all += later.all;
        self.unnamed.extend(later.unnamed);
        self.has_unnamed_plain |= later.has_unnamed_plain;
        self.has_named |= later.has_named;
        self.first_scheduled = earliest(self.first_scheduled, later.first_scheduled);
        self.last_end = self.last_end.max(later.last_end);
        self.looked_at.merge(later.looked_at);
        self.unmatched.merge(later.unmatched);
        self.proxied.expect_all(later.proxied);
        self.agreement.merge(later.agreement);
        self.kept.merge(later.kept);
        self.relays.merge(later.relays);
    }
}

/// Returns the earlier of two optional times.
fn earliest(a: Option<Stamp>, b: Option<Stamp>) -> Option<Stamp> {
    a.into_iter().chain(b).min()
}

/// Rows of streams, by source and number of their requests.
#[derive(Debug, Default)]
pub(crate) struct StreamRows(HashMap<Arc<str>, HashMap<u64, StreamRow>>);

impl StreamRows {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the row of a request's stream; `None` if no stream began.
    pub(crate) fn of(&self, request: &Request) -> Option<&StreamRow> {
        self.0.get(&request.row.source)?.get(&request.row.seq)
    }

    /// Returns the outcome of a request, or the outcome of its stream if one began. A stream that ended before its
    /// first event was recorded with the outcome of a plain request, but it was lost in the same way as any other.
    pub(crate) fn outcome(&self, request: &Request) -> Outcome {
        match (self.of(request), request.row.outcome) {
            (Some(_), Outcome::TruncatedBody | Outcome::ResetMidResponse) => Outcome::StreamCut,
            (Some(_), Outcome::BodyTimeout) => Outcome::StreamStalled,
            (_, outcome) => outcome,
        }
    }
}

impl Requests {
    /// Reads the rows for the first time, totalling the plainly successful ones along the way.
    pub(super) fn open<S: Send>(
        rows: Arc<dyn RowSource>,
        (clocks, mut joins): (Clocks, Joins),
        span: TimeSpan,
        begin: impl Fn() -> S,
        add: impl Fn(&mut S, &Request) + Sync,
        mut merge: impl FnMut(&mut S, S),
    ) -> Result<(Self, S), PartError> {
        let begin = || (RequestCollector::new(rows.has_served()), begin());
        let add = |(seen, sum): &mut (RequestCollector, S), request: &mut Request| {
            seen.add(request, (&clocks, &joins), span);
            if is_plain(&request.row) {
                add(sum, request);
            }
        };
        let merge = |(seen, sum): &mut (RequestCollector, S), later: (RequestCollector, S)| {
            seen.merge(later.0);
            merge(sum, later.1);
        };
        let (seen, sum) = lanes::add_up(&*rows, Wanted::All, begin, add, merge)?;
        let RequestCollector {
            mut others,
            first_scheduled,
            relays,
            mut looked_at,
            mut proxied,
            mut agreement,
            ..
        } = seen;
        joins.relays = relays.finish();
        others.iter_mut().for_each(|request| joins.forget_relays(&mut request.row));
        others.sort_unstable_by(|a: &Request, b| a.order().cmp(&b.order()));
        let by_id = if rows.has_served() { by_id(&others) } else { HashMap::default() };
        proxied.begin_at(first_scheduled.unwrap_or_default());
        let mut served: HashMap<usize, Vec<(ServedRow, Option<i64>)>> = HashMap::default();
        rows.served(&mut [&mut parts::each(|row: &ServedRow| {
            looked_at.add_served(row);
            if !proxied.is_own(row, &joins.run) || joins.relays.contains(&row.pod) {
                return;
            }
            looked_at.compare(row, &clocks);
            let uncertainty_ns = clocks.uncertainty_ns(&row.source, row.end);
            let row = place_served(row.clone(), &clocks);
            if !span.meets(row.head.unwrap_or(row.accepted), row.end) {
                return;
            }
            let Some(id) = &row.request else { return };
            let number = by_id.get(id.source()).and_then(|of_source| of_source.get(&id.seq));
            match number {
                Some(number) => served.entry(*number).or_default().push((row, uncertainty_ns)),
                None => proxied.put(&row, uncertainty_ns),
            }
        })])?;
        for (number, rows) in served {
            let request = &mut others[number];
            let joined = proxied.choose(&request.row, request.uncertainty_ns, rows);
            request.proxy = joined.last.as_ref().map(|row| Arc::clone(&row.pod));
            request.served = joined.last.map(Box::new);
            (request.other_attempts, request.misfits) = (joined.others, joined.misfits);
        }
        agreement.is_relied_on = !joins.needs_proof || agreement.is_proof();
        if !agreement.is_relied_on {
            others.iter_mut().for_each(|request| request.routed = None);
        }
        let strangers = proxied.strangers;
        let requests = Self {
            others,
            all: seen.all,
            strangers,
            unmatched: seen.unmatched,
            unnamed: seen.unnamed,
            has_unnamed_plain: seen.has_unnamed_plain,
            has_named: seen.has_named,
            kept: seen.kept,
            agreement,
            first_scheduled,
            last_end: seen.last_end,
            rows,
            span,
            clocks,
            joins,
            proxied,
            looked_at,
        };
        Ok((requests, sum))
    }

    /// Checks the integrity of the record for a load between these two times.
    pub(super) fn integrity(
        &self,
        (info, events): (&RunInfo, &[Event]),
        lasted: (Stamp, Stamp),
    ) -> Result<Integrity, PartError> {
        integrity::look((&self.looked_at, self.span), (info, events, &self.clocks), lasted, |each| {
            let mut request = lanes::blank();
            let mut lane = parts::each(|row: &RequestRow| {
                request.row.clone_from(row);
                place_request(&mut request, &self.clocks, None);
                each(&request.row);
            });
            self.rows.requests(&mut [&mut lane])
        })
    }

    /// Reads the streams into memory, by source and number.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub(crate) fn streams(&self) -> Result<StreamRows, PartError> {
        let mut streams = StreamRows::default();
        self.rows.streams(&mut [&mut parts::each(|row: &StreamRow| {
            let mut row = row.clone();
            for stamp in [&mut row.first_event, &mut row.last_event, &mut row.gap_start].into_iter().flatten()
            {
                *stamp = self.clocks.place(&row.source, *stamp);
            }
            streams.0.entry(Arc::clone(&row.source)).or_default().insert(row.seq, row);
        })])?;
        Ok(streams)
    }

    /// Passes on the times between events of streams.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub(crate) fn each_gap(&self, mut each: impl FnMut(&GapRow) + Send) -> Result<(), PartError> {
        self.rows.gaps(&mut [&mut parts::each(|row: &GapRow| {
            each(&GapRow { second: self.clocks.place(&row.source, row.second), ..row.clone() });
        })])
    }

    /// Aggregates the plainly successful requests, reading only the wanted columns and the data derived from them.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub(crate) fn plain<S: Send>(
        &self,
        wanted: Wanted,
        begin: impl Fn() -> S,
        add: impl Fn(&mut S, &Request) + Sync,
        merge: impl FnMut(&mut S, S),
    ) -> Result<S, PartError> {
        let add = |sum: &mut S, request: &Request| {
            if is_plain(&request.row) {
                add(sum, request);
            }
        };
        self.unheld(wanted, begin, add, merge)
    }

    /// Aggregates, in the same way, all requests that are not [held](Self::others).
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub(crate) fn unheld<S: Send>(
        &self,
        wanted: Wanted,
        begin: impl Fn() -> S,
        add: impl Fn(&mut S, &Request) + Sync,
        mut merge: impl FnMut(&mut S, S),
    ) -> Result<S, PartError> {
        let addresses = self.agreement.is_relied_on.then_some(&self.joins.addresses);
        let begin = || (OwnNames::default(), begin());
        let place = |(own_names, sum): &mut (OwnNames, S), request: &mut Request| {
            place_request(request, &self.clocks, addresses);
            if !is_plain(&request.row) && self.span.has(&request.row) {
                return;
            }
            name_pod(request, &self.joins, own_names);
            self.joins.forget_relays(&mut request.row);
            let joined = self.proxied.of(&request.row, request.uncertainty_ns);
            (request.proxy, request.other_attempts) = (joined.last, joined.others);
            request.misfits = joined.misfits;
            add(sum, request);
        };
        let merge = |own: &mut (OwnNames, S), later: (OwnNames, S)| merge(&mut own.1, later.1);
        Ok(lanes::add_up(&*self.rows, wanted, begin, place, merge)?.1)
    }

    /// Aggregates all requests.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub fn all<S: Send>(
        &self,
        begin: impl Fn() -> S,
        add: impl Fn(&mut S, &Request) + Sync,
        merge: impl FnMut(&mut S, S),
    ) -> Result<S, PartError> {
        let mut sum = self.unheld(Wanted::All, begin, &add, merge)?;
        self.others.iter().for_each(|request| add(&mut sum, request));
        Ok(sum)
    }

    /// Reads all requests into memory, which takes half a kilobyte per request.
    ///
    /// # Errors
    /// Fails if the rows cannot be read.
    pub fn in_memory(&self) -> Result<Vec<Request>, PartError> {
        self.all(Vec::new, |all, request| all.push(request.clone()), Vec::extend)
    }
}

/// Response values that are a pod's own name, as most are.
type OwnNames = ValuesByName<()>;

/// Replaces the header value in the row with the pod's name, or clears it if it names no watched pod. Returns the
/// original value, unless it is a pod's own name already seen in a response, or no pods were watched.
fn name_pod(request: &mut Request, joins: &Joins, own_names: &mut OwnNames) -> Option<Arc<str>> {
    let row = &mut request.row;
    let value = row.pod.as_ref().filter(|value| !joins.names.is_empty() && !own_names.has(value))?;
    let name =
        joins.names.find(&joins.addresses, value, TimeSpan::at(row.end).widened(request.uncertainty_ns));
    if name == Some(value) {
        if row.outcome == Outcome::Ok {
            own_names.get(value, || ());
        }
        return Some(Arc::clone(value));
    }
    std::mem::replace(&mut row.pod, name.cloned())
}

/// Converts a newly read row to the coordinator's clock. A request's stamps are close together, so one offset serves
/// them all and preserves the intervals between them.
fn place_request(request: &mut Request, clocks: &Clocks, addresses: Option<&PodAddresses>) {
    let row = &mut request.row;
    let ClockOffset { offset_ns, uncertainty_ns } = clocks.offset(&row.source, row.end);
    let stages = [&mut row.connect_start, &mut row.connected, &mut row.tls, &mut row.sent, &mut row.head];
    for stamp in stages.into_iter().flatten() {
        *stamp = stamp.shifted_ns(-offset_ns);
    }
    row.scheduled = row.scheduled.shifted_ns(-offset_ns);
    row.end = row.end.shifted_ns(-offset_ns);
    request.uncertainty_ns = uncertainty_ns;
    let begun = TimeSpan::at(request.begun()).widened(uncertainty_ns);
    request.routed = addresses.and_then(|all| all.routed_to(&request.row, begun)).cloned();
}

/// Converts a proxy's row to the coordinator's clock. Each stamp has its own offset, as a connection may have been
/// accepted long before the request.
fn place_served(mut row: ServedRow, clocks: &Clocks) -> ServedRow {
    row.accepted = clocks.place(&row.source, row.accepted);
    row.head = row.head.map(|at| clocks.place(&row.source, at));
    row.end = clocks.place(&row.source, row.end);
    row
}
