//! A pod `b` whose requests are in the journal of its own sidecar. It is deleted at 100 s.

use super::service_lines::{WEB, show_service, show_slice};
use super::*;
use crate::model::{SIDECAR_ENDED, TrafficWitness};
use rolldrop_record::{Protocol, ServedEnd, ServedRow};

const LOG: &str = "shop/b/rolldrop";
const SOURCE: &str = "shop/deployment/web";
const UID: &str = "uid-b";
/// The sidecar's clock minus ours, in milliseconds.
const AHEAD_MS: i64 = 3_000;

/// Returns the row of a request that began at `ms` and took 2 ms.
fn row(ms: i64, ended: ServedEnd, status: Option<u16>) -> ServedRow {
    let at = |ms| at(ms + AHEAD_MS);
    ServedRow {
        source: "b".into(),
        request: None,
        pod: "b".into(),
        peer_addr: "".into(),
        protocol: Protocol::Http1,
        accepted: at(ms),
        head: Some(at(ms)),
        end: at(ms + 2),
        status,
        grpc_status: None,
        ended,
        detail: None,
        conn: u64::try_from(ms).unwrap(),
        conn_first_request: true,
        stream: None,
        bytes_from_client: None,
        bytes_from_app: None,
    }
}

fn fine_row(ms: i64) -> ServedRow {
    row(ms, ServedEnd::Complete, Some(200))
}

impl World {
    /// Reads the journal of the sidecar in `b`.
    fn read_journal(&mut self, rows: Vec<ServedRow>) {
        assert!(self.traffic.add_journal(&LOG.into(), UID, SOURCE));
        let clock = ClockOffset { offset_ns: AHEAD_MS * MS, uncertainty_ns: MS };
        self.traffic.set_clock(UID, LOG, clock);
        self.traffic.add_served(UID, LOG, rows);
    }

    /// Ends the journal at 101 s.
    fn end_journal(&mut self) {
        self.traffic.end_journal(UID, LOG, at(101_000));
    }
}

/// Returns the traffic shown by a journal that has these rows and, until 100.5 s, ten good requests per second.
fn shown(rows: Vec<ServedRow>) -> TerminationTraffic {
    let mut world = World::new();
    world.delete(100_000, "b");
    world.read_journal((40_000..100_500).step_by(100).map(fine_row).chain(rows).collect());
    world.end_journal();
    world.explain(110_000).1
}

#[test]
fn journal_shows_requests_that_reached_pod() {
    let refused = |ms| row(ms, ServedEnd::UpstreamRefused, None);
    let traffic = shown((100_600..101_000).step_by(100).map(refused).collect());
    assert_eq!(traffic.seen_by, TrafficWitness::Sidecar);
    assert_eq!(traffic.lost, Bounded::exactly(4), "{traffic:?}");
    assert_eq!(traffic.by_cause, BTreeMap::from([(Cause::RoutedToDeadPod, Bounded::exactly(4))]));
    assert_eq!((traffic.streams_cut, traffic.not_observable), (Some(Bounded::default()), 0));
    // The pod was healthy for a minute of its journal, in which it lost nothing.
    assert_eq!(traffic.background, Some(Bounded::exactly(0)));
    let source = BTreeSet::from([SOURCE.to_owned()]);
    let consumers = SeenConsumers { seen: source.clone(), with_gaps: source, declared: None };
    assert_eq!(traffic.consumers, consumers);
    assert!((0.0019..0.0021).contains(&traffic.clock_width_s), "the clock is measured: {traffic:?}");
}

#[test]
fn journal_bounds_windows_only_from_below() {
    let traffic = shown(Vec::new());
    let [window] = &traffic.windows[..] else { panic!("{traffic:?}") };
    assert_eq!((window.upper_s, window.upper_basis, window.censored_reason), (None, None, None));
    assert_eq!(window.consumer, "clients of shop/deployment/web");
    // t0 is known to within a second.
    assert!(window.lower_s.is_none_or(|lower_s| lower_s <= 0.5), "{window:?}");
    let late = shown(vec![fine_row(100_900 + 10_000 - 1)]);
    assert!(late.windows[0].lower_s.is_some(), "{late:?}");
    // Requests after the sidecar's end are unknown.
    let [gap] = &traffic.gaps[..] else { panic!("{traffic:?}") };
    assert_eq!((&*gap.source, gap.from_ns, gap.why.as_deref()), (LOG, at(101_000), Some(SIDECAR_ENDED)));
}

#[test]
fn row_ends_become_outcomes() {
    use ServedEnd::{Cancelled, ClientGone, Complete, Open, ProxyExhausted, UpstreamEof, UpstreamReset};
    let one = |row: ServedRow| {
        let traffic = shown(vec![row]);
        let causes: Vec<Cause> = traffic.by_cause.keys().copied().collect();
        (causes, traffic.streams_cut.map(|cut| cut.at_least), traffic.not_observable)
    };
    let of = |ended, status| one(row(100_550, ended, status));
    let lost = |cause: Cause, cut| (vec![cause], Some(cut), 0);
    assert_eq!(of(Complete, Some(404)), (Vec::new(), Some(0), 0));
    assert_eq!(of(Complete, Some(500)), (Vec::new(), Some(0), 0), "the app's own error");
    assert_eq!(of(Complete, Some(503)), lost(Cause::RefusedWhileEnding, 0));
    assert_eq!(
        one(ServedRow { grpc_status: Some(14), ..row(100_550, Complete, Some(200)) }),
        lost(Cause::RefusedWhileEnding, 0)
    );
    assert_eq!(of(UpstreamReset, None), lost(Cause::AcceptQueueReset, 0));
    let kept = ServedRow { conn_first_request: false, ..row(100_550, UpstreamReset, None) };
    assert_eq!(one(kept), lost(Cause::KilledInFlight, 0));
    assert_eq!(of(UpstreamEof, None), lost(Cause::KilledInFlight, 0));
    assert_eq!(of(UpstreamReset, Some(200)), lost(Cause::KilledInFlight, 1));
    assert_eq!(of(UpstreamEof, Some(200)), lost(Cause::KilledInFlight, 1));
    assert_eq!(of(ClientGone, Some(200)), (Vec::new(), Some(0), 0));
    for ended in [Cancelled, ProxyExhausted, Open] {
        assert_eq!(of(ended, None), (Vec::new(), None, 1), "{ended}");
        assert_eq!(of(ended, Some(200)), (Vec::new(), None, 1), "{ended}");
    }
    // A connection that the sidecar cannot inspect may have carried any requests.
    let connection = ServedRow { protocol: Protocol::Tls, head: None, ..row(99_000, UpstreamReset, None) };
    let connection = ServedRow { end: at(100_700 + AHEAD_MS), ..connection };
    assert_eq!(one(connection), (Vec::new(), None, 1));
    assert_eq!(
        shown(vec![row(100_550, ClientGone, None)]).lost,
        Bounded::exactly(1),
        "its client gave up waiting"
    );
}

#[test]
fn later_row_replaces_open_response() {
    let open = ServedRow { ended: ServedEnd::Open, ..fine_row(100_450) };
    let cut = row(100_450, ServedEnd::UpstreamEof, Some(200));
    let traffic = shown(vec![open.clone(), open, cut]);
    assert_eq!((traffic.lost, traffic.not_observable), (Bounded::exactly(1), 0), "{traffic:?}");
}

/// A gateway that names the pod logs each request as well.
#[test]
fn journal_counts_only_where_no_gateway_names_pod() {
    for address in ["10.0.0.1", "10.0.0.2"] {
        let mut world = World::new();
        for ms in (0..100_400).step_by(100) {
            world.log(ms, 200, fine(address));
        }
        world.delete(100_000, "b");
        let refused = row(100_600, ServedEnd::UpstreamRefused, None);
        world.read_journal((0..100_400).step_by(100).map(fine_row).chain([refused]).collect());
        world.end_journal();
        let (_, traffic) = world.explain(180_000);
        let lost = if address == "10.0.0.2" { 0 } else { 1 };
        assert_eq!(traffic.lost, Bounded::exactly(lost), "{address}: {traffic:?}");
        assert_eq!(traffic.gaps.len() as u64, lost, "{address}: {traffic:?}");
    }
}

#[test]
fn journal_reports_only_its_own_gaps() {
    let mut world = World::new();
    world.delete(100_000, "b");
    world.read_journal((40_000..100_500).step_by(100).map(fine_row).collect());
    let gap = |source: &str, from_ms| LogGap {
        source: source.to_owned(),
        from_ns: at(from_ms),
        to_ns: Some(at(from_ms + 100)),
        why: Some("rows missing".to_owned()),
    };
    world.traffic.add_journal_gap(UID, gap(LOG, 100_200));
    world.traffic.add_journal_gap(UID, gap(LOG, 50_000));
    world.traffic.add_gap(gap("edge/envoy-1/envoy", 100_200));
    let (end, traffic) = world.explain(110_000);
    // The watch ended before the sidecar did.
    let whys: Vec<_> = traffic.gaps.iter().map(|gap| gap.why.as_deref().unwrap()).collect();
    assert_eq!(whys, ["rows missing", INTERRUPTED], "{traffic:?}");
    world.end_journal();
    let traffic = world.traffic.explain(&end, at(110_000)).unwrap().unwrap();
    let whys: Vec<_> = traffic.gaps.iter().map(|gap| gap.why.as_deref().unwrap()).collect();
    assert_eq!(whys, ["rows missing", SIDECAR_ENDED], "{traffic:?}");
}

#[test]
fn journal_without_clock_shows_nothing() {
    let mut world = World::new();
    world.delete(100_000, "b");
    assert!(world.traffic.add_journal(&LOG.into(), UID, SOURCE));
    world.traffic.add_served(UID, LOG, (40_000..100_500).step_by(100).map(fine_row).collect());
    world.end_journal();
    let end = world.watch.settled(at(110_000)).remove(0);
    assert_eq!(world.traffic.explain(&end, at(110_000)).unwrap(), None);
}

#[test]
fn journal_belongs_to_one_source() {
    let mut world = World::new();
    world.read_journal(Vec::new());
    assert!(world.traffic.add_journal(&LOG.into(), UID, SOURCE));
    assert!(!world.traffic.add_journal(&LOG.into(), UID, "shop/pod/b"));
    assert!(world.traffic.add_journal(&LOG.into(), "uid-of-next-b", "shop/pod/b"), "a pod of the same name");
    // Journals of unknown pods, and of pods that are gone, are forgotten.
    world.traffic.forget_before(at(0));
    assert!(world.traffic.add_journal(&LOG.into(), "uid-of-next-b", SOURCE));
}

/// A gateway that names only the pod's Service says nothing about the background of its pods.
#[test]
fn journal_does_not_change_service_background() {
    let background = |has_journal: bool| {
        let mut world = World::new();
        show_service(&mut world, 0, "web", WEB);
        show_slice(&mut world, 0, "web", &["a", "b", "c"]);
        log_while_pod_ends(&mut world, |world, _, ms| world.log(ms, 200, fine(WEB)));
        if has_journal {
            world.read_journal((40_000..100_500).step_by(100).map(fine_row).collect());
            world.end_journal();
        }
        world.explain(180_000).1.background
    };
    assert_eq!((background(true), background(false)), (Some(Bounded::exactly(0)), Some(Bounded::exactly(0))));
}
