//! Attempts by gateways, held in memory and readable like the rows of a run.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::known_services::ServiceNumber;
use crate::timeline::TimeSpan;
use crate::timeline::drop_policy::OutcomeClass;
use rolldrop_record::parts::{Lane, PartError};
use rolldrop_record::{
    ClockOffset, GapRow, LoggedAttempt, LoggedRequest, LoggedUpstream, Outcome, Phase, RequestRow, RowSource,
    SERVER_ERROR, ServedRow, Stamp, StreamRow,
};

/// Status with which a gateway reports that an upstream failed.
const BAD_GATEWAY: u16 = 502;
/// Maximum number of attempts to accept from a line that only counts them.
const MOST_HIDDEN: usize = 20;

/// Number of a consumer: a gateway's log, a route in it, and the Service whose address it uses instead of the pods'.
pub(super) type Consumer = u32;

/// Destination of requests, as named by a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Upstream<A = IpAddr> {
    /// The pod with this address.
    Pod(A),
    /// One of the pods of a Service.
    Service(ServiceNumber),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ConsumerKey {
    log: Arc<str>,
    route: Option<Arc<str>>,
    service: Option<ServiceNumber>,
}

/// Upstreams that the lines of a log and route have named so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NamedUpstreams {
    #[default]
    None,
    OnlyService(ServiceNumber),
    Others,
}

/// Fate of a request after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptFate {
    /// It was the last attempt, so the client got its outcome.
    Last,
    /// A later attempt succeeded.
    Saved,
    /// A later attempt failed too.
    Repeated,
}

/// Number that stands for an address but takes fewer bytes.
type AddressNumber = NonZeroU32;

/// An attempt at a pod, stored compactly because there may be a million.
#[derive(Clone, Copy, Debug)]
struct KeptAttempt<A = IpAddr> {
    consumer: Consumer,
    /// Earliest time at which the attempt may have begun, on the gateway's clock until the attempt is chosen.
    begun: Stamp,
    /// Maximum time from `begun` to the actual beginning, in microseconds.
    unsure_us: u32,
    /// Duration in milliseconds, because a stream may take days.
    took_ms: u32,
    /// `None` if the log does not show it.
    address: Option<A>,
    /// `None` if the log does not show it.
    outcome: Option<Outcome>,
    /// False if the response has a good status, but the log does not show that it was complete. A response that the
    /// gateway itself sent counts as certain, because it is not from a pod.
    is_certain: bool,
    status: Option<u16>,
    /// True if the upstream responded with this status.
    is_answer: bool,
    fate: AttemptFate,
}

/// Attempts from the last minutes, in the order in which they were read.
#[derive(Debug, Default)]
pub(super) struct KeptAttempts {
    attempts: VecDeque<KeptAttempt<AddressNumber>>,
    /// Attempts that lost their requests. There are few of them, so they are kept longer.
    lost: VecDeque<KeptAttempt<AddressNumber>>,
    /// Time at which each consumer last sent a request to an upstream.
    used: HashMap<Upstream<AddressNumber>, BTreeMap<Consumer, Stamp>>,
    addresses: AddressTable,
    consumers: Vec<ConsumerKey>,
    numbers: HashMap<ConsumerKey, Consumer>,
    /// Upstreams named by lines so far, by consumer without its Service.
    named: HashMap<Consumer, NamedUpstreams>,
    /// Consumers with lines that do not show retries.
    hides_retries: HashSet<Consumer>,
}

/// Addresses of attempts. None is forgotten, because there are far fewer addresses than attempts.
#[derive(Debug, Default)]
struct AddressTable {
    /// Addresses by number, counted from 1.
    addresses: Vec<IpAddr>,
    numbers: HashMap<IpAddr, AddressNumber>,
}

impl AddressTable {
    /// Returns the number of an address, assigning one if it has none.
    fn number_of(&mut self, address: IpAddr) -> AddressNumber {
        *self.numbers.entry(address).or_insert_with(|| {
            self.addresses.push(address);
            let last = u32::try_from(self.addresses.len()).ok().and_then(AddressNumber::new);
            last.unwrap_or(AddressNumber::MAX)
        })
    }

    fn address(&self, number: AddressNumber) -> IpAddr {
        self.addresses[number.get() as usize - 1]
    }
}

impl KeptAttempts {
    /// Adds the attempts of a line. `service_of` returns the Service that an upstream stands for, if any. Returns the
    /// addresses of pods that responded, each with the latest time at which the attempt may have begun.
    pub(super) fn add(
        &mut self,
        source: &Arc<str>,
        line: &LoggedRequest,
        service_of: impl Fn(&LoggedUpstream) -> Option<ServiceNumber>,
    ) -> Vec<(IpAddr, Stamp)> {
        let key = |service| ConsumerKey { log: Arc::clone(source), route: line.route.clone(), service };
        let consumer = self.number_of(key(None));
        let shown = attempts(consumer, line);
        let named = self.named.entry(consumer).or_default();
        let of_line = named.add(shown.iter().filter_map(|attempt| attempt.address).map(&service_of));
        let mut reached = Vec::new();
        for attempt in shown {
            let service = match attempt.address {
                Some(upstream) => service_of(upstream),
                None => of_line.filter(|_| !line.attempts.is_empty() || attempt.is_lost()),
            };
            let attempt = match service {
                Some(_) => KeptAttempt { consumer: self.number_of(key(service)), address: None, ..attempt },
                None => attempt,
            };
            if line.attempts_made.is_none() {
                self.hides_retries.insert(attempt.consumer);
            }
            let attempt = attempt.named(|upstream| match upstream {
                LoggedUpstream::Address(address) => Some(self.addresses.number_of(address.ip())),
                LoggedUpstream::Host(_) | LoggedUpstream::Unnamed => None,
            });
            if let Some(address) = attempt.address.filter(|_| attempt.outcome == Some(Outcome::Ok)) {
                let latest = attempt.begun + Duration::from_micros(attempt.unsure_us.into());
                reached.push((self.addresses.address(address), latest));
            }
            if attempt.is_lost() {
                self.lost.push_back(attempt);
            }
            let upstream = service.map(Upstream::Service).or(attempt.address.map(Upstream::Pod));
            if let Some(upstream) = upstream {
                let last = self.used.entry(upstream).or_default().entry(attempt.consumer).or_default();
                *last = attempt.ended().max(*last);
            }
            self.attempts.push_back(attempt);
        }
        reached
    }

    /// Returns the number of attempts.
    pub(super) fn len(&self) -> usize {
        self.attempts.len()
    }

    fn number_of(&mut self, key: ConsumerKey) -> Consumer {
        let next = Consumer::try_from(self.consumers.len()).unwrap_or(Consumer::MAX);
        *self.numbers.entry(key).or_insert_with_key(|key| {
            self.consumers.push(key.clone());
            next
        })
    }

    /// Forgets attempts that ended outside `kept`. Attempts that lost their requests, and the consumers that used an
    /// address, are kept from `lost_from` on, and the consumers of `asked_for` in any case. `offset` returns the offset
    /// of a log's clock.
    pub(super) fn forget_outside(
        &mut self,
        kept: RangeInclusive<Stamp>,
        lost_from: Stamp,
        asked_for: &HashSet<IpAddr>,
        offset: impl Fn(&Arc<str>) -> ClockOffset,
    ) {
        let mut offsets_ns: HashMap<Consumer, i64> = HashMap::new();
        let mut corrected = |at: Stamp, consumer: Consumer| {
            let offset_ns = || offset(&self.consumers[consumer as usize].log).offset_ns;
            at.shifted_ns(-*offsets_ns.entry(consumer).or_insert_with(offset_ns))
        };
        let lost = lost_from..=*kept.end();
        for (attempts, kept) in [(&mut self.attempts, &kept), (&mut self.lost, &lost)] {
            while attempts.front().is_some_and(|of| !kept.contains(&corrected(of.ended(), of.consumer))) {
                attempts.pop_front();
            }
        }
        self.used.retain(|upstream, consumers| {
            if let Upstream::Pod(number) = upstream
                && asked_for.contains(&self.addresses.address(*number))
            {
                return true;
            }
            consumers.retain(|consumer, last| lost.contains(&corrected(*last, *consumer)));
            !consumers.is_empty()
        });
    }

    /// Returns the log, the address and the earliest time of each attempt that certainly succeeded.
    pub(super) fn responses(&self) -> impl Iterator<Item = (&Arc<str>, IpAddr, Stamp)> {
        let is_good = |of: &&KeptAttempt<_>| of.outcome == Some(Outcome::Ok) && of.is_certain;
        let answered = self.attempts.iter().filter(is_good);
        answered.filter_map(|of| {
            Some((&self.consumer(of.consumer).log, self.addresses.address(of.address?), of.begun))
        })
    }

    /// Returns the log of a consumer.
    pub(super) fn log_of(&self, consumer: Consumer) -> &Arc<str> {
        &self.consumer(consumer).log
    }

    fn consumer(&self, consumer: Consumer) -> &ConsumerKey {
        &self.consumers[consumer as usize]
    }

    /// Returns the consumers that sent requests to one of these Services, or to a pod's address if `is_since` returns
    /// true for a consumer's log and its last time there.
    pub(super) fn consumers_of(
        &self,
        address: IpAddr,
        is_since: impl Fn(&Arc<str>, Stamp) -> bool,
        services: &[ServiceNumber],
    ) -> Vec<Consumer> {
        let used = |upstream| self.used.get(&upstream).into_iter().flatten();
        let pod = self.addresses.numbers.get(&address).map(|number| Upstream::Pod(*number));
        let of_pod = pod.into_iter().flat_map(used);
        let of_pod = of_pod.filter(|(consumer, last)| is_since(self.log_of(**consumer), **last));
        let of_services = services.iter().flat_map(|service| used(Upstream::Service(*service)));
        of_services.chain(of_pod).map(|(consumer, _)| *consumer).collect()
    }

    /// Returns true if the lines of one of these consumers do not show retries.
    pub(super) fn may_hide_retries(&self, consumers: &[Consumer]) -> bool {
        consumers.iter().any(|consumer| self.hides_retries.contains(consumer))
    }

    /// Returns the addresses that these attempts' consumers sent requests to.
    pub(super) fn used_by(&self, chosen: &ChosenAttempts) -> HashSet<IpAddr> {
        let is_chosen = |consumers: &BTreeMap<Consumer, Stamp>| {
            consumers.keys().any(|consumer| chosen.targets.contains_key(consumer))
        };
        let used = self.used.iter().filter(|(_, consumers)| is_chosen(consumers));
        let address = |upstream: &Upstream<AddressNumber>| match upstream {
            Upstream::Pod(number) => Some(self.addresses.address(*number)),
            Upstream::Service(_) => None,
        };
        used.filter_map(|(upstream, _)| address(upstream)).collect()
    }

    /// Returns the attempts of these consumers that were under way in a period. `offset` returns the offset of a log's
    /// clock.
    pub(super) fn choose(
        &self,
        consumers: &[Consumer],
        period: TimeSpan,
        offset: impl Fn(&Arc<str>) -> ClockOffset,
    ) -> ChosenAttempts {
        self.choose_from(&self.attempts, consumers, period, offset)
    }

    /// Does the same for attempts that lost their requests.
    pub(super) fn choose_lost(
        &self,
        consumers: &[Consumer],
        period: TimeSpan,
        offset: impl Fn(&Arc<str>) -> ClockOffset,
    ) -> ChosenAttempts {
        self.choose_from(&self.lost, consumers, period, offset)
    }

    fn choose_from(
        &self,
        attempts: &VecDeque<KeptAttempt<AddressNumber>>,
        consumers: &[Consumer],
        period: TimeSpan,
        offset: impl Fn(&Arc<str>) -> ClockOffset,
    ) -> ChosenAttempts {
        let mut chosen = ChosenAttempts::default();
        for consumer in consumers {
            let ConsumerKey { log, route, service } = self.consumer(*consumer);
            let name = target_name(log, route.as_deref(), *service).into();
            chosen.targets.insert(*consumer, ChosenTarget { name, service: *service });
            let begin = || ChosenLog { clock: offset(log), attempts: Vec::new() };
            chosen.logs.entry(Arc::clone(log)).or_insert_with(begin);
        }
        for attempt in attempts.iter().filter(|attempt| chosen.targets.contains_key(&attempt.consumer)) {
            let Some(log) = chosen.logs.get_mut(&self.consumer(attempt.consumer).log) else { continue };
            let unsure = Duration::from_micros(attempt.unsure_us.into());
            let begun = attempt.begun.shifted_ns(-log.clock.offset_ns) + unsure / 2;
            if period.meets(begun, begun + attempt.took()) {
                let attempt = attempt.named(|number| Some(self.addresses.address(number)));
                log.attempts.push(KeptAttempt { begun, ..attempt });
            }
        }
        chosen
    }
}

impl NamedUpstreams {
    /// Adds the upstreams of a line, each with the Service that it stands for, if any. Returns the Service that
    /// attempts without an upstream belong to: the line's Service or, if the line names none, the only upstream so far.
    fn add(&mut self, of_line: impl Iterator<Item = Option<ServiceNumber>>) -> Option<ServiceNumber> {
        let mut first = None;
        for service in of_line {
            first = first.or(service);
            *self = match (*self, service) {
                (Self::None, Some(service)) => Self::OnlyService(service),
                (Self::OnlyService(known), Some(service)) if known == service => *self,
                _ => Self::Others,
            };
        }
        first.or(match self {
            Self::OnlyService(service) => Some(*service),
            Self::None | Self::Others => None,
        })
    }
}

/// Returns the name of a consumer. Reports show this name if the consumer uses the pods' own addresses.
fn target_name(source: &str, route: Option<&str>, service: Option<ServiceNumber>) -> String {
    let route = route.map(|route| format!(" (route {route})")).unwrap_or_default();
    let service = service.map(|service| format!(" (Service {service})")).unwrap_or_default();
    format!("{source}{route}{service}")
}

/// Returns the attempts of a line, including those that the line only counts.
fn attempts(consumer: Consumer, line: &LoggedRequest) -> Vec<KeptAttempt<&LoggedUpstream>> {
    let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let took = line.took.unwrap_or_default();
    let resolution_us =
        us(Duration::from_nanos(u64::try_from(line.latest.ns_since(line.earliest)).unwrap_or_default()));
    let earlier = if line.has_succeeded() { AttemptFate::Saved } else { AttemptFate::Repeated };
    const NOTHING: LoggedAttempt =
        LoggedAttempt { upstream: LoggedUpstream::Unnamed, outcome: None, status: None, took: None };
    let shown: Vec<&LoggedAttempt> = match line.attempts.is_empty() {
        true => vec![&NOTHING],
        false => line.attempts.iter().collect(),
    };
    let made = line.attempts_made.map_or(0, |made| made as usize);
    let hidden = made.saturating_sub(shown.len()).min(MOST_HIDDEN);
    let mut all: Vec<KeptAttempt<&LoggedUpstream>> = Vec::with_capacity(hidden + shown.len());
    let mut passed = Duration::ZERO;
    // Without the durations of all earlier attempts, an attempt may have begun at any time during the request.
    let mut is_placed = hidden == 0;
    let count = hidden + shown.len();
    for (number, attempt) in std::iter::repeat_n(&NOTHING, hidden).chain(shown).enumerate() {
        let is_last = number + 1 == count;
        let (outcome, status) = match is_last {
            true => last_outcome(attempt, line),
            false => earlier_outcome(attempt),
        };
        all.push(KeptAttempt {
            consumer,
            begun: line.earliest + passed,
            unsure_us: resolution_us.saturating_add(if is_placed { 0 } else { us(took) }),
            took_ms: u32::try_from(attempt.took.unwrap_or(took.saturating_sub(passed)).as_millis())
                .unwrap_or(u32::MAX),
            address: Some(&attempt.upstream).filter(|upstream| **upstream != LoggedUpstream::Unnamed),
            outcome,
            is_certain: !is_last
                || attempt.outcome.is_some()
                || outcome != Some(Outcome::Ok)
                || line.attempts.is_empty(),
            status,
            is_answer: attempt.outcome == Some(Outcome::HttpError),
            fate: if is_last { AttemptFate::Last } else { earlier },
        });
        match attempt.took {
            Some(took) if is_placed => passed += took,
            _ => is_placed = false,
        }
    }
    all
}

/// Returns the outcome and status of the attempt that decided what the client got.
fn last_outcome(attempt: &LoggedAttempt, line: &LoggedRequest) -> (Option<Outcome>, Option<u16>) {
    let status = attempt.status.or(line.status);
    let by_status = |status| if status < SERVER_ERROR { Outcome::Ok } else { Outcome::HttpError };
    let outcome = match (attempt.outcome, status) {
        // The pod had not responded, and the client gave up waiting.
        (None, _) if line.client_left && attempt.status.is_none() => Some(Outcome::ResponseTimeout),
        _ if line.client_left => Some(Outcome::Cancelled),
        // An app's own response about the request, such as 404, is not a loss.
        (Some(Outcome::HttpError), Some(status)) => Some(by_status(status)),
        (Some(outcome), _) => Some(outcome),
        (None, Some(status)) => Some(by_status(status)),
        (None, None) => None,
    };
    (outcome, status)
}

/// Returns the outcome and status of an attempt that was not the last. It failed, because the gateway tried again,
/// unless its response redirected the request.
fn earlier_outcome(attempt: &LoggedAttempt) -> (Option<Outcome>, Option<u16>) {
    if attempt.outcome == Some(Outcome::Ok) {
        return (attempt.outcome, attempt.status);
    }
    let failed = attempt.outcome.unwrap_or(Outcome::HttpError);
    let status = attempt.status.filter(|status| *status >= SERVER_ERROR).unwrap_or(BAD_GATEWAY);
    (Some(failed), Some(status))
}

/// Attempts chosen for one termination, on the watch's clock.
#[derive(Debug, Default)]
pub(super) struct ChosenAttempts {
    logs: BTreeMap<Arc<str>, ChosenLog>,
    /// Targets of the rows, by consumer.
    targets: BTreeMap<Consumer, ChosenTarget>,
}

/// Target of the chosen rows.
#[derive(Debug)]
pub(super) struct ChosenTarget {
    /// Name of the target.
    pub(super) name: Arc<str>,
    /// Service whose address the consumer uses; `None` if it uses the pods' own addresses.
    pub(super) service: Option<ServiceNumber>,
}

/// Chosen attempts of one log. The position of an attempt is the number of its row.
#[derive(Debug)]
struct ChosenLog {
    clock: ClockOffset,
    attempts: Vec<KeptAttempt>,
}

impl ChosenLog {
    /// Returns the uncertainty of the times, in ± nanoseconds.
    fn uncertainty_ns(&self) -> i64 {
        let unsure_us = self.attempts.iter().map(|attempt| attempt.unsure_us).max().unwrap_or(0);
        self.clock.uncertainty_ns.saturating_add(i64::from(unsure_us) * 500)
    }
}

impl ChosenAttempts {
    /// Returns the number of attempts.
    pub(super) fn len(&self) -> u64 {
        self.logs.values().map(|log| log.attempts.len() as u64).sum()
    }

    /// Returns the logs, each with the uncertainty of its times in ± nanoseconds.
    pub(super) fn logs(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.logs.iter().map(|(source, log)| (source, log.uncertainty_ns()))
    }

    /// Returns the targets.
    pub(super) fn targets(&self) -> impl Iterator<Item = &ChosenTarget> {
        self.targets.values()
    }

    /// Returns the number of attempts in a period, by the Service that they were sent to.
    pub(super) fn at_services(&self, period: TimeSpan) -> BTreeMap<ServiceNumber, u64> {
        let mut at_services = BTreeMap::new();
        for attempt in self.all() {
            if let Some(service) = self.service_of(attempt) {
                *at_services.entry(service).or_default() +=
                    u64::from(period.meets(attempt.begun, attempt.ended()));
            }
        }
        at_services
    }

    fn service_of(&self, attempt: &KeptAttempt) -> Option<ServiceNumber> {
        self.targets.get(&attempt.consumer)?.service
    }

    /// Returns the addresses of all attempts.
    pub(super) fn addresses(&self) -> HashSet<IpAddr> {
        self.all().filter_map(|attempt| attempt.address).collect()
    }

    /// Returns the fate of a row's request, and the Service that the attempt was sent to, if the attempt names no pod.
    pub(super) fn fate(&self, row: &RequestRow) -> Option<(AttemptFate, Option<ServiceNumber>)> {
        let number = usize::try_from(row.seq).ok()?;
        let attempt = self.logs.get(&row.source)?.attempts.get(number)?;
        Some((attempt.fate, self.service_of(attempt)))
    }

    /// Returns the times at which an upstream lost requests with a matching outcome. A stream may have begun long
    /// before.
    pub(super) fn lost_at(
        &self,
        upstream: Upstream,
        is_meant: impl Fn(Outcome) -> bool,
    ) -> impl Iterator<Item = Stamp> {
        let is_there = move |of: &&KeptAttempt| match upstream {
            Upstream::Pod(address) => of.address == Some(address),
            Upstream::Service(service) => self.service_of(of) == Some(service),
        };
        let lost = self.all().filter(is_there).filter(|of| of.is_lost());
        lost.filter(move |of| of.outcome.is_some_and(&is_meant)).map(KeptAttempt::ended)
    }

    /// Returns the number of attempts that may have been under way at an address in a period, and whose outcome the log
    /// does not show with certainty or at all. Logs may omit the address if a response was cut.
    pub(super) fn unobserved_at(&self, address: IpAddr, period: TimeSpan) -> u64 {
        self.unobserved(address, period).count() as u64
    }

    /// Returns true if any of these attempts had a response, which may have been cut.
    pub(super) fn may_hide_cuts_at(&self, address: IpAddr, period: TimeSpan) -> bool {
        self.unobserved(address, period).any(|of| of.status.is_some())
    }

    fn unobserved(&self, address: IpAddr, period: TimeSpan) -> impl Iterator<Item = &KeptAttempt> {
        let is_unsure = |of: &&KeptAttempt| of.outcome.is_none() || !of.is_certain;
        let may_be_there = move |of: &&KeptAttempt| match of.address {
            Some(of) => of == address,
            None => of.status.is_some(),
        };
        self.logs.values().flat_map(move |log| {
            let period = period.widened(log.uncertainty_ns());
            let unsure = log.attempts.iter().filter(is_unsure).filter(may_be_there);
            unsure.filter(move |of| period.meets(of.begun, of.ended()))
        })
    }

    fn all(&self) -> impl Iterator<Item = &KeptAttempt> {
        self.logs.values().flat_map(|log| &log.attempts)
    }
}

impl<A: Copy> KeptAttempt<A> {
    /// Returns true if the request was lost for its client.
    fn is_lost(&self) -> bool {
        let is_dropped =
            |outcome| OutcomeClass::of_answer(outcome, self.status, None) == OutcomeClass::Dropped;
        self.fate == AttemptFate::Last && self.outcome.is_some_and(is_dropped)
    }

    fn took(&self) -> Duration {
        Duration::from_millis(self.took_ms.into())
    }

    fn ended(&self) -> Stamp {
        self.begun + self.took()
    }

    /// Returns the attempt with its address, if any, replaced by a different name for it.
    fn named<B>(self, name: impl FnOnce(A) -> Option<B>) -> KeptAttempt<B> {
        let Self {
            consumer, begun, unsure_us, took_ms, outcome, is_certain, status, is_answer, fate, ..
        } = self;
        let address = self.address.and_then(name);
        KeptAttempt {
            consumer,
            begun,
            unsure_us,
            took_ms,
            address,
            outcome,
            is_certain,
            status,
            is_answer,
            fate,
        }
    }
}

impl KeptAttempt {
    /// Writes the attempt to a row whose other fields are already set.
    fn fill(&self, row: &mut RequestRow) {
        (row.scheduled, row.sent, row.end) = (self.begun, Some(self.begun), self.ended());
        row.outcome = self.outcome.unwrap_or(Outcome::Cancelled);
        row.final_outcome = row.outcome;
        row.status = self.status;
        row.routed_to = self.address.map(|address| SocketAddr::new(address, 0));
        // Name the pod that sent an error, so that the error is not taken for the gateway's own.
        let is_pods = self.is_answer && row.outcome != Outcome::Ok;
        row.pod = self.address.filter(|_| is_pods).map(|address| address.to_string().into());
    }
}

impl RowSource for ChosenAttempts {
    fn lanes(&self) -> usize {
        1
    }

    fn requests(&self, lanes: &mut [&mut dyn Lane<RequestRow>]) -> Result<(), PartError> {
        let Some(lane) = lanes.first_mut() else { return Ok(()) };
        let at = Stamp::default();
        for (source, log) in &self.logs {
            let mut row = RequestRow::not_sent(Arc::clone(source), 0, "".into(), Phase::Main, at, at);
            for (seq, attempt) in (0..).zip(&log.attempts) {
                row.seq = seq;
                if let Some(target) = self.targets.get(&attempt.consumer) {
                    row.target = Arc::clone(&target.name);
                }
                attempt.fill(&mut row);
                lane.row().clone_from(&row);
                lane.take();
            }
        }
        Ok(())
    }

    fn streams(&self, _: &mut [&mut dyn Lane<StreamRow>]) -> Result<(), PartError> {
        Ok(())
    }

    fn gaps(&self, _: &mut [&mut dyn Lane<GapRow>]) -> Result<(), PartError> {
        Ok(())
    }

    fn has_served(&self) -> bool {
        false
    }

    fn served(&self, _: &mut [&mut dyn Lane<ServedRow>]) -> Result<(), PartError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_attempt_takes_32_bytes() {
        assert_eq!(size_of::<KeptAttempt<AddressNumber>>(), 32);
    }
}
