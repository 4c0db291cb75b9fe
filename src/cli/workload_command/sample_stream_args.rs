//! Arguments of `rolldrop workload` for its streams, and their conversion to settings.

use std::str::FromStr;
use std::time::Duration;

use anyhow::ensure;
use rolldrop_record::LengthLaw;
use rolldrop_record::expect::Share;
use rolldrop_workload::{Habit, SampleStreamSettings, StreamFault, StreamFraming, StreamStopHabit};

/// Heading of these options in `--help`.
const STREAMS: &str = "Streams (/v1/chat/completions, /events, /download)";

/// Options for streams.
#[derive(Debug, clap::Args)]
pub(super) struct SampleStreamArgs {
    /// Length of streams whose request sets none: fixed:30s, lognormal:10s,1.0 (median, sigma), exp:20s (mean),
    /// list:1s,2s, or file:PATH with one duration per line.
    ///
    /// A request sets a length with `?length=` or the header `rolldrop-length`
    #[arg(long, value_name = "LAW", default_value = "fixed:10s", value_parser = LengthLaw::read, help_heading = STREAMS)]
    stream_length: LengthLaw,
    /// Gap between two events, in the same forms; at least 1ms
    #[arg(long, value_name = "LAW", default_value = "fixed:50ms", value_parser = LengthLaw::read, help_heading = STREAMS)]
    stream_gap: LengthLaw,
    /// Size in bytes of an event's content, and of a piece of a download
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = STREAMS)]
    event_bytes: usize,
    /// Seed for lengths, gaps and faults; the n-th stream is the same in every server with the same seed
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = STREAMS)]
    stream_seed: u64,
    /// Break this share of streams (default: all) at a random time: cut-fin, cut-rst, unfinished (no last event), abort
    /// (finish reason), error-event, or stall; repeatable
    #[arg(long, value_name = "FAULT[:SHARE]", value_parser = fault, help_heading = STREAMS)]
    stream_fault: Vec<(StreamFault, Share)>,
    /// Framing of stream responses: chunked, close-delimited, or content-length (downloads only)
    #[arg(long, value_name = "FRAMING", default_value_t = StreamFraming::Chunked, value_parser = StreamFraming::from_str, help_heading = STREAMS)]
    stream_framing: StreamFraming,
    /// End of open streams after the signal: finish, cut, cut-after:DURATION, or goodbye (an error event; cuts downloads)
    /// [default: finish; `exit` cuts all]
    #[arg(long, value_name = "HABIT", value_parser = stop_habit, help_heading = STREAMS)]
    streams_on_sigterm: Option<StreamStopHabit>,
}

fn fault(text: &str) -> Result<(StreamFault, Share), String> {
    let (fault, share) = text.split_once(':').unwrap_or((text, "100%"));
    let share = Share::parse(share).ok_or("give the share as a percentage, such as cut-fin:1%")?;
    Ok((fault.parse().map_err(|error: <StreamFault as FromStr>::Err| error.to_string())?, share))
}

fn stop_habit(text: &str) -> Result<StreamStopHabit, String> {
    match text {
        "finish" => Ok(StreamStopHabit::Finish),
        "cut" => Ok(StreamStopHabit::CutAfter(Duration::ZERO)),
        "goodbye" => Ok(StreamStopHabit::Goodbye),
        _ => match text.strip_prefix("cut-after:") {
            Some(wait) => super::super::parse_duration(wait).map(StreamStopHabit::CutAfter),
            None => Err("expected finish, cut, cut-after:DURATION or goodbye".to_owned()),
        },
    }
}

impl SampleStreamArgs {
    /// Returns the settings for a server with these reactions to signals.
    pub(super) fn settings(
        self,
        habits: impl IntoIterator<Item = Habit>,
    ) -> anyhow::Result<SampleStreamSettings> {
        let all: f64 = self.stream_fault.iter().map(|(_, share)| share.0).sum();
        // Decimal shares do not add up exactly.
        ensure!(all < 1.0 + 1e-9, "the shares of --stream-fault add up to more than 100%");
        let mut habits = habits.into_iter();
        ensure!(
            self.streams_on_sigterm.is_none()
                || habits.any(|habit| !matches!(habit, Habit::Exit | Habit::Ignore)),
            "--streams-on-sigterm needs a server that keeps running after the signal: add --on-sigterm drain, finish \
             or close-idle"
        );
        Ok(SampleStreamSettings {
            length: self.stream_length,
            gap: self.stream_gap,
            event_bytes: self.event_bytes,
            seed: self.stream_seed,
            faults: self.stream_fault.into_iter().map(|(fault, share)| (fault, share.0)).collect(),
            framing: self.stream_framing,
            on_stop: self.streams_on_sigterm.unwrap_or(StreamStopHabit::Finish),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        streams: SampleStreamArgs,
    }

    fn settings(options: &str, habit: Habit) -> Result<SampleStreamSettings, String> {
        let options = ["rolldrop"].into_iter().chain(options.split_whitespace());
        let command = Command::try_parse_from(options).map_err(|error| error.to_string())?;
        command.streams.settings([habit]).map_err(|error| error.to_string())
    }

    #[test]
    fn stream_options_reach_settings() {
        let options = "--stream-length lognormal:10s,1.0 --stream-fault cut-rst:5% --stream-fault stall \
                       --streams-on-sigterm cut-after:1m30s";
        let error = settings(options, Habit::Drain).unwrap_err();
        assert!(error.contains("more than 100%"), "{error}");
        let settings = settings(&options.replace("stall", "stall:95%"), Habit::Drain).unwrap();
        assert_eq!(settings.length.to_string(), "lognormal:10s,1.0");
        assert_eq!(settings.faults, [(StreamFault::CutRst, 0.05), (StreamFault::Stall, 0.95)]);
        assert_eq!(settings.on_stop, StreamStopHabit::CutAfter(Duration::from_secs(90)));
    }

    #[test]
    fn invalid_stream_options_are_explained() {
        let wrong = [
            ("--stream-length soon", "is not a length law"),
            ("--stream-gap file:/no/such/file", "cannot read /no/such/file"),
            ("--stream-fault crash", "is not one of cut-fin"),
            ("--stream-fault stall:0.1", "as a percentage"),
            ("--stream-framing tls", "is not one of chunked"),
            ("--streams-on-sigterm wait", "expected finish, cut, cut-after:DURATION or goodbye"),
            ("--streams-on-sigterm cut-after:5", "add a unit"),
        ];
        for (options, message) in wrong {
            let error = settings(options, Habit::Drain).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        for habit in [Habit::Exit, Habit::Ignore] {
            let error = settings("--streams-on-sigterm cut", habit).unwrap_err();
            assert!(error.contains("--on-sigterm drain"), "{error}");
        }
    }
}
