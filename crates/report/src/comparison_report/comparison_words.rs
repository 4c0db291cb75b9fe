//! Puts a comparison into words: the contents of `comparison.json`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::methods;
use rolldrop_judge::compare::Incomparable;
use rolldrop_judge::judgements::comparison::{
    Caveat, Comparison, ComparisonRow, ComparisonSide, Difference, FigureChange, Judgement, MetricUnit,
};

/// Version of `comparison.json`.
const SCHEMA_VERSION: u32 = 1;

/// A comparison in words, one row per figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ComparisonText {
    schema_version: u32,
    pub(super) verdict: Judgement,
    pub(super) confidence: f64,
    pub(super) tolerance: f64,
    pub(crate) baseline: ComparisonSide,
    pub(crate) candidate: ComparisonSide,
    pub(super) differences: Vec<DifferenceText>,
    pub(super) caveats: Vec<String>,
    pub(super) rows: Vec<RowText>,
}

/// A difference in something other than the results, in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DifferenceText {
    pub(super) what: String,
    pub(super) baseline: String,
    pub(super) candidate: String,
}

/// One figure on both sides, in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RowText {
    metric: String,
    /// Human-readable name.
    pub(super) label: String,
    pub(super) unit: MetricUnit,
    pub(super) baseline: Option<f64>,
    pub(super) candidate: Option<f64>,
    pub(super) change: Option<FigureChange>,
    p: Option<f64>,
    pub(super) verdict: Option<Judgement>,
    /// Method by which the row was judged, or the reason why it is inconclusive.
    pub(super) why: String,
}

impl ComparisonText {
    /// Puts a comparison into words.
    pub(crate) fn of(comparison: &Comparison) -> Self {
        let Comparison { verdict, confidence, tolerance, baseline, candidate, .. } = comparison;
        Self {
            schema_version: SCHEMA_VERSION,
            verdict: *verdict,
            confidence: *confidence,
            tolerance: *tolerance,
            baseline: baseline.clone(),
            candidate: candidate.clone(),
            differences: comparison.differences.iter().map(difference).collect(),
            caveats: comparison.caveats.iter().map(caveat).collect(),
            rows: comparison.rows.iter().map(row).collect(),
        }
    }
}

fn row(row: &ComparisonRow) -> RowText {
    RowText {
        metric: row.metric.to_string(),
        label: methods::label(&row.metric),
        unit: row.unit,
        baseline: row.baseline,
        candidate: row.candidate,
        change: row.change,
        p: row.p,
        verdict: row.verdict,
        why: methods::how(row),
    }
}

fn difference(difference: &Difference) -> DifferenceText {
    let values = |all: &BTreeSet<Option<String>>| {
        let mut values: Vec<&str> = all.iter().map(|value| value.as_deref().unwrap_or("not given")).collect();
        values.sort_unstable();
        values.join(" and ")
    };
    let validity = |invalid: &Option<Vec<String>>| match invalid {
        Some(why) => format!("invalid ({})", why.join("; ")),
        None => "valid".to_owned(),
    };
    match difference {
        Difference::Setting { name, baseline, candidate } => {
            DifferenceText { what: name.clone(), baseline: values(baseline), candidate: values(candidate) }
        }
        Difference::Validity { baseline, candidate } => DifferenceText {
            what: "the measurement".to_owned(),
            baseline: validity(baseline),
            candidate: validity(candidate),
        },
    }
}

fn caveat(caveat: &Caveat) -> String {
    let counts = |all: &BTreeSet<u64>| all.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ");
    match caveat {
        Caveat::Partial { run, why } => format!("{run} is partial: {}", why.join("; ")),
        Caveat::Scale { of, baseline, candidate } => {
            format!("{of}: {} in the baseline, {} here", counts(baseline), counts(candidate))
        }
        Caveat::OneRun => methods::ONE_RUN.to_owned(),
    }
}

/// Explains why two sides are not compared.
pub(crate) fn incomparable(why: &Incomparable) -> String {
    match why {
        Incomparable::Nothing => "there is no run to compare".to_owned(),
        Incomparable::Differs(differences) => {
            let words = |d: DifferenceText| {
                format!("{} is {} here and {} in the baseline", d.what, d.candidate, d.baseline)
            };
            let differences: Vec<String> = differences.iter().map(difference).map(words).collect();
            format!("the runs are not comparable: {}", differences.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_lists_differences() {
        let rate = |rate: &str| BTreeSet::from([Some(rate.to_owned())]);
        let differences = vec![
            Difference::Setting {
                name: "rate".into(),
                baseline: rate("200 requests/s"),
                candidate: BTreeSet::from([None, Some("300 requests/s".to_owned())]),
            },
            Difference::Validity { baseline: None, candidate: Some(vec!["it fell behind".into()]) },
        ];
        assert_eq!(
            incomparable(&Incomparable::Differs(differences)),
            "the runs are not comparable: rate is 300 requests/s and not given here and 200 requests/s in the baseline; \
             the measurement is invalid (it fell behind) here and valid in the baseline"
        );
    }

    #[test]
    fn scale_caveat_states_both_sides() {
        let (baseline, candidate) = (BTreeSet::from([3]), BTreeSet::from([5]));
        let scale = Caveat::Scale { of: "nodes".into(), baseline, candidate };
        assert_eq!(caveat(&scale), "nodes: 3 in the baseline, 5 here");
    }
}
