//! Expected number of open streams, if their lengths are known before the load starts.

use std::iter::{once, repeat_with};

use super::load_plan::Plan;
use super::random::Random;
use rolldrop_record::load::{Pace, RateStage};

/// Number of lengths drawn to estimate the mean of a distribution, which is then off by a few percent at most.
const DRAWS: usize = 2_000;

/// Returns the largest number of streams expected to be open in this process at the end of any stage; `None` if the
/// server decides their lengths, or in a closed loop, where the connections limit them. A ramp counts at its mean rate.
pub(super) fn expected_open(plan: &Plan) -> Option<usize> {
    let settings = &plan.settings;
    let law = settings.stream.as_ref()?.length.as_ref()?;
    let Pace::Open(counted) = &settings.pace else { return None };
    let rate = settings.pace.warmup_rate();
    let warmup = RateStage { from: rate, to: rate, duration: settings.warmup };
    let mut random = Random::new(settings.seed);
    let lengths: Vec<f64> = repeat_with(|| law.sample(&mut random).as_secs_f64()).take(DRAWS).collect();
    // Mean time that a stream that began this long ago has spent open so far.
    let mean_open = |age_s: f64| lengths.iter().map(|length| length.min(age_s)).sum::<f64>() / DRAWS as f64;
    let (mut begun, mut now_s, mut most) = (Vec::new(), 0.0, 0.0_f64);
    for stage in once(&warmup).chain(counted).filter(|stage| !stage.duration.is_zero()) {
        let (begin_s, length_s) = (now_s, stage.duration.as_secs_f64());
        now_s += length_s;
        begun.push((begin_s, now_s, stage.requests() / length_s));
        // At a constant rate, the arrivals of a stage have ages between these two, all equally likely.
        let open =
            begun.iter().map(|(from, to, rate)| rate * (mean_open(now_s - from) - mean_open(now_s - to)));
        most = most.max(open.sum());
    }
    let own = settings.workers as f64 / plan.share.of as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and the cast saturates"
    )]
    Some((most * own) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadShare;
    use rolldrop_record::load::{Load, StreamKind, StreamSettings};

    fn expected(stages: &[&str], length: &str) -> usize {
        let stream =
            StreamSettings { length: Some(length.parse().unwrap()), ..StreamSettings::new(StreamKind::Sse) };
        let stages = stages.iter().map(|stage| stage.parse().unwrap()).collect();
        let settings = Load {
            pace: Pace::Open(stages),
            stream: Some(stream),
            seed: 7,
            ..Load::new("http://127.0.0.1/")
        };
        let plan = Plan::new(settings).unwrap().part(ThreadShare { first: 0, of: 2 }).unwrap();
        expected_open(&plan).unwrap() * 2
    }

    #[test]
    fn expected_open_streams_depend_on_rate_and_length() {
        assert_eq!(expected(&["100:60s"], "10s"), 1_000);
        assert_eq!(expected(&["100:5s"], "10s"), 500);
        assert_eq!(expected(&["100:60s", "300:4s", "0:60s"], "10s"), 1_800);
        let exponential = expected(&["100:10m"], "exp:10s");
        assert!((900..1_100).contains(&exponential), "{exponential}");
    }

    #[test]
    fn expected_open_streams_need_known_lengths() {
        let stream = Some(StreamSettings::new(StreamKind::Sse));
        let plan = Plan::new(Load { stream, ..Load::new("http://127.0.0.1/") }).unwrap();
        assert_eq!(expected_open(&plan), None);
    }
}
