//! Puts findings about streams into words.

use super::super::format::counted;
use super::{Words, cause_words, words};
use rolldrop_explain::model::UnevenStreams;
use rolldrop_explain::model::account::{ShortDrain, SigtermCut};

/// Minimum time in seconds from SIGTERM to the first cut stream that shows a shutdown timeout. A busy app may need a
/// while to cut its streams even without one.
const DRAINED_S: f64 = 1.0;

/// Describes streams that were still open when the grace period ran out.
pub(super) fn drained_too_short(what: String, drain: ShortDrain) -> Words {
    let longest = match drain.longest_s {
        Some(s) => format!("preStop plus the longest stream, which took {s:.1} s here"),
        None => "preStop plus the longest stream, which this run did not see to its end".to_owned(),
    };
    let why = format!("streams were still open when the kubelet killed their pod after {} s", drain.grace_s);
    if let Some(notice) = drain.missing_notice {
        return words(
            what,
            format!("{why}, because new streams kept coming on kept connections"),
            format!(
                "{} after SIGTERM, and a terminationGracePeriodSeconds above {longest}: no grace period is \
                 long enough by itself",
                cause_words::announces_close(notice)
            ),
        );
    }
    words(
        what,
        why,
        format!(
            "a terminationGracePeriodSeconds above {longest}; rolldrop predict shows how many streams each grace period \
             would cut"
        ),
    )
}

/// Describes streams that the app cut after SIGTERM.
pub(super) fn cut_at_sigterm(what: String, cut: SigtermCut) -> Words {
    let after = match cut.after_s {
        Some((least, most)) if format!("{least:.1}") == format!("{most:.1}") => {
            format!("{least:.1} s after SIGTERM")
        }
        Some((least, most)) => format!("{least:.1} to {most:.1} s after SIGTERM"),
        None => "after SIGTERM".to_owned(),
    };
    let told = match cut.told {
        0 => "without a message to the client".to_owned(),
        n => format!("{} with a message to the client", counted(n, "stream")),
    };
    words(
        what,
        format!("the app ends its open streams {after}, before the grace period is over ({told})"),
        match cut.after_s {
            Some((least, _)) if least >= DRAINED_S => {
                "raise the app's own shutdown timeout above the longest stream (gunicorn: --graceful-timeout; uvicorn: \
                 --timeout-graceful-shutdown), and the grace period above preStop plus that timeout; or set a preStop sleep \
                 longer than the streams"
            }
            _ => {
                "finish open streams on SIGTERM, or set a preStop sleep longer than the streams: a longer grace period \
                 alone does not help"
            }
        },
    )
}

/// Describes streams that a gateway ended.
pub(super) fn gateway_cut(what: String) -> Words {
    words(
        what,
        "a gateway closed streams that their pods were still serving",
        "set the gateway's timeout for silent upstreams above the longest gap between two events, and its limits on whole \
         responses and its own reloads above the longest stream; the gateway's log may show which one applied",
    )
}

/// Describes an uneven distribution of streams over the pods.
pub(super) fn uneven(uneven: &UnevenStreams) -> Words {
    let UnevenStreams { pods, open, most, fewest, after_s } = uneven;
    words(
        format!(
            "streams are unevenly distributed: {:.0} s after the last termination, {} has {} of {open} open \
             streams, and {} has {}",
            after_s.max(0.0),
            most.0,
            most.1,
            fewest.0,
            fewest.1
        ),
        format!(
            "streams stay on the pod that accepted them, so the {pods} pods share the load only as streams end; new pods \
             get few"
        ),
        "limit how long a stream or a connection may last, so that clients reconnect; or balance by the number of open \
         requests (least_request, leastconn)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_explain::model::account::CloseNotice;

    #[test]
    fn short_drain_names_grace_and_longest_stream() {
        let drain = |longest_s| ShortDrain { grace_s: 30, longest_s, missing_notice: None };
        let of = |longest_s| drained_too_short("x".into(), drain(longest_s));
        assert!(of(Some(41.26)).remedy.contains("which took 41.3 s here"));
        assert!(of(None).remedy.contains("did not see to its end"));
        assert!(of(None).why.ends_with("after 30 s"));
        let kept = ShortDrain { missing_notice: Some(CloseNotice::Header), ..drain(Some(6.0)) };
        let kept = drained_too_short("x".into(), kept);
        assert!(kept.why.ends_with("after 30 s, because new streams kept coming on kept connections"));
        assert!(kept.remedy.starts_with("answer with Connection: close while draining after SIGTERM"));
        assert!(kept.remedy.ends_with("no grace period is long enough by itself"));
    }

    #[test]
    fn sigterm_cut_names_delay_and_shutdown_timeout() {
        let said = |after_s, told| cut_at_sigterm("x".into(), SigtermCut { after_s, told });
        let why = |after_s, told| said(after_s, told).why;
        let has_timeout =
            |after_s| said(after_s, 0).remedy.starts_with("raise the app's own shutdown timeout above");
        assert!(has_timeout(Some((2.0, 2.1))));
        assert!(!has_timeout(Some((0.0, 2.1))) && !has_timeout(None));
        assert!(why(Some((2.01, 2.04)), 0).contains("open streams 2.0 s after SIGTERM"));
        assert!(why(Some((0.0, 2.0)), 3).contains("0.0 to 2.0 s after SIGTERM"));
        assert!(why(None, 1).contains("(1 stream with a message to the client)"));
    }
}
