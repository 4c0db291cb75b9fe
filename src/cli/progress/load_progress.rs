//! Text for the figures of a running load.

use std::time::Duration;

use tokio::time::Instant;

use rolldrop_drive::viewer::{Loading, Planned};
use rolldrop_load as load;
use rolldrop_record::Outcome;

/// Returns true during the warm-up of a load.
pub(super) fn is_warmup(load: &Loading<'_>) -> bool {
    load.elapsed < load.planned.warmup
}

/// Computes the progress of a load, in counted requests and in words.
pub(super) fn position(load: &Loading<'_>) -> LoadPosition {
    let Loading { planned, part_of, progress, elapsed, is_stopped } = load;
    if let Some(what) = part_of {
        return LoadPosition { text: what.clone(), of: None };
    }
    let left_s = |left: Duration| left.as_secs() + u64::from(left.subsec_nanos() > 0);
    if is_warmup(load) && !is_stopped {
        return LoadPosition {
            text: format!("warm-up, {} s left", left_s(planned.warmup - *elapsed)),
            of: None,
        };
    }
    let counted =
        progress.scheduled.saturating_sub(planned.warmup_requests.unwrap_or(progress.warmup.total()));
    let of = planned.requests.map(|requests| (counted.min(requests), requests));
    let left = if *is_stopped { Some(Duration::ZERO) } else { left(planned, counted, *elapsed) };
    let left = match left {
        Some(left) if left.is_zero() => ", waiting for the last answers".to_owned(),
        Some(left) if planned.may_end_before => format!(", at most {} s left", left_s(left)),
        Some(left) => format!(", {} s left", left_s(left)),
        None => String::new(),
    };
    let requests = planned.requests.map(|requests| format!("/{requests}")).unwrap_or_default();
    LoadPosition { text: format!("{counted}{requests} requests{left}"), of }
}

/// Returns the remaining time. Requests are counted slightly late, so some time remains while any are missing.
fn left(planned: &Planned, counted: u64, elapsed: Duration) -> Option<Duration> {
    let left = planned.length?.saturating_sub(elapsed);
    let is_complete = planned.requests.is_none_or(|all| counted >= all);
    Some(if is_complete { left } else { left.max(Duration::from_nanos(1)) })
}

/// Progress of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadPosition {
    pub(super) text: String,
    /// Number of requests that were due, and the total, if known.
    pub(super) of: Option<(u64, u64)>,
}

/// Rates over roughly the last second, so that they change slowly enough to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecentRate {
    since: Instant,
    due: u64,
    not_sent: u64,
    offered_per_s: f64,
    sent_per_s: f64,
}

impl RecentRate {
    const INTERVAL: Duration = Duration::from_millis(900);

    pub(super) fn begin() -> Self {
        Self { since: Instant::now(), due: 0, not_sent: 0, offered_per_s: 0.0, sent_per_s: 0.0 }
    }

    pub(super) fn follow(&mut self, now: Instant, progress: &load::Progress) {
        let elapsed = now.duration_since(self.since);
        if elapsed < Self::INTERVAL {
            return;
        }
        let not_sent = progress.outcomes.of(Outcome::NotSent);
        let per_s = |requests: u64| requests as f64 / elapsed.as_secs_f64();
        let offered = progress.scheduled.saturating_sub(self.due);
        self.offered_per_s = per_s(offered);
        self.sent_per_s = per_s(offered.saturating_sub(not_sent.saturating_sub(self.not_sent)));
        (self.since, self.due, self.not_sent) = (now, progress.scheduled, not_sent);
    }
}

/// State of a load at one moment.
#[derive(Clone, Debug)]
pub(super) struct LoadSnapshot {
    pub(super) position: LoadPosition,
    pub(super) progress: load::Progress,
    pub(super) rate: RecentRate,
}

impl LoadSnapshot {
    pub(super) fn rates(&self) -> String {
        let RecentRate { offered_per_s, sent_per_s, .. } = self.rate;
        let in_flight = self.progress.in_flight;
        format!("offered {offered_per_s:.0}/s, sent {sent_per_s:.0}/s, {in_flight} in flight")
    }

    /// Describes the rates briefly.
    pub(super) fn rate(&self) -> String {
        let [offered, sent] =
            [self.rate.offered_per_s, self.rate.sent_per_s].map(|per_s| format!("{per_s:.0}/s"));
        if offered == sent { offered } else { format!("offered {offered}, sent {sent}") }
    }

    /// Describes the outcomes of the counted requests.
    pub(super) fn outcomes(&self) -> String {
        let counted = self.progress.counted();
        let failed =
            |(outcome, n): (Outcome, u64)| (outcome != Outcome::Ok).then(|| format!("{n} {outcome}"));
        let failed: Vec<_> = counted.iter().filter_map(failed).collect();
        let failed = if failed.is_empty() {
            "none failed".to_owned()
        } else {
            format!("failed: {}", failed.join(", "))
        };
        format!("{} ok, {failed}", counted.of(Outcome::Ok))
    }

    /// Describes the latest latencies, if there are any.
    pub(super) fn latencies(&self) -> Option<String> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let recent = self.progress.recent?;
        Some(format!("p50 {:.1} ms, p99 {:.1} ms", ms(recent.p50), ms(recent.p99)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the figures of a load that has been running for a while, after a warm-up of 40 requests.
    pub(in crate::cli::progress) fn busy() -> LoadSnapshot {
        let mut progress = load::Progress { scheduled: 440, in_flight: 3, ..load::Progress::default() };
        progress.outcomes.add(Outcome::Ok, 419);
        progress.outcomes.add(Outcome::ConnectRefused, 8);
        progress.outcomes.add(Outcome::NotSent, 10);
        progress.warmup.add(Outcome::Ok, 39);
        progress.warmup.add(Outcome::ConnectRefused, 1);
        progress.recent =
            Some(load::Recent { p50: Duration::from_micros(1500), p99: Duration::from_millis(20) });
        let mut rate = RecentRate::begin();
        rate.follow(rate.since + Duration::from_secs(2), &progress);
        let position = position(&loading(&planned(), (440, 40), Duration::from_secs(3)));
        LoadSnapshot { position, progress, rate }
    }

    fn planned() -> Planned {
        Planned {
            requests: Some(600),
            warmup_requests: Some(40),
            warmup: Duration::from_secs(1),
            length: Some(Duration::from_secs(4)),
            ..Planned::default()
        }
    }

    fn loading(planned: &Planned, (scheduled, warmup_ended): (u64, u64), elapsed: Duration) -> Loading<'_> {
        let mut progress = load::Progress { scheduled, ..load::Progress::default() };
        progress.warmup.add(Outcome::Ok, warmup_ended);
        Loading { planned, part_of: None, progress, elapsed, is_stopped: false }
    }

    #[test]
    fn figures_exclude_warmup_requests() {
        let busy = busy();
        assert_eq!(busy.rates(), "offered 220/s, sent 215/s, 3 in flight");
        assert_eq!(busy.rate(), "offered 220/s, sent 215/s");
        assert_eq!(LoadSnapshot { rate: RecentRate::begin(), ..busy.clone() }.rate(), "0/s");
        assert_eq!(busy.outcomes(), "380 ok, failed: 7 connect_refused, 10 not_sent");
        assert_eq!(busy.latencies().unwrap(), "p50 1.5 ms, p99 20.0 ms");
        assert_eq!(
            busy.position,
            LoadPosition { text: "400/600 requests, 1 s left".into(), of: Some((400, 600)) }
        );
        let idle = LoadSnapshot { progress: load::Progress::default(), ..busy };
        assert_eq!((idle.outcomes().as_str(), idle.latencies()), ("0 ok, none failed", None));
    }

    #[test]
    fn position_covers_measured_requests_only() {
        let planned = planned();
        let at = |scheduled, ms| position(&loading(&planned, (scheduled, 12), Duration::from_millis(ms)));
        assert_eq!(at(20, 400), LoadPosition { text: "warm-up, 1 s left".into(), of: None });
        assert_eq!(at(40, 1_000).text, "0/600 requests, 3 s left");
        assert_eq!(at(630, 4_000).text, "590/600 requests, 1 s left", "as long as some are missing");
        assert_eq!(at(640, 4_000).text, "600/600 requests, waiting for the last answers");
        let of = |planned, counts| loading(planned, counts, Duration::from_secs(2));
        let stopped = position(&Loading { is_stopped: true, ..of(&planned, (240, 40)) });
        assert_eq!(stopped.text, "200/600 requests, waiting for the last answers");
        let open = Planned { requests: None, may_end_before: true, ..planned };
        let ended = position(&of(&open, (240, 40)));
        assert_eq!(ended, LoadPosition { text: "200 requests, at most 2 s left".into(), of: None });
        let closed = Planned { requests: None, warmup_requests: None, length: None, ..planned };
        assert_eq!(position(&of(&closed, (500, 60))).text, "440 requests");
        let part = Loading {
            part_of: Some("3 of 12".to_owned()),
            elapsed: Duration::ZERO,
            ..of(&closed, (500, 60))
        };
        assert_eq!(position(&part).text, "3 of 12");
    }

    #[test]
    fn offered_rate_averages_over_one_second() {
        let mut rate = RecentRate::begin();
        let start = rate.since;
        let mut at = |ms, scheduled| {
            let progress = load::Progress { scheduled, ..load::Progress::default() };
            rate.follow(start + Duration::from_millis(ms), &progress);
            rate.offered_per_s
        };
        assert_eq!([at(200, 50), at(1000, 300), at(1200, 400), at(2000, 500)], [0.0, 300.0, 300.0, 200.0]);
    }
}
