//! What the chart plots and says.

use super::*;
use crate::samples;
use rolldrop_analysis::model::{Bounded, Why};

#[test]
fn every_drop_is_plotted_where_it_was_begun() {
    let analysis = samples::naive_exit();
    let series = series(&analysis);
    assert_eq!(series.panels.len(), 3);
    for panel in &series.panels {
        let plotted: u64 = panel.bins.values().flat_map(BTreeMap::values).sum();
        assert_eq!(
            Bounded::exactly(plotted),
            analysis.result.terminations[panel.termination].requests.dropped
        );
        assert_eq!(panel.drops_beyond, 0);
        let t0 = analysis.result.terminations[panel.termination].t0_s;
        for drop in analysis.lost.iter().filter(|lost| lost.only() == Some(panel.termination)) {
            let bin = bin_of(drop.begun_s - t0, series.bin_s);
            assert!(panel.bins[&bin].contains_key(&(Whose::Own, drop.outcome)));
        }
    }
    assert!(series.from_s < 0.0 && series.to_s > 0.16, "{series:?}");
    assert_eq!(title(&analysis), "24 of 9,000 requests dropped, all within 0.141 s of a pod's deletion");
    assert_eq!(
        subtitle(&series, &analysis.result),
        "Cause: routed to a pod that no longer accepted connections · Remedy: lifecycle: {preStop: \
         {sleep: {seconds: 1}}} (suggested, not proven)\nTime at which each lost request was begun, since \
         the deletion of a pod that may have lost it took effect"
    );
}

#[test]
fn a_run_without_drops_still_shows_its_window() {
    let analysis = samples::prestop_sleep();
    let series = series(&analysis);
    assert!(series.panels.iter().all(|p| p.bins.is_empty() && !p.late.is_empty()));
    assert!(series.panels.iter().all(|p| p.marks.len() == 4));
    // The window is drawn in detail, SIGTERM and exit after a break.
    assert!(series.left_out_s.is_some_and(|b| b.from > 0.168 && b.from < 0.3 && b.to > 2.5 && b.to < 3.017));
    assert!(series.to_s > 3.021);
}

#[test]
fn many_pods_show_those_that_lost_most() {
    let analysis = samples::rollout();
    let series = series(&analysis);
    assert_eq!((series.panels.len(), series.hidden), (8, 4));
    assert!(subtitle(&series, &analysis.result).contains("the 8 pods that may have lost most, of 12"));
}

#[test]
fn what_two_pods_explain_is_drawn_in_both_rows_and_the_title_says_so() {
    let mut analysis = samples::naive_exit();
    for lost in analysis.lost.iter_mut().filter(|lost| lost.only() == Some(1)) {
        let other = Candidate { termination: 0, share: 0.5, why: Why::Time };
        lost.candidates[0].share = 0.5;
        lost.candidates.push(other);
    }
    // As where both were deleted at once.
    let at_s = analysis.result.terminations[1].t0_s;
    analysis.result.terminations[0].t0_s = at_s;
    let series = series(&analysis);
    let shared = |panel: &Panel| -> u64 {
        let of = panel.bins.values().flatten().filter(|((whose, _), _)| *whose == Whose::Shared);
        of.map(|(_, n)| n).sum()
    };
    assert_eq!(series.panels.iter().map(shared).collect::<Vec<_>>(), [9, 9, 0]);
    assert_eq!(series.elsewhere, 0);
    assert!(legend(&series).iter().any(|key| matches!(key.look, Look::Outlined(..))));
    analysis.lost.retain(|lost| lost.may_be(1));
    analysis.result.requests.dropped = 9;
    let said = title(&analysis);
    assert!(said.ends_with("all within 0.141 s of the deletion of a pod that may have lost them"), "{said}");
    draw(&analysis).unwrap();
}

#[test]
fn requests_that_were_under_way_at_the_deletion_are_said_to_be_so() {
    let mut analysis = samples::naive_exit();
    analysis.lost[0].begun_s = analysis.result.terminations[0].t0_s - 0.45;
    let said = title(&analysis);
    assert!(said.ends_with("all from 0.450 s before to 0.141 s after a pod's deletion"), "{said}");
}

#[test]
fn a_run_without_terminations_has_no_panel() {
    let series = series(&samples::quiet());
    assert!(series.panels.is_empty());
    assert_eq!(series.hidden, 0);
}
