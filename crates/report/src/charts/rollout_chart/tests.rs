//! Tests the data that the chart plots, and the text in it.

use super::super::timeline_chart::StackedColumn;
use super::rollout_series::series;
use super::*;
use crate::samples;
use rolldrop_explain::model::{
    Bounded, CandidateReason, ClusterAction, Deed, PodSpan, TargetResult, TerminationCandidate,
};
use rolldrop_record::event::ActionName;

/// Returns the sample rollout, with its replacement pods and its action.
fn rollout() -> Analysis {
    let mut analysis = samples::rollout();
    let ends = &analysis.result.terminations;
    let old = ends.iter().enumerate().map(|(i, t)| PodSpan {
        name: t.pod.clone(),
        termination: Some(i),
        ..PodSpan::default()
    });
    let new = ends.iter().map(|t| PodSpan {
        name: format!("{}-next", t.pod),
        created_s: Some(t.t0_s - 1.5),
        ready_s: Some(t.t0_s - 0.2),
        ..PodSpan::default()
    });
    analysis.charts.pods = old.chain(new).collect();
    analysis.charts.actions =
        vec![ClusterAction { at_s: 4.0, what: Deed::Action(ActionName::RollingRestart, None) }];
    analysis
}

fn plotted(row: &RolloutRow, of: LossRelation) -> u64 {
    row.losses.values().flatten().filter(|((whose, _), _)| *whose == of).map(|(_, n)| n).sum()
}

#[test]
fn pod_rows_match_termination_losses() {
    let analysis = rollout();
    let series = series(&analysis).unwrap();
    assert_eq!((series.rows.len(), series.began, series.together_s), (24, 12, None));
    for (row, termination) in series.rows.iter().zip(&analysis.result.terminations) {
        assert_eq!((&row.name, row.lost), (&termination.pod, termination.requests.dropped));
        assert_eq!(plotted(row, LossRelation::Own), termination.requests.dropped.at_least);
    }
    let all: u64 = series.lost[0].1.iter().flat_map(|(_, stack)| stack.values()).sum();
    assert_eq!(all, analysis.result.requests.dropped);
    assert_eq!(
        title(&analysis, &series),
        "453 of 30,000 requests were dropped as 12 pods ended and 12 pods started"
    );
    draw(&analysis).unwrap().unwrap();
}

#[test]
fn pod_phases_are_contiguous() {
    let analysis = rollout();
    let series = series(&analysis).unwrap();
    let phases =
        |row: usize| series.rows[row].lines[0].phases.iter().map(|span| span.phase).collect::<Vec<_>>();
    assert_eq!(
        phases(0),
        [
            DrawnPhase::Ready,
            DrawnPhase::Sleeping,
            DrawnPhase::Stopping,
            DrawnPhase::Refusing,
            DrawnPhase::Gone
        ]
    );
    assert_eq!(phases(23), [DrawnPhase::Starting, DrawnPhase::Ready]);
    for span in series.rows.iter().flat_map(|row| &row.lines).flat_map(|line| line.phases.windows(2)) {
        assert!((span[0].to_s - span[1].from_s).abs() < 1e-9, "{span:?}");
    }
}

#[test]
fn shared_losses_appear_on_both_rows() {
    let mut analysis = rollout();
    for lost in analysis.lost.iter_mut().filter(|lost| lost.only() == Some(1)) {
        lost.candidates = [0, 1]
            .map(|termination| TerminationCandidate { termination, share: 0.5, why: CandidateReason::Time })
            .into();
    }
    let n = analysis.result.terminations[1].requests.dropped.at_most;
    let series = series(&analysis).unwrap();
    assert_eq!([0, 1].map(|row| plotted(&series.rows[row], LossRelation::Shared)), [n, n]);
    assert_eq!((series.rows[1].lost.at_least, series.rows[1].lost.at_most), (0, n));
}

#[test]
fn shared_pod_row_counts_losses_once() {
    let mut analysis = rollout();
    for i in 0..40_u32 {
        let created_s = Some(20.0 + f64::from(i / 20) * 10.0 + f64::from(i % 20) * 0.01);
        analysis.charts.pods.push(PodSpan { name: format!("late-{i}"), created_s, ..PodSpan::default() });
    }
    for lost in analysis.lost.iter_mut().filter(|lost| lost.only() == Some(1)) {
        lost.candidates = [0, 1]
            .map(|termination| TerminationCandidate { termination, share: 0.5, why: CandidateReason::Time })
            .into();
    }
    let series = series(&analysis).unwrap();
    assert_eq!(series.together_s, Some(0.5));
    assert!(series.rows.len() <= 40 && series.rows.iter().map(|row| row.lines.len()).sum::<usize>() == 64);
    let first = &series.rows[0];
    assert!(first.name.starts_with("2 pods: "), "{}", first.name);
    let both = analysis.lost.iter().filter(|lost| lost.may_be(0) || lost.may_be(1)).count();
    assert_eq!(
        first.lost,
        Bounded { at_least: both as u64, at_most: both as u64, estimate: first.lost.estimate }
    );
    let said = subtitle(&series, &analysis.result);
    assert!(said.contains("within 0.500 s of each other share a row"), "{said}");
    draw(&analysis).unwrap().unwrap();
}

#[test]
fn surviving_pod_shows_restart_and_withdrawal() {
    let mut analysis = samples::quiet();
    analysis.charts.pods = vec![
        PodSpan { name: "web-1".into(), down_s: vec![(5.0, Some(6.5))], ..PodSpan::default() },
        PodSpan { name: "web-2".into(), out_s: vec![(8.0, None)], ..PodSpan::default() },
        PodSpan { name: "web-3".into(), ..PodSpan::default() },
    ];
    let series = series(&analysis).unwrap();
    let phases: Vec<Vec<DrawnPhase>> =
        series.rows.iter().map(|row| row.lines[0].phases.iter().map(|span| span.phase).collect()).collect();
    assert_eq!(
        phases,
        [
            vec![DrawnPhase::Ready, DrawnPhase::Down, DrawnPhase::Ready],
            vec![DrawnPhase::Ready, DrawnPhase::Out]
        ]
    );
    assert_eq!((series.quiet, series.restarted, series.withdrawn), (1, 1, 1));
    assert!(series.rows.iter().all(|row| !row.has_losses), "only pods that ended have losses");
    assert!(!subtitle(&series, &analysis.result).contains("its termination"));
    assert_eq!(
        title(&analysis, &series),
        "0 of 4,000 requests were dropped as 1 container restarted and 1 pod left its Services"
    );
}

#[test]
fn consumers_get_separate_loss_plots() {
    let mut analysis = rollout();
    let target = |name: &str| TargetResult {
        name: name.to_owned(),
        consumer: format!("the consumer {name}"),
        requests: analysis.result.requests.clone(),
        latency_ms: analysis.result.latency_ms.clone(),
        longest_outage_s: 0.0,
        is_failing_at_end: false,
        terminations: Vec::new(),
        groups: Vec::new(),
    };
    analysis.result.targets = vec![target("web"), target("ingress")];
    analysis.lost.iter_mut().take(30).for_each(|lost| lost.target = "ingress".into());
    let series = series(&analysis).unwrap();
    let of = |(name, columns): &(Option<String>, Vec<StackedColumn>)| {
        (name.clone().unwrap(), columns.iter().flat_map(|(_, stack)| stack.values()).sum::<u64>())
    };
    let lost: Vec<(String, u64)> = series.lost.iter().map(of).collect();
    assert_eq!(lost, [("the consumer web".to_owned(), 423), ("the consumer ingress".to_owned(), 30)]);
    draw(&analysis).unwrap().unwrap();
}

#[test]
fn rollout_chart_requires_pod_events() {
    assert!(draw(&samples::quiet()).unwrap().is_none());
}
