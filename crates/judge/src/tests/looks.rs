//! Tests gates that are checked repeatedly while terminations are added.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::expected::{only, run};
use super::*;
use crate::spending;
use rolldrop_explain::model::CheckVerdict;
use rolldrop_record::ALPHA;
use rolldrop_record::Looks;

/// Marks the result as look number `at` of `most`.
fn looked_at(mut result: RunResult, at: usize, most: usize) -> RunResult {
    result.looks = Some(Looks { at, ..spending::looks(most) });
    result
}

#[test]
fn each_look_uses_its_own_confidence() {
    let p90 = json!({"windows": {"p90": {"max": "1s"}}});
    let check = only(&run(&[0; 29]), p90.clone());
    assert_eq!(check.verdict, CheckVerdict::Pass, "{check:?}");
    // 0.9^n falls below the first of the four errors, 1.79 %, at n = 39.
    let open = only(&looked_at(run(&[0; 29]), 1, 4), p90.clone());
    assert_eq!(open.verdict, CheckVerdict::Inconclusive);
    let Basis::Percentile { confidence, windows, needed, .. } = measured(&open).basis else {
        panic!("{open:?}")
    };
    assert!((confidence - 0.9821).abs() < 5e-5, "{confidence}");
    assert_eq!((windows, needed), (29, Some(39)));
    assert_eq!(only(&looked_at(run(&[0; 39]), 1, 4), p90).verdict, CheckVerdict::Pass);
    let share = json!({"dropped": {"max": "0.1%"}});
    let confidence = |result: &RunResult| match measured(&only(result, share.clone())).basis {
        Basis::Losses { confidence, units, .. } => (units.number, (confidence * 1e4).round()),
        ref basis => panic!("{basis:?}"),
    };
    assert_eq!(confidence(&run(&[0, 2])), (2, 9500.0));
    assert_eq!(confidence(&looked_at(run(&[0, 2]), 4, 4)), (2, 9914.0));
    // Counts are judged as observed.
    assert_eq!(
        only(&looked_at(run(&[0, 2]), 1, 4), json!({"dropped": {"max": 2}})).verdict,
        CheckVerdict::Pass
    );
}

#[test]
fn window_bounds_use_confidence_of_look() {
    let upper_s = |looks: Option<Looks>| {
        let mut records = three_pods();
        records.info.looks = looks;
        let Analysis { result, account, .. } = analysed(records);
        (result.terminations[0].windows[0].upper_s.expect("a bound"), account)
    };
    let (fixed_s, _) = upper_s(None);
    let (last_s, account) = upper_s(Some(Looks { at: 4, ..spending::looks(4) }));
    assert!(last_s > fixed_s, "{last_s} {fixed_s}");
    let looked_at = account.findings.iter().find_map(|finding| match finding {
        Finding::LookedAt { look: 4, most: 4, confidence, .. } => Some(*confidence),
        _ => None,
    });
    assert!((looked_at.unwrap() - 0.9914).abs() < 5e-5, "{looked_at:?}");
}

/// Returns true if a gate that requires 90 % passes at a look after `n` terminations, `long` of which had a window that
/// was too long.
fn passes(n: usize, long: usize, looks: Option<Looks>) -> bool {
    let mut result = run(&vec![0; n]);
    for t in &mut result.terminations[..long] {
        (t.windows[0].lower_s, t.windows[0].upper_s) = (Some(1.5), Some(1.6));
    }
    result.looks = looks;
    only(&result, json!({"preStop": {"suffices": "90%"}})).verdict == CheckVerdict::Pass
}

#[test]
fn repeated_looks_keep_error_within_alpha() {
    const RUNS: usize = 20_000;
    const MOST: usize = 8;
    const ROUND: usize = 40;
    // Slightly too many windows outlast the sleep, so a pass would be wrong.
    const LONG: f64 = 0.1001;
    let mut known: BTreeMap<(bool, usize, usize), bool> = BTreeMap::new();
    let mut wrong = |is_spending: bool| {
        let mut random = StdRng::seed_from_u64(17);
        let passes_wrongly = |_: &usize| {
            // All draws are made in advance so that both rules see the same runs.
            let rounds: Vec<usize> =
                (0..MOST).map(|_| (0..ROUND).filter(|_| random.random_bool(LONG)).count()).collect();
            let mut long = 0;
            (1..=MOST).any(|at| {
                long += rounds[at - 1];
                let looks = is_spending.then(|| Looks { at, ..spending::looks(MOST) });
                *known.entry((is_spending, at, long)).or_insert_with(|| passes(at * ROUND, long, looks))
            })
        };
        (0..RUNS).filter(passes_wrongly).count() as f64 / RUNS as f64
    };
    let (naive, spending) = (wrong(false), wrong(true));
    // Five standard deviations above the allowed rate.
    let allowed = ALPHA + 5.0 * (ALPHA * (1.0 - ALPHA) / RUNS as f64).sqrt();
    assert!(naive > 1.5 * allowed, "eight looks at 95 % are wrong in {naive} of the runs");
    assert!(spending <= allowed && spending > 0.005, "{spending}");
}

#[test]
fn rollout_limit_applies_per_repetition() {
    let mut result = run(&[0, 0]);
    let judge = |result: &RunResult| only(result, json!({"rollout": {"max": "3s"}})).verdict;
    for t in &mut result.terminations {
        (t.mode, t.disruption) = (Mode::Rollout, Some(0));
    }
    assert_eq!(judge(&result), CheckVerdict::Fail, "as a single rollout, it takes 12 s");
    for (t, repetition) in result.terminations.iter_mut().zip(0..) {
        t.repetition = Some(repetition);
    }
    assert_eq!(judge(&result), CheckVerdict::Pass);
}
