//! Two simulated gateways with known ground truth, whose logs are mangled on their way to the watch.
//!
//! Most pods' addresses are reassigned to new pods within a second. The lines are in the formats of nginx and Traefik,
//! and the real parser reads them. No line is delivered twice, because `drive::observe::gateway_logs` removes
//! duplicates.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldrop_accesslog::LogFormat;

use super::*;

/// Clocks of the gateways minus the watch's, in milliseconds.
const AHEAD_MS: [i64; 2] = [150, -150];
/// Time in which the first gateway's clock gains 1 ms, in milliseconds.
const DRIFT_MS: i64 = 20_000;
const NAMES: [&str; 2] = ["nginx", "traefik"];
const SLOTS: usize = 3;
const GRACE_S: i64 = 30;
/// End of the traffic.
const OVER_MS: i64 = 125_000;
/// Delay of a late line, in milliseconds.
const LATE_MS: i64 = 20_000;

/// Faults in the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mangling {
    /// Lines arrive promptly and nearly in order.
    Prompt,
    /// For half a minute, Traefik's lines arrive 20 s late; all other lines arrive promptly.
    LateForAWhile,
    /// All of Traefik's lines arrive 20 s late.
    AlwaysLate,
    /// For a few seconds, one in five lines is cut in the middle.
    Cut,
    /// All lines are lost for a few seconds, and the log's follower reports this.
    Lost,
    /// The watch begins while pods are terminating.
    BegunLate,
}
use Mangling::{AlwaysLate, BegunLate, Cut, LateForAWhile, Lost, Prompt};

/// A pod, and the fate of requests to it.
#[derive(Clone, Debug, Default)]
struct TruePod {
    name: String,
    address: String,
    created_ms: i64,
    listens_ms: i64,
    ready_ms: i64,
    /// Times of the deletion, of the end of the app and of the containers, and the time from which the pod was gone.
    deleted_ms: i64,
    deaf_ms: i64,
    ended_ms: i64,
    gone_ms: i64,
    /// Times at which each gateway begins and stops using the pod.
    used_ms: [(i64, i64); 2],
    lost: u64,
    saved: u64,
    /// Times at which the app failed.
    failed: Vec<i64>,
    /// Times at which attempts ended.
    attempts: Vec<i64>,
    /// Time of each gateway's last attempt.
    last_ms: [Option<i64>; 2],
    /// Times, after the pod's deletion, of lines about it that the watch cannot read.
    unread: Vec<i64>,
}

/// Something that reaches the watch.
enum Delivered {
    Pod(Value),
    Line(usize, String),
    Gap(LogGap),
}

struct Simulated {
    mangling: Mangling,
    begun_ms: i64,
    pods: Vec<TruePod>,
    delivered: Vec<(i64, Delivered)>,
}

/// An attempt by a gateway at a pod: the pod's number, the outcome and the duration.
type LoggedTry = (usize, TryEnd, i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TryEnd {
    Good,
    Failed,
    Refused,
    Reset,
}

impl Simulated {
    fn of(seed: u64, mangling: Mangling) -> Self {
        let random = &mut StdRng::seed_from_u64(seed);
        let pods = pods(mangling, random);
        let begun_ms = match mangling {
            BegunLate => pods[0].deleted_ms + random.random_range(0..1_500),
            _ => 0,
        };
        let mut simulated = Self { mangling, begun_ms, pods, delivered: Vec::new() };
        let fails = [0.0, 0.005, 0.03][random.random_range(0..3)];
        let lost_ms = pods_end(&simulated.pods, random);
        for gateway in 0..2 {
            simulated.send(gateway, fails, lost_ms, random);
        }
        simulated.show_pods(random);
        simulated.delivered.sort_by_key(|(ms, _)| *ms);
        simulated
    }

    /// Sends 40 requests a second through a gateway.
    fn send(&mut self, gateway: usize, fails: f64, lost_ms: (i64, i64), random: &mut StdRng) {
        let mut ms = 0;
        let mut last_written = 0;
        let mut is_lost_told = false;
        loop {
            ms += random.random_range(5..45);
            if ms > OVER_MS {
                return;
            }
            let mut tries: Vec<LoggedTry> = Vec::new();
            let mut now = ms;
            loop {
                let is_usable = |number: &usize| {
                    let (from, until) = self.pods[*number].used_ms[gateway];
                    (from..until).contains(&now) && tries.iter().all(|(tried, ..)| tried != number)
                };
                let usable: Vec<usize> = (0..self.pods.len()).filter(is_usable).collect();
                if usable.is_empty() {
                    break;
                }
                let number = usable[random.random_range(0..usable.len())];
                let (end, took) = self.attempt(number, now, fails, random);
                tries.push((number, end, took));
                now += took;
                // nginx tries another pod if one does not accept the connection.
                if gateway == 1 || end != TryEnd::Refused || tries.len() == 2 {
                    break;
                }
            }
            let Some((_, end, _)) = tries.last().copied() else { continue };
            self.count(gateway, ms, &tries);
            let mut line = self.line(gateway, ms, &tries);
            let is_unread = match self.mangling {
                Cut if (lost_ms.0..lost_ms.1).contains(&now) && random.random_range(0..5) == 0 => {
                    line.truncate(random.random_range(1..line.len() - 40));
                    true
                }
                Lost => (lost_ms.0..lost_ms.1).contains(&now),
                BegunLate => now < self.begun_ms,
                _ => false,
            };
            if is_unread {
                for (number, ..) in &tries {
                    let pod = &mut self.pods[*number];
                    if now >= pod.deleted_ms && (end != TryEnd::Good || ms >= pod.deleted_ms) {
                        pod.unread.push(now);
                    }
                }
            }
            let delay_ms = random.random_range(5..60) + random.random_range(0..4) / 3 * 400;
            let arrives = match self.mangling {
                LateForAWhile if gateway == 1 && (70_000..100_000).contains(&now) => now + LATE_MS,
                AlwaysLate if gateway == 1 => now + LATE_MS,
                _ => now + delay_ms,
            };
            let clock = |ms: i64| at(ms + AHEAD_MS[gateway]);
            if self.mangling == Lost && now >= lost_ms.1 && !is_lost_told {
                is_lost_told = true;
                let gap = LogGap {
                    source: NAMES[gateway].to_owned(),
                    from_ns: clock(last_written),
                    to_ns: Some(clock(now)),
                    why: Some("lost".to_owned()),
                };
                self.delivered.push((arrives, Delivered::Gap(gap)));
            }
            if !is_unread || self.mangling == Cut {
                last_written = now;
                self.delivered.push((arrives, Delivered::Line(gateway, line)));
            }
        }
    }

    /// Returns the outcome and duration of an attempt at a pod, or at its address if the pod is gone.
    fn attempt(&self, number: usize, ms: i64, fails: f64, random: &mut StdRng) -> (TryEnd, i64) {
        let target = &self.pods[number];
        let listens =
            |pod: &&TruePod| pod.address == target.address && (pod.listens_ms..pod.deaf_ms).contains(&ms);
        let Some(pod) = self.pods.iter().find(listens) else { return (TryEnd::Refused, 1) };
        let took = random.random_range(2..30);
        if ms + took > pod.ended_ms {
            return (TryEnd::Reset, pod.ended_ms - ms);
        }
        let end = if random.random_bool(fails) { TryEnd::Failed } else { TryEnd::Good };
        (end, took)
    }

    fn count(&mut self, gateway: usize, ms: i64, tries: &[LoggedTry]) {
        let mut now = ms;
        for (turn, (number, end, took)) in tries.iter().enumerate() {
            let is_last = turn + 1 == tries.len();
            let is_saved = tries.last().is_some_and(|(_, end, _)| *end == TryEnd::Good);
            let pod = &mut self.pods[*number];
            pod.last_ms[gateway] = Some(now);
            pod.attempts.push(now + took);
            match end {
                TryEnd::Good => {}
                TryEnd::Failed => pod.failed.push(now),
                TryEnd::Refused | TryEnd::Reset if is_last => pod.lost += 1,
                TryEnd::Refused | TryEnd::Reset => pod.saved += u64::from(is_saved),
            }
            now += took;
        }
    }

    /// Returns the line that a gateway writes, with its own clock and resolution.
    fn line(&self, gateway: usize, ms: i64, tries: &[LoggedTry]) -> String {
        let took: i64 = tries.iter().map(|(_, _, took)| took).sum();
        let drift_ms = if gateway == 0 { ms / DRIFT_MS } else { 0 };
        let begun_ms = ms + AHEAD_MS[gateway] + drift_ms;
        let address = |(number, ..): &LoggedTry| format!("{}:8080", self.pods[*number].address);
        if gateway == 0 {
            return nginx_line(begun_ms + took, took, tries, address);
        }
        let (status, size) = match tries[tries.len() - 1].1 {
            TryEnd::Good => (200, 1000),
            TryEnd::Failed => (503, 1000),
            TryEnd::Refused | TryEnd::Reset => (502, "Bad Gateway".len()),
        };
        // Time 0 is 2027-01-15T08:00:00Z.
        let (minute, second, rest) = (begun_ms / 60_000, begun_ms / 1000 % 60, begun_ms % 1000);
        json!({"DownstreamStatus": status, "DownstreamContentSize": size, "Duration": took * MS, "OriginStatus": status,
            "OriginContentSize": size, "OriginDuration": took * MS, "RetryAttempts": 0, "ServiceName": "web@kubernetes",
            "ServiceAddr": address(&tries[0]), "level": "info",
            "StartUTC": format!("2027-01-15T08:{minute:02}:{second:02}.{rest:03}000001Z")})
        .to_string()
    }

    /// Delivers the pod events that the watch shows once it has begun.
    fn show_pods(&mut self, random: &mut StdRng) {
        for pod in self.pods.clone() {
            let uid = format!("uid-{}", pod.name);
            let mut shown = pod_event(&pod.name, &uid, &pod.address, "applied");
            let mut events: Vec<(i64, Value)> = Vec::new();
            for (ms, key) in [
                (pod.created_ms, "created"),
                (pod.ready_ms, "ready"),
                (pod.deleted_ms, "deleted"),
                (pod.ended_ms, "ended"),
                (pod.gone_ms, "gone"),
            ] {
                match key {
                    "ready" => shown["ready"] = true.into(),
                    "deleted" => {
                        shown["deletion_grace_s"] = GRACE_S.into();
                        shown["deletion_timestamp"] = json!(at((ms / 1000 + GRACE_S) * 1000));
                    }
                    "ended" => {
                        shown["ready"] = false.into();
                        shown["phase"] = "Succeeded".into();
                        shown["containers"][0]["state"] = "terminated".into();
                        shown["containers"][0]["exit_code"] = 0.into();
                    }
                    "gone" => shown["change"] = "deleted".into(),
                    _ => shown["ready"] = false.into(),
                }
                // Keep the changes of each pod in order.
                let earliest = events.last().map_or(0, |(ms, _)| *ms + 1);
                events.push(((ms + random.random_range(2..40)).max(earliest), shown.clone()));
            }
            let known = events.iter().filter(|(ms, _)| *ms <= self.begun_ms).count();
            if let Some((_, listed)) = known.checked_sub(1).map(|last| &mut events[last]) {
                if listed["change"] == "deleted" {
                    continue;
                }
                listed["change"] = "listed".into();
                self.delivered.push((self.begun_ms, Delivered::Pod(listed.clone())));
            }
            let later = events.into_iter().skip(known).filter(|(ms, _)| *ms <= OVER_MS);
            self.delivered.extend(later.map(|(ms, shown)| (ms, Delivered::Pod(shown))));
        }
    }

    /// Returns the terminations as reported by a watch.
    fn watched(&self) -> Vec<(WatchedTermination, Option<TerminationTraffic>)> {
        let mut watch = TerminationWatch::default();
        let begun = at(self.begun_ms);
        let mut traffic = GatewayTraffic::new("k3v9x2abcdef".parse().unwrap(), begun);
        let offset = ClockOffset { offset_ns: 0, uncertainty_ns: 1_000 };
        let sample = EventKind::clock_sample(API_SERVER, offset);
        watch.observe(begun, None, &sample);
        traffic.observe(begun, &sample);
        let formats: [LogFormat; 2] = [NGINX.parse().unwrap(), "traefik-json".parse().unwrap()];
        let sources = NAMES.map(Arc::<str>::from);
        let (mut waiting, mut found) = (Vec::new(), Vec::new());
        let mut delivered = self.delivered.iter().peekable();
        for now in (self.begun_ms..OVER_MS + 90_000).step_by(500) {
            while let Some((ms, kind)) = delivered.next_if(|(ms, _)| *ms <= now) {
                match kind {
                    Delivered::Pod(pod) => {
                        let kind = EventKind::Pod(serde_json::from_value(pod.clone()).unwrap());
                        watch.observe(at(*ms), Some("shop"), &kind);
                        traffic.observe(at(*ms), &kind);
                    }
                    Delivered::Line(gateway, text) => match formats[*gateway].parse(text.as_bytes()) {
                        Ok(line) => traffic.add(&sources[*gateway], at(*ms), &line.unwrap()),
                        Err(_) => traffic.add_unreadable(&sources[*gateway], at(*ms)),
                    },
                    Delivered::Gap(gap) => traffic.add_gap(gap.clone()),
                }
            }
            waiting.extend(watch.settled(at(now)).into_iter().map(|end| (now, end)));
            while waiting.first().is_some_and(|(since, _)| now - since >= LINES_WITHIN_NS / MS) {
                let (_, end) = waiting.remove(0);
                let said = traffic.explain(&end, at(now)).unwrap();
                found.push((end, said));
            }
            traffic.forget_before(at(now));
        }
        assert!(waiting.is_empty());
        found
    }
}

const NGINX: &str = "nginx=$msec $request_time $status $body_bytes_sent $proxy_upstream_name [$upstream_addr] \
                     [$upstream_status] [$upstream_connect_time] [$upstream_header_time] [$upstream_response_time] \
                     [$upstream_bytes_received] [$upstream_response_length] $upstream_http_content_length \"$request\"";

fn nginx_line(
    ended_ms: i64,
    took: i64,
    tries: &[LoggedTry],
    address: impl Fn(&LoggedTry) -> String,
) -> String {
    let list = |of: &dyn Fn(&LoggedTry) -> String| tries.iter().map(of).collect::<Vec<_>>().join(", ");
    let status = |(_, end, _): &LoggedTry| match end {
        TryEnd::Good => "200",
        TryEnd::Failed => "503",
        TryEnd::Refused | TryEnd::Reset => "502",
    };
    let has_head = |(_, end, _): &LoggedTry| matches!(end, TryEnd::Good | TryEnd::Failed);
    let seconds = |ms: i64| format!("{}.{:03}", ms / 1000, ms % 1000);
    let last = &tries[tries.len() - 1];
    let unless = |is_known: bool, text: String| if is_known { text } else { "-".to_owned() };
    format!(
        "{} {} {} 1000 shop-web-80 [{}] [{}] [{}] [{}] [{}] [{}] [{}] {} \"GET / HTTP/1.1\"",
        seconds(1_800_000_000_000 + ended_ms),
        seconds(took),
        status(last),
        list(&address),
        list(&|of| status(of).to_owned()),
        list(&|of| unless(of.1 != TryEnd::Refused, "0.000".to_owned())),
        list(&|of| unless(has_head(of), seconds(of.2))),
        list(&|of| seconds(of.2)),
        list(&|of| if has_head(of) { "1200" } else { "0" }.to_owned()),
        list(&|of| if has_head(of) { "1000" } else { "0" }.to_owned()),
        unless(has_head(last), "1000".to_owned()),
    )
}

/// Returns the successive pods of three slots. Most pods get the address of their predecessor.
fn pods(mangling: Mangling, random: &mut StdRng) -> Vec<TruePod> {
    let mut pods = Vec::new();
    for slot in 0..SLOTS {
        let mut created_ms = -60_000;
        let mut deleted_ms = 60_000 + random.random_range(0..9_000) * (slot as i64 + 1);
        let mut address = format!("10.0.0.{}", slot + 1);
        for turn in 0..3 {
            let listens_ms = created_ms + random.random_range(50..400);
            let ready_ms = listens_ms + random.random_range(10..300);
            let ended_ms = deleted_ms + random.random_range(300..2_000);
            let mut pod = TruePod {
                name: format!("web-{slot}-{turn}"),
                address: address.clone(),
                created_ms,
                listens_ms,
                ready_ms,
                deleted_ms,
                deaf_ms: random.random_range(deleted_ms + 100..=ended_ms),
                ended_ms,
                gone_ms: ended_ms + random.random_range(100..400),
                ..TruePod::default()
            };
            created_ms = pod.gone_ms + random.random_range(10..900);
            // A gateway stops using the pod before its address has a new owner.
            let until =
                |random: &mut StdRng| random.random_range(deleted_ms..created_ms.min(deleted_ms + 2_500));
            let from = |random: &mut StdRng| ready_ms + random.random_range(20..400);
            pod.used_ms = [0, 1].map(|_| (from(random), until(random)));
            pods.push(pod);
            // Only a response from a pod whose address has no new owner shows that all lines are late.
            if mangling == AlwaysLate || random.random_range(0..3) == 0 {
                address = format!("10.0.{}.{}", turn + 1, slot + 1);
            }
            deleted_ms = created_ms + random.random_range(8_000..25_000);
        }
    }
    pods.retain(|pod| pod.created_ms < OVER_MS);
    pods
}

/// Returns a period around a pod's end.
fn pods_end(pods: &[TruePod], random: &mut StdRng) -> (i64, i64) {
    let from = pods[1].deleted_ms + random.random_range(-3_000..1_000);
    (from, from + random.random_range(1_000..6_000))
}

/// Sums over all terminations of a test.
#[derive(Debug, Default)]
struct CheckedLogs {
    terminations: u64,
    lost: u64,
    with_gaps: u64,
    /// Terminations whose losses lie in the documented interval.
    inside: u64,
    whole: u64,
    widths: Vec<u64>,
}

impl CheckedLogs {
    fn add(&mut self, seed: u64, simulated: &Simulated) {
        let said = simulated.watched();
        let (mut least, mut truth) = (0, 0);
        for (end, traffic) in &said {
            let pod = simulated.pods.iter().find(|pod| pod.name == end.pod).unwrap();
            let context = || format!("{:?} {seed}: {pod:?}\n{end:?}\n{traffic:?}", simulated.mangling);
            let Some(traffic) = traffic else { panic!("{}", context()) };
            let Bounded { at_least, at_most, .. } = traffic.lost;
            let saved = traffic.saved_by_retries.unwrap_or_default();
            self.terminations += 1;
            self.lost += pod.lost;
            self.with_gaps += u64::from(!traffic.gaps.is_empty());
            // t0 is known to within a second. Failures of the next pod with this address may be mistaken for failures
            // of this pod.
            let clock_width = Duration::from_secs_f64(traffic.clock_width_s);
            let clock_ms = i64::try_from(clock_width.as_millis()).unwrap();
            let around = pod.deleted_ms - 1_000 - clock_ms..pod.gone_ms + 1_000 + clock_ms;
            let failed = |of: &&TruePod| of.address == pod.address;
            let failed = simulated.pods.iter().filter(failed).flat_map(|of| &of.failed);
            let failed = failed.filter(|ms| around.contains(ms)).count() as u64;
            assert!(at_least <= pod.lost + failed, "invented: {}", context());
            assert!(saved.at_least <= pod.saved, "invented: {}", context());
            let attempts = pod.attempts.iter().filter(|ms| **ms >= around.start).count() as u64;
            assert!(traffic.requests <= attempts, "counted twice: {}", context());
            assert!(pod.unread.is_empty() || !traffic.gaps.is_empty(), "no gap: {}", context());
            for window in &traffic.windows {
                let gateway = NAMES.iter().position(|name| window.consumer.starts_with(name)).unwrap();
                let last_s = pod.last_ms[gateway].map(|ms| (ms - pod.deleted_ms) as f64 / 1e3);
                // Without a use that is certainly later than t0, the lower bound is 0.
                let last_s = last_s.map_or(0.0, |last_s| last_s.max(0.0));
                assert!(window.lower_s.is_none_or(|lower_s| lower_s <= last_s), "{last_s}: {}", context());
                assert!(window.upper_s.is_none_or(|upper_s| upper_s >= last_s), "{last_s}: {}", context());
            }
            (least, truth) = (least + at_least, truth + pod.lost + pod.failed.len() as u64);
            if traffic.gaps.is_empty() {
                assert!(pod.lost <= at_most && pod.saved <= saved.at_most, "missed: {}", context());
                let background = traffic.background.map_or(u64::MAX, |background| background.at_most);
                self.whole += 1;
                self.inside += u64::from(at_least.saturating_sub(background) <= pod.lost);
                self.widths.push(at_most - at_least);
            }
        }
        assert!(least <= truth, "{:?} {seed}: {least} of {truth}", simulated.mangling);
    }
}

/// Returns the sums over this many seeds.
fn check(mangling: Mangling, seeds: u64) -> CheckedLogs {
    let mut checked = CheckedLogs::default();
    for seed in 0..seeds {
        checked.add(seed, &Simulated::of(seed, mangling));
    }
    checked.widths.sort_unstable();
    let width = checked.widths.get(checked.widths.len() / 2);
    println!(
        "{mangling:?}: {} terminations, {} requests lost; {} with gaps; {} of {} others inside, median width {width:?}",
        checked.terminations, checked.lost, checked.with_gaps, checked.inside, checked.whole
    );
    checked
}

fn mangled(mangling: Mangling) {
    let checked = check(mangling, 12);
    // The background covers only the middle 95 % of periods.
    assert!(checked.inside * 100 >= checked.whole * 95, "{checked:?}");
    assert!(checked.lost > 0 && checked.whole > 0, "{checked:?}");
    assert_eq!(checked.with_gaps > 0, matches!(mangling, Cut | Lost | BegunLate), "{checked:?}");
}

#[test]
fn bounds_hold_for_disordered_logs() {
    mangled(Prompt);
}

#[test]
fn bounds_hold_for_late_logs() {
    mangled(LateForAWhile);
    mangled(AlwaysLate);
}

#[test]
fn cut_and_lost_lines_are_reported() {
    mangled(Cut);
    mangled(Lost);
}

#[test]
fn late_start_of_watch_is_reported() {
    mangled(BegunLate);
}
