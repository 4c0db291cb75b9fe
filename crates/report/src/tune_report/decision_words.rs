//! Puts the reasons for a tuning's decisions into words.

use crate::format::{count, counted, either, len};
use rolldrop_judge::tuning::{
    CoverageUnit, EndedEarly, EndedStreams, LostAtStart, NoChoice, StartSetting, Units, Unproven, Unsupported,
};

/// Formats a number of units in words.
pub fn counted_units(unit: CoverageUnit, number: usize) -> String {
    match unit {
        CoverageUnit::Ends => format!("{} that left the rules separately", counted(len(number), "pod")),
        CoverageUnit::Rollouts => counted(len(number), "rollout"),
        CoverageUnit::Deletions => counted(len(number), "one-at-a-time deletion"),
    }
}

/// Describes units in words, and adds the number of rollouts if the unit is a different one.
pub fn units(units: Units) -> String {
    let counted_units = counted_units(units.unit, units.number);
    match units.unit {
        CoverageUnit::Ends => format!("{counted_units}, in {}", counted(len(units.rollouts), "rollout")),
        CoverageUnit::Rollouts | CoverageUnit::Deletions => counted_units,
    }
}

/// States that a pod did not sleep as long as it should have.
pub fn ended_early(early: &EndedEarly) -> String {
    let EndedEarly { pod, ended_s, sleep_s } = early;
    format!(
        "pod {pod} exited {ended_s:.1} s after its deletion, although it should have slept for {sleep_s} s first: its \
         preStop hook failed (the image may lack its program), or the app exited by itself"
    )
}

/// Explains why windows support no settings, one sentence per reason.
pub fn unsupported(why: &Unsupported) -> Vec<String> {
    match why {
        Unsupported::NoEnd => vec!["no pod ended, so there is no window".to_owned()],
        Unsupported::Refused(why) => why.clone(),
    }
}

/// Explains why a run proves nothing, one sentence per reason.
pub fn unproven(why: &Unproven) -> Vec<String> {
    match why {
        Unproven::Untrusted(why) => why.clone(),
        Unproven::NoEnd => vec!["no pod ended".to_owned()],
        Unproven::FewUnits { seen, needed } => {
            let were = either(len(seen.number), "was", "were");
            vec![format!(
                "only {} {were} seen, but {needed} {} needed",
                units(*seen),
                either(len(*needed), "is", "are")
            )]
        }
    }
}

/// Explains why a record of streams supports no settings.
pub fn no_choice(why: &NoChoice) -> String {
    match why {
        NoChoice::NoPrediction(why) => crate::no_prediction(why),
        NoChoice::FewStreams { recorded, more } => {
            let needed = match more {
                Some(more) => format!("about {} more are needed", count(*more)),
                None => "no number of streams would be enough".to_owned(),
            };
            format!(
                "{} cannot show which settings stay within --max-cut: {needed} (or a larger --max-cut)",
                counted(len(*recorded), "stream")
            )
        }
    }
}

/// States that a proof cut more streams than its settings are predicted to cut.
pub fn cuts_streams(seen: EndedStreams, most: u64) -> String {
    format!(
        "{} of {} were cut, and the prediction explains at most {}: streams last longer in terminating pods",
        count(seen.cut),
        counted(seen.alive, "stream"),
        count(most)
    )
}

/// States that requests were lost while pods started in spite of the chosen settings.
pub fn lost_at_start(lost: LostAtStart) -> String {
    let setting = match lost.setting {
        StartSetting::ReadinessDelay => "readiness delay",
        StartSetting::MinReadySeconds => "minReadySeconds",
    };
    let requests = counted(lost.requests, "request");
    let were = either(lost.requests, "was", "were");
    format!("with the chosen {setting}, {requests} {were} still lost to {}", lost.cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::Cause;

    #[test]
    fn reasons_include_figures() {
        let early = EndedEarly { pod: "web-1".into(), ended_s: 0.4, sleep_s: 20 };
        let told = "pod web-1 exited 0.4 s after its deletion, although it should have slept for 20 s first: its \
                    preStop hook failed (";
        assert!(ended_early(&early).starts_with(told), "{}", ended_early(&early));
        let deletions = Units { unit: CoverageUnit::Deletions, number: 2, rollouts: 0 };
        assert_eq!(
            unproven(&Unproven::FewUnits { seen: deletions, needed: 29 }),
            ["only 2 one-at-a-time deletions were seen, but 29 are needed"]
        );
        let ends = Units { unit: CoverageUnit::Ends, number: 6, rollouts: 2 };
        assert_eq!(units(ends), "6 pods that left the rules separately, in 2 rollouts");
        assert_eq!(unsupported(&Unsupported::NoEnd), ["no pod ended, so there is no window"]);
        let setting = StartSetting::ReadinessDelay;
        assert_eq!(
            lost_at_start(LostAtStart { cause: Cause::NotReadyYet, requests: 2, setting }),
            "with the chosen readiness delay, 2 requests were still lost to not_ready_yet"
        );
    }
}
