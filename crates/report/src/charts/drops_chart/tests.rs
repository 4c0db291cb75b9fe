//! Tests the data that the chart plots, and the text in it.

use super::super::axis::bin_of;
use super::*;
use crate::samples;
use rolldrop_explain::model::{Bounded, CandidateReason, LossGroup, TargetResult, TerminationCandidate};

fn plotted(row: &DropRow) -> u64 {
    row.bins.values().flat_map(|bin| bin.values()).sum::<u64>() + row.beyond
}

/// Modifies the analysis so that two terminations explain every request that one of them lost.
fn share(analysis: &mut Analysis, one: usize, other: usize) {
    for lost in analysis.lost.iter_mut().filter(|lost| lost.only() == Some(one)) {
        let candidate =
            |termination| TerminationCandidate { termination, share: 0.5, why: CandidateReason::Time };
        lost.candidates = vec![candidate(other), candidate(one)];
    }
    let dropped = analysis.lost.iter().filter(|lost| lost.may_be(one) || lost.may_be(other)).count() as u64;
    analysis.result.groups.push(LossGroup {
        terminations: vec![other.min(one), other.max(one)],
        dropped,
        by_outcome: Default::default(),
        by_cause: Default::default(),
        windows: Vec::new(),
    });
}

#[test]
fn drops_appear_at_request_start() {
    let analysis = samples::naive_exit();
    let series = series(&analysis);
    assert_eq!(series.rows.len(), 3);
    for row in &series.rows {
        let RowPods::One(t) = row.pods else { panic!("{row:?}") };
        let termination = &analysis.result.terminations[t];
        assert_eq!(Bounded::exactly(plotted(row)), termination.requests.dropped);
        assert_eq!((row.beyond, row.dropped), (0, termination.requests.dropped.at_most));
        for drop in analysis.lost.iter().filter(|lost| lost.only() == Some(t)) {
            let bin = bin_of(drop.begun_s - termination.t0_s, series.bin_s);
            assert!(row.bins[&bin].contains_key(&drop.outcome));
        }
    }
    assert!(series.from_s < 0.0 && series.to_s > 0.16, "{series:?}");
    assert_eq!(
        title(&analysis, &series),
        "24 of 9,000 requests dropped, all within 0.141 s of a pod's deletion"
    );
    assert_eq!(
        subtitle(&series, &analysis.result),
        "Cause: routed to a pod that no longer accepted connections\nRemedy: lifecycle: {preStop: {sleep: {seconds: \
         1}}} (for pods that end one at a time; suggested by 3 terminations, not proven)\nStart of each lost request, \
         relative to the time when its pod's deletion took effect"
    );
}

#[test]
fn run_without_drops_shows_window() {
    let analysis = samples::prestop_sleep();
    let series = series(&analysis);
    assert!(series.rows.iter().all(|row| row.bins.is_empty() && !row.late.is_empty()));
    assert!(series.rows.iter().all(|row| row.marks.len() == 4));
    // The window is drawn in detail; SIGTERM and the exit come after a break.
    assert!(series.left_out_s.is_some_and(|b| b.from > 0.168 && b.from < 0.3 && b.to > 2.5 && b.to < 3.017));
    assert!(series.to_s > 3.021);
}

#[test]
fn separate_pods_align_at_own_deletions() {
    let analysis = samples::rollout();
    let series = series(&analysis);
    let [row] = &series.rows[..] else { panic!("{:?}", series.rows) };
    assert_eq!(row.pods, RowPods::Apart((0..12).collect()));
    assert_eq!(
        (plotted(row), row.dropped),
        (analysis.result.requests.dropped, analysis.result.requests.dropped)
    );
    assert!(row.deletions.iter().all(|s| *s == 0.0), "{:?}", row.deletions);
    let (name, parts) = header(row, &analysis.result, true);
    assert!(name.starts_with("12 pods, rollout: "), "{name}");
    assert_eq!(parts[..2], ["453 dropped", "longest window 1.040 to 1.082 s"]);
    // No stage of a single pod is drawn, so the legend contains none.
    assert!(legend(&series).iter().all(|key| !matches!(key.look, LegendSymbol::Mark(_))));
}

#[test]
fn group_row_counts_shared_losses_once() {
    let mut analysis = samples::rollout();
    share(&mut analysis, 1, 0);
    let series = series(&analysis);
    let [group, apart] = &series.rows[..] else { panic!("{:?}", series.rows) };
    assert_eq!(group.pods, RowPods::Group(vec![0, 1]));
    assert_eq!(group.dropped, analysis.result.groups[0].dropped);
    assert_eq!(group.dropped + apart.dropped, analysis.result.requests.dropped);
    // Time counts from the first deletion, and the second one is marked.
    assert!(group.deletions.len() == 2 && group.deletions[0] == 0.0 && group.deletions[1] > 0.3);
    let said = title(&analysis, &series);
    assert!(said.contains("s of the first deletion that may explain them"), "{said}");
    draw(&analysis).unwrap().unwrap();
}

#[test]
fn smallest_loss_groups_share_last_row() {
    let mut analysis = samples::rollout();
    for pair in 0..6 {
        share(&mut analysis, 2 * pair + 1, 2 * pair);
    }
    let groups = analysis.result.groups.clone();
    let target = |name: &str| TargetResult {
        name: name.to_owned(),
        consumer: format!("the consumer {name}"),
        requests: analysis.result.requests.clone(),
        latency_ms: analysis.result.latency_ms.clone(),
        longest_outage_s: 0.0,
        is_failing_at_end: false,
        terminations: Vec::new(),
        groups: groups.clone(),
    };
    analysis.result.targets = vec![target("web"), target("ingress")];
    let series = series(&analysis);
    let of_web: Vec<&DropRow> =
        series.rows.iter().filter(|row| row.consumer.as_deref() == Some("the consumer web")).collect();
    assert_eq!((series.rows.len(), of_web.len()), (8, 4));
    assert!(matches!(&of_web[3].pods, RowPods::Apart(pods) if pods.len() == 6), "{:?}", of_web[3].pods);
    assert_eq!(of_web.iter().map(|row| row.dropped).sum::<u64>(), analysis.result.requests.dropped);
    let least = of_web[..3].iter().map(|row| row.dropped).min().unwrap();
    let pooled: Vec<u64> = groups
        .iter()
        .filter(|g| of_web[3].pods.all().contains(&g.terminations[0]))
        .map(|g| g.dropped)
        .collect();
    assert!(pooled.len() == 3 && pooled.iter().all(|n| *n <= least), "{pooled:?} {least}");
}

#[test]
fn pods_without_shared_losses_fit_one_row() {
    let mut analysis = samples::rollout();
    analysis.lost.retain(|lost| lost.only() == Some(3));
    let series = series(&analysis);
    let rows =
        " deletion took effect · pods of the same kind share a row, each counted from its own deletion";
    assert!(subtitle(&series, &analysis.result).ends_with(rows));
    assert_eq!(series.rows.len(), 1);
}

#[test]
fn consumers_get_separate_drop_rows() {
    let mut analysis = samples::naive_exit();
    let result = &mut analysis.result;
    let target = |name: &str| TargetResult {
        name: name.to_owned(),
        consumer: format!("the consumer {name}"),
        requests: result.requests.clone(),
        latency_ms: result.latency_ms.clone(),
        longest_outage_s: 0.0,
        is_failing_at_end: false,
        terminations: Vec::new(),
        groups: Vec::new(),
    };
    result.targets = vec![target("web"), target("ingress")];
    for termination in &mut result.terminations {
        let mut other = termination.windows[0].clone();
        (other.lower_s, other.upper_s) = (Some(1.5), None);
        termination.windows.push(other);
    }
    analysis.lost.iter_mut().take(5).for_each(|lost| lost.target = "ingress".into());
    let series = series(&analysis);
    let rows: Vec<(&str, u64, bool)> = series
        .rows
        .iter()
        .map(|row| (row.consumer.as_deref().unwrap(), row.dropped, row.window.unwrap().1.is_some()))
        .collect();
    let (web, ingress) = ("the consumer web", "the consumer ingress");
    assert_eq!(
        rows,
        [
            (web, 3, true),
            (web, 9, true),
            (web, 7, true),
            (ingress, 5, false),
            (ingress, 0, false),
            (ingress, 0, false)
        ]
    );
    draw(&analysis).unwrap().unwrap();
}

#[test]
fn title_includes_requests_begun_before_deletion() {
    let mut analysis = samples::naive_exit();
    analysis.lost[0].begun_s = analysis.result.terminations[0].t0_s - 0.45;
    let said = title(&analysis, &series(&analysis));
    assert!(said.ends_with("all from 0.450 s before to 0.141 s after a pod's deletion"), "{said}");
}

#[test]
fn drops_chart_requires_terminations() {
    assert!(draw(&samples::quiet()).unwrap().is_none());
}
