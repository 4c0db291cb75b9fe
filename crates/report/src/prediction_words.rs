//! The text of `rolldrop predict`.

use std::fmt::Write;

use super::format::{count, counted, len};
use rolldrop_explain::model::figure_text::{percent, percent_down};
use rolldrop_explain::model::{MissingShare, PredictedCut};
use rolldrop_judge::prediction::{
    CutUnknown, Estimate, Forecast, FurtherCut, MeanCut, NoPrediction, StreamPrediction,
};

/// Returns a prediction as text: the advice, its basis, and the tables.
pub(crate) fn text(of: &StreamPrediction) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(of, &mut out);
    out
}

fn write_text(of: &StreamPrediction, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "at most {} streams cut per termination, with {} confidence, at {:.3} new streams per pod per second:",
        of.max_cut,
        percent(of.confidence),
        of.rate_per_pod
    )?;
    writeln!(
        out,
        "  if the app keeps serving its streams after SIGTERM: {}",
        advice(of.least_grace, "grace period", of.sleep_s)
    )?;
    writeln!(
        out,
        "  if the app cuts its streams at SIGTERM: {}",
        advice(of.least_sleep, "preStop sleep", 0.0)
    )?;
    if let (Some(grace_s), Some(expects), Some(cuts)) = (of.rule_grace_s, of.rule_expects, of.rule_cuts) {
        let cuts = cuts.known().map_or_else(|| "an unknown number".to_owned(), |mean| mean_text(&mean));
        writeln!(
            out,
            "the rule \"99th percentile of the duration\" ({grace_s:.1} s) expects to cut {expects:.2} per termination; it would cut {cuts}"
        )?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "based on {:.0} s without a termination, {} and {}; {:.1} were open per pod; {} of the stationary population was missing",
        of.steady_s,
        counted(len(of.pods), "pod"),
        counted(len(of.streams), "stream"),
        of.open_per_pod,
        missing_text(of.missing),
    )?;
    match (of.window_s, of.window_at_least_s) {
        (Some(window_s), _) => writeln!(
            out,
            "new streams keep arriving for at most {window_s:.1} s after the deletion, as measured"
        )?,
        (None, Some(least_s)) => writeln!(
            out,
            "new streams keep arriving for at least {least_s:.1} s after the deletion, and it is not known for how much longer: \
             a window has no upper bound"
        )?,
        (None, None) => writeln!(
            out,
            "no propagation window was measured: streams that still arrive at a terminating pod are not counted"
        )?,
    }
    table(
        out,
        &format!("the app keeps serving after SIGTERM, preStop sleep {} s", of.sleep_s),
        "grace period",
        (&of.draining, of.terminations),
        |end| end.end.grace_s,
    )?;
    table(
        out,
        "the app cuts its streams at SIGTERM",
        "preStop sleep",
        (&of.cutting, of.terminations),
        |end| end.end.sleep_s,
    )
}

fn advice(least: Estimate<u64>, setting: &str, sleep_s: f64) -> String {
    let sleep = if sleep_s > 0.0 { format!(", with a preStop sleep of {sleep_s} s") } else { String::new() };
    match least {
        Estimate::Known(seconds) => format!("{setting} of {seconds} s{sleep}"),
        Estimate::Unknown { more_streams: Some(more) } => {
            format!("unknown: record about {more} more streams, or allow more cuts (--max-cut)")
        }
        Estimate::Unknown { more_streams: None } => {
            "unknown: no record can prove that a stream is never cut; set a number with --max-cut".to_owned()
        }
    }
}

fn table(
    out: &mut String,
    title: &str,
    setting: &str,
    (rows, terminations): (&[Forecast], u64),
    seconds: impl Fn(&Forecast) -> f64,
) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}:")?;
    writeln!(
        out,
        "{setting:>14}  {:<24}{:<20}{:<30}terminating",
        "cut per termination",
        format!("cut in {terminations}"),
        "terminations without a cut"
    )?;
    for row in rows {
        let cut = row.cut.known().map_or_else(|| "unknown".to_owned(), |mean| mean_text(&mean));
        let in_all = row.cut_in_all.known();
        let in_all =
            in_all.map_or_else(|| "unknown".to_owned(), |all| format!("{} to {}", all.lower, all.upper));
        let uncut = match row.uncut.estimate {
            Some(share) => format!(
                "{:.0} % ({:.0} to {:.0})",
                100.0 * share,
                100.0 * row.uncut.lower,
                100.0 * row.uncut.upper
            ),
            None => "unknown".to_owned(),
        };
        let terminating =
            row.terminating_s.map_or_else(|| "unknown".to_owned(), |s| format!("{s:.1} s per pod"));
        writeln!(out, "{:>12} s  {cut:<24}{in_all:<20}{uncut:<30}{terminating}", seconds(row))?;
    }
    Ok(())
}

fn mean_text(mean: &MeanCut) -> String {
    format!("{:.2} ({:.2} to {:.2})", mean.estimate, mean.lower, mean.upper)
}

fn missing_text(missing: Option<MissingShare>) -> String {
    match missing {
        Some(MissingShare::Exactly(share)) => percent(share),
        Some(MissingShare::AtLeast(share)) => format!("at least {}", percent_down(share)),
        None => "an unknown share".to_owned(),
    }
}

/// Returns the reason why there is no prediction, and what would help.
pub(crate) fn refusal(why: &NoPrediction) -> String {
    match why {
        NoPrediction::NoPods { unnamed } => format!(
            "cuts are predicted per pod, but the pods of {unnamed} streams are unknown: have responses name \
             their pod (--pod-header or the sidecar), or use --evidence conntrack"
        ),
        NoPrediction::StillGrowing { after_s, missing } => format!(
            "the number of open streams was still growing: {} of it was missing at the first termination or at the end of \
             the load (steady for {after_s:.0} s). Let the load run longer before the \
             first disruption, so that the longest streams end",
            missing_text(*missing)
        ),
    }
}

/// Converts a prediction to the form used in `result.json`.
pub(crate) fn predicted(of: &FurtherCut) -> PredictedCut {
    PredictedCut {
        settings: of.settings,
        pre_stop_seconds: of.pre_stop_s,
        grace_period_seconds: of.grace_s,
        cut: of.cut.ok(),
        unknown_because: of.cut.err().map(|why| unknown(&why)),
    }
}

fn unknown(why: &CutUnknown) -> String {
    match why {
        CutUnknown::RunNotValid => "the run is not valid, or not complete".to_owned(),
        CutUnknown::NoPrediction(why) => refusal(why),
        CutUnknown::ReactionNotSeen => {
            "no stream was open at SIGTERM: the run does not show whether the app keeps serving its streams"
                .to_owned()
        }
        CutUnknown::SleepHidden => "a preStop hook other than a sleep hides the time of SIGTERM".to_owned(),
        CutUnknown::TooFew(more) => {
            let more = more.map(|more| format!(": record about {} more streams", count(more)));
            format!("too few streams in the steady part last long enough{}", more.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use rolldrop_explain::model::SettingsOrigin;
    use rolldrop_judge::prediction::{CutRange, OnSigterm, PodShutdown, UncutShare};

    use super::*;

    fn prediction() -> StreamPrediction {
        let forecast = |seconds: f64, cut| Forecast {
            end: PodShutdown { sleep_s: 2.0, grace_s: seconds, on_sigterm: OnSigterm::Drains },
            refused: Some(0.0),
            cut,
            cut_in_all: cut.map(|_| CutRange { lower: 0, upper: 5 }),
            uncut: UncutShare { estimate: Some(0.91), lower: 0.84, upper: 0.96 },
            terminating_s: Some(12.5),
        };
        let mean = MeanCut { estimate: 0.61, lower: 0.52, upper: 0.73, undecided: 0.0 };
        StreamPrediction {
            steady_s: 1800.0,
            pods: 3,
            streams: 5412,
            rate_per_pod: 1.0,
            open_per_pod: 9.87,
            missing: Some(MissingShare::Exactly(0.004)),
            window_s: Some(1.4),
            window_at_least_s: None,
            sleep_s: 2.0,
            draining: vec![
                forecast(30.0, Estimate::Known(mean)),
                forecast(60.0, Estimate::Unknown { more_streams: Some(120) }),
            ],
            cutting: Vec::new(),
            confidence: 0.95,
            terminations: 3,
            max_cut: 0.1,
            least_grace: Estimate::Known(47),
            least_sleep: Estimate::Unknown { more_streams: Some(900) },
            rule_grace_s: Some(31.2),
            rule_expects: Some(0.0987),
            rule_cuts: Some(Estimate::Known(mean)),
        }
    }

    #[test]
    fn prediction_states_advice_before_tables() {
        insta::assert_snapshot!(text(&prediction()), @r#"
        at most 0.1 streams cut per termination, with 95 % confidence, at 1.000 new streams per pod per second:
          if the app keeps serving its streams after SIGTERM: grace period of 47 s, with a preStop sleep of 2 s
          if the app cuts its streams at SIGTERM: unknown: record about 900 more streams, or allow more cuts (--max-cut)
        the rule "99th percentile of the duration" (31.2 s) expects to cut 0.10 per termination; it would cut 0.61 (0.52 to 0.73)

        based on 1800 s without a termination, 3 pods and 5,412 streams; 9.9 were open per pod; 0.4 % of the stationary population was missing
        new streams keep arriving for at most 1.4 s after the deletion, as measured

        the app keeps serving after SIGTERM, preStop sleep 2 s:
          grace period  cut per termination     cut in 3            terminations without a cut    terminating
                  30 s  0.61 (0.52 to 0.73)     0 to 5              91 % (84 to 96)               12.5 s per pod
                  60 s  unknown                 unknown             91 % (84 to 96)               12.5 s per pod
        "#);
    }

    #[test]
    fn unknown_cut_has_reason_in_words() {
        let settings = SettingsOrigin::Current;
        let cut = Err(CutUnknown::TooFew(Some(1200)));
        let few = predicted(&FurtherCut { settings, pre_stop_s: Some(5), grace_s: Some(60), cut });
        assert_eq!((few.pre_stop_seconds, few.grace_period_seconds, few.cut), (Some(5), Some(60), None));
        assert!(few.unknown_because.unwrap().ends_with("long enough: record about 1,200 more streams"));
    }

    #[test]
    fn refusal_names_remedy() {
        let pods = refusal(&NoPrediction::NoPods { unnamed: 12 });
        assert!(pods.contains("the pods of 12 streams are unknown") && pods.contains("--pod-header"));
        let missing = Some(MissingShare::AtLeast(0.25));
        let growing = refusal(&NoPrediction::StillGrowing { after_s: 8.0, missing });
        assert!(
            growing.contains("at least 25 % of it was missing") && growing.contains("run longer"),
            "{growing}"
        );
    }
}
