//! The requests of a run as both ends saw them, on the coordinator's clock.
//!
//! Nearly all were answered, and of these there may be more than fit into memory: what one of them adds to a
//! result is a sum, so that it is enough to go through them. The others are what a run is about, and at hand.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use super::clocks::Clocks;
use super::consumer::KeptConnections;
use crate::record::{ClockOffset, Outcome, RequestRow, RowSource, ServedRow, Stamp};

/// A connection: its load source, and its number there.
pub type Connection = (Arc<str>, u64);

/// A request as both ends saw it, on the coordinator's clock.
#[derive(Clone, Debug)]
pub struct Request {
    /// What the client recorded.
    pub row: RequestRow,
    /// The pod whose proxy recorded it as well.
    pub proxy: Option<Arc<str>>,
    /// What that proxy recorded, where the request is one of [`Requests::others`].
    pub served: Option<Box<ServedRow>>,
    /// The client's stamps are within ± this many nanoseconds of the coordinator's clock.
    pub uncertainty_ns: i64,
}

impl Request {
    /// When the attempt began: connecting, or sending on a connection that stood.
    pub fn begun(&self) -> Stamp {
        self.row.connect_start.or(self.row.sent).unwrap_or(self.row.scheduled)
    }

    /// Whether it opened a connection.
    pub fn is_new_connection(&self) -> bool {
        !self.row.conn_reused && self.row.connect_start.is_some()
    }

    /// The pod that it reached, as either end says.
    pub fn pod(&self) -> Option<&Arc<str>> {
        self.proxy.as_ref().or(self.row.pod.as_ref())
    }

    /// The connection that it was sent on, or was to be.
    pub fn connection(&self) -> Option<Connection> {
        Some((Arc::clone(&self.row.source), self.row.conn?))
    }

    /// What requests are put in order by: their intended send times, and where these are the same their ids.
    pub fn order(&self) -> (Stamp, &str, u64) {
        (self.row.scheduled, &self.row.source, self.row.seq)
    }
}

/// All requests of a run.
#[derive(Debug)]
pub struct Requests<R> {
    /// Those that were not [plainly answered](is_plain), in [order](Request::order).
    pub others: Vec<Request>,
    /// How many there are, these and the others.
    pub all: u64,
    /// Connections that carried a request, not their first, of which the client does not know the pod.
    pub unnamed: HashSet<Connection>,
    /// The pods that requests of kept connections reached.
    pub(super) kept: KeptConnections,
    /// The first intended send time.
    pub(super) first_scheduled: Option<Stamp>,
    /// When the last one ended.
    pub(super) last_end: Option<Stamp>,
    rows: R,
    clocks: Clocks,
    proxied: Proxied,
}

/// Whether a request was answered, and the answer says nothing else.
pub fn is_plain(row: &RequestRow) -> bool {
    row.outcome == Outcome::Ok && row.grpc_status.unwrap_or(0) == 0
}

impl<R: RowSource> Requests<R> {
    /// Goes through the rows for the first time.
    pub(super) fn open(rows: R, clocks: Clocks) -> Result<Self, R::Error> {
        let mut others = Vec::new();
        let mut all = 0;
        let mut unnamed = HashSet::new();
        let (mut first_scheduled, mut last_end) = (None::<Stamp>, None::<Stamp>);
        let (mut proxied, mut kept) = (Proxied::default(), KeptConnections::default());
        rows.requests(&mut |row| {
            let request = place_request(row, &clocks);
            let row = &request.row;
            all += 1;
            first_scheduled = Some(first_scheduled.map_or(row.scheduled, |first| first.min(row.scheduled)));
            last_end = last_end.max(Some(row.end));
            proxied.expect(row);
            kept.see(row);
            if row.conn_reused && row.pod.is_none() {
                unnamed.extend(request.connection());
            }
            if !is_plain(row) {
                others.push(request);
            }
        })?;
        others.sort_unstable_by(|a: &Request, b| a.order().cmp(&b.order()));
        let mut by_id: HashMap<Arc<str>, HashMap<u64, usize>> = HashMap::new();
        for (number, Request { row, .. }) in others.iter().enumerate() {
            by_id.entry(Arc::clone(&row.source)).or_default().entry(row.seq).or_insert(number);
        }
        rows.served(&mut |row| {
            let Some(id) = &row.request else { return };
            proxied.put(&id.source, id.seq, &row.pod);
            let number = by_id.get(id.source.as_str()).and_then(|of_source| of_source.get(&id.seq));
            if let Some(number) = number {
                let request = &mut others[*number];
                request.proxy = Some(Arc::clone(&row.pod));
                request.served = Some(Box::new(place_served(row, &clocks)));
            }
        })?;
        Ok(Self { others, all, unnamed, kept, first_scheduled, last_end, rows, clocks, proxied })
    }

    /// Goes through those that were plainly answered, in any order.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn plain(&self, mut each: impl FnMut(&Request)) -> Result<(), R::Error> {
        self.rows.requests(&mut |row| {
            if is_plain(&row) {
                let proxy = self.proxied.pod(&row).map(Arc::clone);
                each(&Request { proxy, ..place_request(row, &self.clocks) });
            }
        })
    }

    /// Goes through all of them, in any order.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn each(&self, mut each: impl FnMut(&Request)) -> Result<(), R::Error> {
        self.others.iter().for_each(&mut each);
        self.plain(each)
    }
}

/// Which pod's proxy recorded each request: four bytes for each.
#[derive(Debug, Default)]
struct Proxied {
    /// For each load source by the number of the request that of the pod, counted from 1.
    sources: HashMap<Arc<str>, Vec<Option<NonZeroU32>>>,
    /// No request has a higher number.
    highest_seq: u64,
    /// The source that was expected last.
    last: Option<Arc<str>>,
    pods: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, Option<NonZeroU32>>,
}

impl Proxied {
    /// There is such a request. Ids that no request has are not kept: anybody can send some.
    fn expect(&mut self, row: &RequestRow) {
        self.highest_seq = self.highest_seq.max(row.seq);
        if self.last.as_ref() != Some(&row.source) {
            self.sources.entry(Arc::clone(&row.source)).or_default();
            self.last = Some(Arc::clone(&row.source));
        }
    }

    fn put(&mut self, source: &str, seq: u64, pod: &Arc<str>) {
        let Some(pods) = self.sources.get_mut(source).filter(|_| seq <= self.highest_seq) else { return };
        let Ok(seq) = usize::try_from(seq) else { return };
        let number = match self.numbers.get(pod) {
            Some(number) => *number,
            None => {
                self.pods.push(Arc::clone(pod));
                let number = u32::try_from(self.pods.len()).ok().and_then(NonZeroU32::new);
                self.numbers.insert(Arc::clone(pod), number);
                number
            }
        };
        if pods.len() <= seq {
            pods.resize(seq + 1, None);
        }
        pods[seq] = number;
    }

    fn pod(&self, row: &RequestRow) -> Option<&Arc<str>> {
        if self.pods.is_empty() {
            return None;
        }
        let number = (*self.sources.get(&row.source)?.get(usize::try_from(row.seq).ok()?)?)?;
        self.pods.get(number.get() as usize - 1)
    }
}

/// A request's stamps lie close together, so one offset serves for all, and keeps their distances.
fn place_request(mut row: RequestRow, clocks: &Clocks) -> Request {
    let ClockOffset { offset_ns, uncertainty_ns } = clocks.offset(&row.source, row.end);
    let stages = [&mut row.connect_start, &mut row.connected, &mut row.tls, &mut row.sent, &mut row.head];
    for stamp in stages.into_iter().flatten() {
        *stamp = stamp.shifted_ns(-offset_ns);
    }
    row.scheduled = row.scheduled.shifted_ns(-offset_ns);
    row.end = row.end.shifted_ns(-offset_ns);
    Request { row, proxy: None, served: None, uncertainty_ns }
}

/// A connection may have been accepted long before the request.
fn place_served(mut row: ServedRow, clocks: &Clocks) -> ServedRow {
    row.accepted = clocks.place(&row.source, row.accepted);
    row.head = row.head.map(|at| clocks.place(&row.source, at));
    row.end = clocks.place(&row.source, row.end);
    row
}
