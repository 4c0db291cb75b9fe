//! View of a run at one moment: a block on a terminal, a line elsewhere.

use super::live_state::{LivePhase, LiveState, Pod};
use super::load_progress::LoadSnapshot;
use super::news::{fit, joined, wrapped};
use rolldrop_record::{Stamp, shown};

/// Minimum width for a bar; a narrower terminal shows words instead.
const BAR_FROM: usize = 70;
/// Width of the bar.
const BAR: usize = 20;
/// Maximum number of actions shown.
const ACTIONS: usize = 4;
/// Losses may fill at most `1 / LOSSES` of the height.
const LOSSES: usize = 3;

/// Content of the view.
pub(super) struct Screen<'a> {
    /// Description of the current step.
    pub(super) step: &'a str,
    /// Load, while it is being sent.
    pub(super) load: Option<&'a LoadSnapshot>,
    pub(super) state: &'a LiveState,
    pub(super) now: Stamp,
}

impl Screen<'_> {
    /// Returns the lines for a terminal of this size. The last row and column stay free so that no line wraps.
    pub(super) fn block(&self, columns: usize, rows: usize) -> Vec<String> {
        let (width, height) = (columns.saturating_sub(1), rows.saturating_sub(1).max(1));
        let mut lines = self.head(columns, width);
        let mut actions = self.state.actions(self.now);
        if actions.is_empty() && self.load.is_some() && !self.step.is_empty() {
            actions.push(self.step.to_owned());
        }
        lines.extend(actions.iter().take(ACTIONS).flat_map(|action| wrapped(action, width)));
        lines.extend(self.losses(width, height / LOSSES));
        if let Some(counts) = self.state.pod_counts() {
            lines.push(format!("pods: {counts}"));
            let (pods, room) = (self.state.pods(), height.saturating_sub(lines.len()));
            // The last row counts the pods that got no row of their own.
            let named = if pods.len() > room { room.saturating_sub(1) } else { pods.len() };
            lines.extend(pods[..named].iter().map(|pod| self.pod(pod)));
            if named < pods.len() && room > 0 {
                lines.push(format!("  and {} more", pods.len() - named));
            }
        }
        lines.truncate(height);
        lines.iter().map(|line| fit(&shown::one_line(line), width)).collect()
    }

    /// Returns the view as one line.
    pub(super) fn line(&self, width: usize) -> String {
        let head = match self.load {
            Some(load) => load.position.text.clone(),
            None => self.step.to_owned(),
        };
        let pods = self.state.pod_counts().map(|counts| format!("pods: {counts}"));
        let [outcomes, rate] = [self.load.map(LoadSnapshot::outcomes), self.load.map(LoadSnapshot::rate)];
        let parts = [Some(head), outcomes, pods, rate, self.load.and_then(LoadSnapshot::latencies)];
        let parts = parts.into_iter().flatten().chain(self.state.actions(self.now));
        shown::one_line(&joined(parts, width)).into_owned()
    }

    fn head(&self, columns: usize, width: usize) -> Vec<String> {
        let Some(load) = self.load else { return vec![self.step.to_owned()] };
        let mut lines = vec![match load.position.of {
            // On a narrow terminal, words take precedence over pictures.
            Some((done, all)) if columns >= BAR_FROM => format!("{} {}", bar(done, all), load.position.text),
            _ => load.position.text.clone(),
        }];
        let (rates, latencies) = (load.rates(), load.latencies());
        let both = latencies.as_ref().map(|latencies| format!("{rates}; {latencies}"));
        let outcomes = wrapped(&load.outcomes(), width);
        match both.filter(|both| both.len() <= width) {
            Some(both) => lines.extend(std::iter::once(both).chain(outcomes)),
            None => lines.extend(std::iter::once(rates).chain(outcomes).chain(latencies)),
        }
        lines
    }

    /// Returns as many of the latest losses as there is room for, the latest last.
    fn losses(&self, width: usize, mut room: usize) -> Vec<String> {
        let losses = self.state.losses().map(|loss| wrapped(&loss, width));
        let mut shown: Vec<_> = losses
            .take_while(|loss| {
                room = room.saturating_sub(loss.len());
                room > 0
            })
            .collect();
        shown.reverse();
        shown.concat()
    }

    fn pod(&self, pod: &Pod) -> String {
        let Pod { name, phase, since, stage } = pod;
        let is_passing = matches!(phase, LivePhase::Terminating | LivePhase::Starting | LivePhase::NotReady);
        let since = since.filter(|_| is_passing);
        let age = since.map(|since| format!(" for {:.0} s", self.now.seconds_since(since).max(0.0)));
        let stage = stage
            .filter(|_| *phase == LivePhase::Terminating)
            .map(|stage| format!(", {stage}"))
            .unwrap_or_default();
        format!("  {name}  {}{}{stage}", phase.as_str(), age.unwrap_or_default())
    }
}

fn bar(done: u64, all: u64) -> String {
    let filled = usize::try_from(done.min(all) * BAR as u64 / all.max(1)).unwrap_or(BAR);
    format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::live_state::tests::{Run, at, disruption};
    use super::super::load_progress::tests::busy;
    use super::*;
    use rolldrop_drive::viewer::{DisruptionStage, Wait};
    use rolldrop_record::EventKind;
    use rolldrop_record::event::ProxyPhase;

    const SIZES: [(usize, usize); 2] = [(80, 24), (100, 30)];

    /// Returns the view of a run 12 s into its load, on a terminal of this size. Checks that the view fits.
    fn shown(run: &Run, (columns, rows): (usize, usize)) -> String {
        let load = busy();
        let step = "watching for changes by others";
        let screen = Screen { step, load: Some(&load), state: &run.0, now: at(12.0) };
        let block = screen.block(columns, rows);
        assert!(block.len() < rows, "{block:#?}");
        assert!(block.iter().all(|line| console::measure_text_width(line) < columns), "{block:#?}");
        let line = screen.line(111);
        assert!(console::measure_text_width(&line) <= 111, "{line}");
        block.join("\n")
    }

    fn rollout() -> Run {
        let mut run = Run::begin(&["web-6d4cf56db6-2xkq8", "web-6d4cf56db6-7hjwp", "web-6d4cf56db6-z9ltc"]);
        let restart =
            disruption("{at: 3s, action: rollingRestart, workload: deployment/web, until: rolloutComplete}");
        run.0.stands(0, &restart, DisruptionStage::Due { repetition: 0, at: at(3.0) });
        run.0.stands(0, &restart, DisruptionStage::Waits(Wait::Rollout));
        run.0.unsettled(Some("Deployment web: 2 of 3 pods updated"));
        run.sees(4.0, "web-5f7d8c9b4-4rpzm", LivePhase::Ready);
        run.sees(5.0, "web-6d4cf56db6-7hjwp", LivePhase::Terminating);
        run.lost(5.5, &[("connect_refused", 7)]);
        run.gone(6.5, "web-6d4cf56db6-7hjwp");
        run.lost(7.1, &[("connect_refused", 9), ("reset_before_response", 1)]);
        run.sees(9.0, "web-6d4cf56db6-2xkq8", LivePhase::Terminating);
        let pod = "web-6d4cf56db6-2xkq8".to_owned();
        run.event(9.2, EventKind::ProxyPhase { pod, phase: ProxyPhase::PreStop });
        run.sees(11.0, "web-5f7d8c9b4-kk2vd", LivePhase::Starting);
        run
    }

    #[test]
    fn screen_shows_rollout_of_three_pods() {
        insta::assert_snapshot!(shown(&rollout(), SIZES[0]), @r"
        █████████████░░░░░░░ 400/600 requests, 1 s left
        offered 220/s, sent 215/s, 3 in flight; p50 1.5 ms, p99 20.0 ms
        380 ok, failed: 7 connect_refused, 10 not_sent
        rollingRestart Deployment web waits for the rollout (Deployment web: 2 of 3
          pods updated)
        lost at 5 s: 7 connect_refused while web-6d4cf56db6-7hjwp was terminating
        lost at 7 s: 2 connect_refused, 1 reset_before_response just after
          web-6d4cf56db6-7hjwp was gone
        pods: 2 ready, 1 starting, 1 terminating
          web-6d4cf56db6-2xkq8  terminating for 3 s, in preStop
          web-5f7d8c9b4-kk2vd  starting for 1 s
          web-6d4cf56db6-z9ltc  ready
          web-5f7d8c9b4-4rpzm  ready
        ");
        insta::assert_snapshot!(shown(&rollout(), SIZES[1]), @r"
        █████████████░░░░░░░ 400/600 requests, 1 s left
        offered 220/s, sent 215/s, 3 in flight; p50 1.5 ms, p99 20.0 ms
        380 ok, failed: 7 connect_refused, 10 not_sent
        rollingRestart Deployment web waits for the rollout (Deployment web: 2 of 3 pods updated)
        lost at 5 s: 7 connect_refused while web-6d4cf56db6-7hjwp was terminating
        lost at 7 s: 2 connect_refused, 1 reset_before_response just after web-6d4cf56db6-7hjwp was gone
        pods: 2 ready, 1 starting, 1 terminating
          web-6d4cf56db6-2xkq8  terminating for 3 s, in preStop
          web-5f7d8c9b4-kk2vd  starting for 1 s
          web-6d4cf56db6-z9ltc  ready
          web-5f7d8c9b4-4rpzm  ready
        ");
    }

    #[test]
    fn screen_lists_changing_pods_first() {
        let names: Vec<String> = (0..40).map(|n| format!("web-6d4cf56db6-{n:05}")).collect();
        let mut run = Run::begin(&names.iter().map(String::as_str).collect::<Vec<_>>());
        for (n, name) in names.iter().enumerate().take(5) {
            run.sees(10.0 + n as f64 / 10.0, name, LivePhase::Terminating);
        }
        run.lost(11.0, &[("connect_refused", 70)]);
        insta::assert_snapshot!(shown(&run, SIZES[0]), @r"
        █████████████░░░░░░░ 400/600 requests, 1 s left
        offered 220/s, sent 215/s, 3 in flight; p50 1.5 ms, p99 20.0 ms
        380 ok, failed: 7 connect_refused, 10 not_sent
        watching for changes by others
        lost at 11 s: 70 connect_refused while 5 pods were terminating
        pods: 35 ready, 5 terminating
          web-6d4cf56db6-00000  terminating for 2 s
          web-6d4cf56db6-00001  terminating for 2 s
          web-6d4cf56db6-00002  terminating for 2 s
          web-6d4cf56db6-00003  terminating for 2 s
          web-6d4cf56db6-00004  terminating for 2 s
          web-6d4cf56db6-00005  ready
          web-6d4cf56db6-00006  ready
          web-6d4cf56db6-00007  ready
          web-6d4cf56db6-00008  ready
          web-6d4cf56db6-00009  ready
          web-6d4cf56db6-00010  ready
          web-6d4cf56db6-00011  ready
          web-6d4cf56db6-00012  ready
          web-6d4cf56db6-00013  ready
          web-6d4cf56db6-00014  ready
          web-6d4cf56db6-00015  ready
          and 24 more
        ");
        insta::assert_snapshot!(shown(&run, SIZES[1]), @r"
        █████████████░░░░░░░ 400/600 requests, 1 s left
        offered 220/s, sent 215/s, 3 in flight; p50 1.5 ms, p99 20.0 ms
        380 ok, failed: 7 connect_refused, 10 not_sent
        watching for changes by others
        lost at 11 s: 70 connect_refused while 5 pods were terminating
        pods: 35 ready, 5 terminating
          web-6d4cf56db6-00000  terminating for 2 s
          web-6d4cf56db6-00001  terminating for 2 s
          web-6d4cf56db6-00002  terminating for 2 s
          web-6d4cf56db6-00003  terminating for 2 s
          web-6d4cf56db6-00004  terminating for 2 s
          web-6d4cf56db6-00005  ready
          web-6d4cf56db6-00006  ready
          web-6d4cf56db6-00007  ready
          web-6d4cf56db6-00008  ready
          web-6d4cf56db6-00009  ready
          web-6d4cf56db6-00010  ready
          web-6d4cf56db6-00011  ready
          web-6d4cf56db6-00012  ready
          web-6d4cf56db6-00013  ready
          web-6d4cf56db6-00014  ready
          web-6d4cf56db6-00015  ready
          web-6d4cf56db6-00016  ready
          web-6d4cf56db6-00017  ready
          web-6d4cf56db6-00018  ready
          web-6d4cf56db6-00019  ready
          web-6d4cf56db6-00020  ready
          web-6d4cf56db6-00021  ready
          and 18 more
        ");
    }

    #[test]
    fn screen_shows_drain_awaiting_budget() {
        let mut run = Run::begin(&["web-0", "web-1", "web-2"]);
        let drain = disruption("{at: 3s, action: drain, node: node-1}");
        run.0.stands(0, &drain, DisruptionStage::Due { repetition: 0, at: at(3.0) });
        run.0.stands(0, &drain, DisruptionStage::Acts);
        run.evicts(3.0, 0, "web-0", 201);
        run.evicts(3.0, 0, "web-1", 429);
        run.sees(3.1, "web-0", LivePhase::Terminating);
        insta::assert_snapshot!(shown(&run, SIZES[0]), @r"
        █████████████░░░░░░░ 400/600 requests, 1 s left
        offered 220/s, sent 215/s, 3 in flight; p50 1.5 ms, p99 20.0 ms
        380 ok, failed: 7 connect_refused, 10 not_sent
        drain node-1 waits until a disruption budget allows the eviction of web-1
        pods: 2 ready, 1 terminating
          web-0  terminating for 9 s
          web-1  ready
          web-2  ready
        ");
    }

    #[test]
    fn screen_shows_waiting_and_due_actions() {
        let mut run = Run::begin(&["web-0", "web-1", "web-2"]);
        let text = "{at: 3s, action: deletePod, selector: app=web, count: 1, every: 6s, repeat: 3}";
        let delete = disruption(text);
        run.0.stands(0, &delete, DisruptionStage::Due { repetition: 0, at: at(3.0) });
        run.0.stands(0, &delete, DisruptionStage::Waits(Wait::Silence(Duration::from_millis(5_300))));
        run.0.stands(
            1,
            &disruption("{at: 20s, action: scale, workload: deployment/web, replicas: 1}"),
            DisruptionStage::Due { repetition: 0, at: at(20.0) },
        );
        insta::assert_snapshot!(shown(&run, SIZES[1]), @r"
        █████████████░░░░░░░ 400/600 requests, 1 s left
        offered 220/s, sent 215/s, 3 in flight; p50 1.5 ms, p99 20.0 ms
        380 ok, failed: 7 connect_refused, 10 not_sent
        deletePod 1 pod matching app=web (1 of 3) waits until no request has been lost for 5.3 s
        scale Deployment web begins in 8 s
        pods: 3 ready
          web-0  ready
          web-1  ready
          web-2  ready
        ");
    }

    #[test]
    fn screen_fits_unknown_pods_and_small_terminals() {
        let mut run = Run::begin(&[]);
        run.lost(5.0, &[("response_timeout", 3)]);
        insta::assert_snapshot!(shown(&run, SIZES[0]), @r"
        █████████████░░░░░░░ 400/600 requests, 1 s left
        offered 220/s, sent 215/s, 3 in flight; p50 1.5 ms, p99 20.0 ms
        380 ok, failed: 7 connect_refused, 10 not_sent
        watching for changes by others
        lost at 5 s: 3 response_timeout
        ");
        for size in [(10, 3), (30, 5), (40, 8), (200, 60)] {
            shown(&rollout(), size);
        }
    }

    #[test]
    fn screen_shows_steps_outside_load() {
        let mut run = Run::begin(&["web-0"]);
        run.sees(11.0, "web-0", LivePhase::Terminating);
        let screen =
            Screen { step: "waiting for the last pods to end", load: None, state: &run.0, now: at(12.0) };
        let block =
            ["waiting for the last pods to end", "pods: 1 terminating", "  web-0  terminating for 1 s"];
        assert_eq!(screen.block(80, 24), block);
        assert_eq!(screen.line(111), "waiting for the last pods to end; pods: 1 terminating");
        let load = busy();
        let screen = Screen { load: Some(&load), ..screen };
        insta::assert_snapshot!(screen.line(111), @"400/600 requests, 1 s left; 380 ok, failed: 7 connect_refused, 10 not_sent; pods: 1 terminating");
    }
}
